"""One predicate, cell by cell against eq. 2, and every other system's number against the keys it shows."""

import pytest
import torch
from oracle import double_loop

from swalib import masks
from swalib.spec import SWA, Full

LENGTHS = [1, 2, 3, 5, 11, 31]
SPECS = [SWA(1, 0), SWA(2, 0), SWA(2, 1), SWA(5, 0), SWA(5, 1), SWA(5, 4), SWA(7, 3), SWA(31, 30), SWA(37, 2)]


def counts(mask):
    return mask.sum(1).tolist()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_mask_is_eq_2_cell_by_cell(spec, length):
    assert torch.equal(masks.mask(length, spec), double_loop(length, spec.window, spec.sinks))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_row_i_sees_min_of_i_plus_1_and_w_keys_itself_included(spec):
    mask = masks.mask(41, spec)
    assert counts(mask) == [min(i + 1, spec.window) for i in range(41)]
    assert mask.diagonal().all()


@pytest.mark.parametrize("spec", [SWA(13, 0), SWA(13, 5), SWA(13, 12), SWA(99, 3), Full()], ids=str)
def test_a_window_as_long_as_the_text_is_full_attention(spec):
    assert torch.equal(masks.mask(13, spec), torch.ones(13, 13, dtype=torch.bool).tril())


@pytest.mark.parametrize("window", [1, 4, 7])
def test_no_sinks_is_a_plain_band(window):
    ones = torch.ones(17, 17, dtype=torch.bool)
    assert torch.equal(masks.mask(17, SWA(window, 0)), ones.tril() & ones.triu(1 - window))


@pytest.mark.parametrize("spec", [SWA(4, 3), SWA(9, 5)], ids=str)
def test_sinks_are_causal_so_row_0_sees_key_0_only(spec):
    assert counts(masks.mask(11, spec))[: spec.sinks] == list(range(1, spec.sinks + 1))


def test_one_by_hand():
    assert masks.mask(6, SWA(4, 1)).int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 0, 1, 1, 1, 0],
        [1, 0, 0, 1, 1, 1],
    ]


@pytest.mark.parametrize("spec", [SWA(4, 2), SWA(3, 0), Full()], ids=str)
def test_a_negative_position_holds_no_token(spec):
    position = torch.arange(-3, 7)
    seen = masks.visible(position[:, None], position[None, :], spec)
    assert not seen[:, :3].any()
    assert not seen[:3].any()
    assert torch.equal(seen[3:, 3:], masks.mask(7, spec))


def test_positions_broadcast_and_need_no_order():
    generator = torch.Generator().manual_seed(0)
    q_pos, k_pos = torch.randperm(13, generator=generator), torch.randperm(13, generator=generator)
    whole = masks.mask(13, SWA(5, 2))
    seen = masks.visible(q_pos.view(1, 13, 1), k_pos.view(1, 1, 13), SWA(5, 2))
    assert torch.equal(seen[0], whole[q_pos][:, k_pos])


# Conventions, each counted for w = 4, s = 1 (StreamingLLM: start 1, recent 4).
ADAPTERS = [
    ("this paper", SWA(4, 1), SWA(4, 1), 4),
    ("transformers, fla", masks.from_sliding_window(4), SWA(4, 0), 4),
    ("FlashAttention (left, 0)", masks.from_flash_attention(4), SWA(5, 0), 5),
    ("StreamingLLM, evicting after", masks.from_streaming_llm(1, 4), SWA(6, 1), 6),
    ("StreamingLLM, evicting before", masks.from_streaming_llm(1, 4, evict="before"), SWA(5, 1), 5),
    ("SWAA", masks.from_swaa(4, 1), SWA(5, 1), 5),
]


@pytest.mark.parametrize(
    ("spec", "ours", "keys"), [case[1:] for case in ADAPTERS], ids=[c[0] for c in ADAPTERS]
)
def test_an_adapter_shows_as_many_keys_as_the_other_system(spec, ours, keys):
    assert spec == ours
    assert counts(masks.mask(23, spec))[-1] == max(counts(masks.mask(23, spec))) == keys


def test_flash_attentions_window_is_a_look_back():
    i = torch.arange(19)
    behind = i[:, None] - i[None, :]
    assert torch.equal(masks.mask(19, masks.from_flash_attention(4)), (behind >= 0) & (behind <= 4))


@pytest.mark.parametrize("evict", ["after", "before"])
def test_streaming_llm_by_simulating_its_cache(evict):
    start, recent, cache, rows = 2, 3, [], []
    for i in range(17):
        if evict == "before" and len(cache) + 1 > start + recent:
            cache = cache[:start] + cache[len(cache) - recent + 1 :]
        cache.append(i)
        rows.append([j in cache for j in range(17)])
        if evict == "after" and len(cache) > start + recent:
            cache = cache[:start] + cache[-recent:]
    assert torch.equal(masks.mask(17, masks.from_streaming_llm(start, recent, evict)), torch.tensor(rows))


def test_an_unknown_eviction_order_is_refused():
    with pytest.raises(ValueError, match='evict must be "after" or "before", got \'never\''):
        masks.from_streaming_llm(1, 4, evict="never")


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 9, 21, 24])
def test_terraced_is_lolcats_formula_aligned_to_the_end(length):
    offset, block = -length % 4, 4
    cells = [
        [j <= i and (i + offset) // block - (j + offset) // block <= 1 for j in range(length)]
        for i in range(length)
    ]
    assert torch.equal(masks.terraced(length, block), torch.tensor(cells))


def test_terraced_shows_block_plus_1_to_2_block_keys_so_no_swa_equals_it():
    rows = counts(masks.terraced(256, 64))
    assert (min(rows[128:]), max(rows[128:])) == (65, 128)
