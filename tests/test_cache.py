"""The slots hold what a simulated eviction leaves, and say so; memory is allocated once; rows can move."""

import oracle
import pytest
import torch

from swalib import SWA, Full, PerLayer, SinkCache, applied, convert, under
from swalib.linear.qlinatt import QLinAttConfig
from swalib.sink_layer import SinkLayer
from swalib.slots import slot_of, slot_positions
from swalib.step import Step, left_padding

H_KV, D, D_V = 2, 5, 3
SPECS = [SWA(1, 0), SWA(7, 2), SWA(7, 0), SWA(5, 4), SWA(2, 1)]


def named(position, row=0):
    """Keys and values [1, h_kv, t, ·] that carry their row and text position in every element."""
    code = (1000.0 * (row + 1) + torch.as_tensor(position, dtype=torch.float64)).view(1, 1, -1, 1)
    return code.expand(1, H_KV, -1, D).clone(), -code.expand(1, H_KV, -1, D_V).clone()


def batch_named(first, t, pads):
    """Columns first .. first+t-1 of a left-padded batch; what stands on a pad is NaN."""
    rows = [named(torch.arange(first - pad, first - pad + t), row) for row, pad in enumerate(pads)]
    keys, values = (torch.cat(parts) for parts in zip(*rows, strict=True))
    dead = torch.stack([torch.arange(first - pad, first - pad + t) < 0 for pad in pads])[:, None, :, None]
    return keys.masked_fill(dead, torch.nan), values.masked_fill(dead, torch.nan)


def kept(seen, spec):
    """Text positions left after `seen` tokens, by evicting from a list."""
    cached = []
    for position in range(seen):
        cached.append(position)
        if len(cached) > spec.window:
            del cached[spec.sinks]
    return cached


# ------------------------------------------------------------------------------------- which token is where


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_slot_positions_against_a_simulation(spec):
    slots = [-1] * spec.window
    for seen in range(25):
        assert slot_positions(torch.tensor(seen), spec, spec.window).tolist() == slots
        assert sorted(p for p in slots if p >= 0) == kept(seen, spec)
        slot = seen if seen < spec.sinks else spec.sinks + (seen - spec.sinks) % (spec.window - spec.sinks)
        assert int(slot_of(torch.tensor(seen), spec)) == slot
        slots[slot] = seen


def test_slot_positions_are_per_row_and_a_row_not_begun_is_empty():
    got = slot_positions(torch.tensor([0, -3, 2, 9]), SWA(5, 2), 4)
    assert got.tolist() == [[-1] * 4, [-1] * 4, [0, 1, -1, -1], [0, 1, 8, 6]]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("sizes", [[1], [3], [29], [11, 1], [1, 6, 1, 1, 13, 7]], ids=str)
def test_after_any_chunks_the_slots_hold_the_sinks_and_the_latest(spec, sizes):
    layer, seen = SinkLayer(spec), 0
    for size in (sizes * 29)[: 29 if sizes == [1] else 6]:
        layer.update(*named(range(seen, seen + size)))
        seen += size
        at = slot_positions(torch.tensor(seen), spec, layer.live_slots)
        keys, values = named(at)
        assert torch.equal(layer.keys[:, :, : layer.live_slots], keys)
        assert torch.equal(layer.values[:, :, : layer.live_slots], values)
        assert layer.get_seq_length() == seen
        assert sorted(at.tolist()) == kept(seen, spec)


@pytest.mark.parametrize(
    ("pads", "grad"),
    [([0, 0], False), ([0, 0], True), ([0, 2], False), ([4, 1], False), ([4, 0], True)],
    ids=str,
)
@pytest.mark.parametrize("sizes", [[5, 1], [5, 3, 1, 1, 4], [6, 1, 1, 1, 2, 9], [17, 1, 3]], ids=str)
@pytest.mark.parametrize("spec", [SWA(8, 2), SWA(7, 0), SWA(5, 4)], ids=str)
def test_every_key_handed_to_attention_stands_where_the_step_says(spec, sizes, pads, grad):
    """Between cache and step: a column said to hold position p does, and no visible one is missing."""
    layer, start = SinkLayer(spec), 0
    padding = torch.tensor(pads) if any(pads) else None
    for size in sizes:
        keys, values = batch_named(start, size, pads)
        keys, values = layer.update(keys.requires_grad_(grad), values, padding)
        tokens = torch.stack([torch.arange(start + size) >= pad for pad in pads])
        step = Step(start, size, padding, None if padding is None else tokens)
        assert layer.get_seq_length() == start + size
        k_pos = step.k_pos(spec, keys.shape[-2]).expand(2, -1)
        for row, pad in enumerate(pads):
            live = k_pos[row] >= 0
            for got, expected in zip((keys, values), named(k_pos[row, live], row), strict=True):
                assert torch.equal(got[row : row + 1, :, live], expected)
            sees = [oracle.double_loop(q + 1, spec.window, spec.sinks)[q].nonzero()[:, 0].tolist()
                    for q in range(max(0, start - pad), start + size - pad)]  # fmt: skip
            assert {p for visible in sees for p in visible} <= set(k_pos[row].tolist())
            assert len(k_pos[row, live].unique()) == live.sum()
        start += size


def test_the_sizes_announced_are_the_sizes_given():
    layer = SinkLayer(SWA(7, 2))
    for size in (3, 1, 2, 5, 1, 1, 9, 1):
        announced = layer.get_mask_sizes(size)
        assert announced == (layer.update(*named(range(size)))[0].shape[-2], 0)


# --------------------------------------------------------------------------------------------------- memory


def test_memory_is_allocated_once_and_never_moves():
    cache = SinkCache([SWA(7, 2), SWA(11, 0)])
    assert cache.allocated_bytes == 0
    places = set()
    for start, size in [(0, 3), (3, 1), (4, 20), (24, 1), (25, 1), (26, 5)]:
        for layer in range(2):
            cache.update(*named(range(start, start + size)), layer)
        places.add(tuple(x.data_ptr() for layer in cache.layers for x in (layer.keys, layer.values)))
        assert cache.allocated_bytes == (7 + 11) * H_KV * (D + D_V) * 8
    assert len(places) == 1
    assert cache.get_max_length() == -1
    assert cache.get_seq_length() == 31


def test_a_decoded_token_is_given_the_slots_themselves_without_a_copy():
    layer = SinkLayer(SWA(7, 2))
    layer.update(*named(range(9)))
    keys, values = layer.update(*named([9]))
    assert keys.data_ptr() == layer.keys.data_ptr()
    assert values.data_ptr() == layer.values.data_ptr()


def test_growing_layers_count_too():
    cache = SinkCache([Full(), SWA(7, 2)])
    for layer in range(2):
        cache.update(*named(range(23)), layer)
    assert cache.allocated_bytes == (23 + 7) * H_KV * (D + D_V) * 8


@pytest.mark.parametrize("specs", [[SWA(7, 2)], [SWA(7, 2), Full()], [Full(), SWA(7, 2)]], ids=str)
def test_reset_forgets_the_tokens_and_the_padding(specs):
    cache = SinkCache(specs)
    cache.left_padding = torch.tensor([2])
    for layer in range(len(specs)):
        cache.update(*named(range(5)), layer)
    cache.reset()
    assert cache.left_padding is None
    assert cache.get_seq_length() == 0
    for layer in range(len(specs)):
        keys, _ = cache.update(*named(range(3)), layer)
        assert torch.equal(keys, named(range(3))[0])


def test_memory_kept_through_a_reset():
    cache = SinkCache([SWA(7, 2)])
    cache.update(*named(range(5)), 0)
    before = cache.layers[0].keys.data_ptr()
    cache.reset()
    cache.update(*named(range(9)), 0)
    assert cache.layers[0].keys.data_ptr() == before


# ----------------------------------------------------------------------------------------------------- rows


def filled(pads):
    cache = SinkCache([SWA(5, 2), Full(), SWA(7, 0)])
    cache.left_padding = torch.tensor(pads)
    for layer in range(3):
        cache.update(*(x.nan_to_num(0) for x in batch_named(0, 13, pads)), layer)
    return cache


ROWS = {
    "reorder_cache": (torch.tensor([2, 0, 0]), [2, 0, 0]),
    "batch_select_indices": (torch.tensor([2, 1]), [2, 1]),
    "batch_repeat_interleave": (2, [0, 0, 1, 1, 2, 2]),
}


@pytest.mark.parametrize("operation", ROWS)
def test_rows_and_their_padding_move_together(operation):
    argument, rows = ROWS[operation]
    cache, before = filled([0, 3, 1]), filled([0, 3, 1])
    getattr(cache, operation)(argument)
    assert cache.left_padding.tolist() == [[0, 3, 1][row] for row in rows]
    for layer, old in zip(cache.layers, before.layers, strict=True):
        assert torch.equal(layer.keys, old.keys[rows])
        assert torch.equal(layer.values, old.values[rows])
    assert cache.get_seq_length() == 13


@pytest.mark.parametrize("operation", ROWS)
def test_rows_of_an_empty_cache(operation):
    cache = SinkCache([SWA(5, 2), Full()])
    getattr(cache, operation)(ROWS[operation][0])
    assert cache.get_seq_length() == 0


def test_a_fork_has_rows_of_its_own():
    cache, before = filled([0, 3, 1]), filled([0, 3, 1])
    fork = cache.fork(torch.tensor([1, 1]))
    assert fork.left_padding.tolist() == [3, 3]
    for layer in range(3):
        fork.update(*(x.nan_to_num(0) for x in batch_named(13, 4, [3, 3])), layer)
    assert (fork.get_seq_length(), cache.get_seq_length()) == (17, 13)
    for layer, old in zip(cache.layers, before.layers, strict=True):
        assert torch.equal(layer.keys, old.keys)


STUDENTS = {
    "all": lambda teacher: under(teacher, Full()),
    "sinks": lambda teacher: under(teacher, SWA(7, 2)),
    "cache positions": lambda teacher: under(teacher, SWA(7, 2, "cache")),
    "layers differ": lambda teacher: under(teacher, PerLayer((SWA(5, 0), Full(), SWA(9, 4)))),
    "mixers": lambda teacher: convert(teacher, QLinAttConfig()),
}


@pytest.mark.parametrize("lengths", [(12, 3, 1), (6, 6)], ids=str)
@pytest.mark.parametrize("kind", STUDENTS)
@torch.no_grad()
def test_caches_of_texts_of_any_length_go_on_together_as_each_alone(kind, lengths):
    student = STUDENTS[kind](oracle.model("llama"))
    texts = [oracle.ids(1, n + 9, seed=n) for n in lengths]
    caches = [SinkCache(student.model._swa.layers) for _ in texts]
    for cache, text, n in zip(caches, texts, lengths, strict=True):
        student(text[:, :n], cache=cache)
    joined = SinkCache.joined(caches)
    mask = torch.ones(len(texts), max(lengths), dtype=torch.long)
    for row, n in enumerate(lengths):
        mask[row, : max(lengths) - n] = 0
    got = []
    for start, stop in ((0, 5), (5, 6), (6, 9)):
        new = torch.cat([text[:, n + start : n + stop] for text, n in zip(texts, lengths, strict=True)])
        mask = torch.cat([mask, torch.ones_like(new)], dim=1)
        got.append(student(new, attention_mask=mask, cache=joined).logits)
    for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
        alone = student(text, use_cache=False).logits[0, n:]
        torch.testing.assert_close(torch.cat(got, dim=1)[row], alone, rtol=0, atol=2e-5)
    assert [cache.get_seq_length() for cache in caches] == list(lengths)


def test_caches_that_can_not_be_joined():
    empty, one, padded = SinkCache([SWA(7, 2)]), SinkCache([SWA(7, 2)]), SinkCache([SWA(7, 2)])
    one.update(*named(range(5)), 0)
    assert SinkCache.joined([empty, empty]).get_seq_length() == 0
    with pytest.raises(ValueError, match="an empty cache can't be joined"):
        SinkCache.joined([one, empty])
    padded.update(*named(range(5)), 0)
    padded.left_padding = torch.tensor([2])
    for caches in ([one, padded], [one, SinkCache([SWA(7, 3)])], []):
        with pytest.raises(ValueError, match="the same specs and no padded rows"):
            SinkCache.joined(caches)


@pytest.mark.parametrize("specs", [[SWA(7, 2)], [Full(), SWA(7, 2)]], ids=str)
def test_a_cache_that_evicts_refuses_to_roll_back(specs):
    cache = SinkCache(specs)
    for layer in range(len(specs)):
        cache.update(*named(range(9)), layer)
    with pytest.raises(
        RuntimeError, match="a sink cache can't be rolled back, since evicted tokens are gone"
    ):
        cache.crop(-1)
    assert cache.get_seq_length() == 9


# -------------------------------------------------------------------------------- in a model: poison, steps


@pytest.mark.parametrize(
    ("seen", "sizes", "positions"),
    [
        (3, [1], "text"),
        (3, [21], "cache"),
        (7, [3], "text"),
        (8, [1], "cache"),
        (10, [1], "text"),
        (19, [5], "cache"),
    ],
)
def test_slots_that_hold_no_token_may_hold_anything(seen, sizes, positions):
    """Case 10: NaN in every slot that holds no token, before decoding and before a chunk."""
    spec, tokens = SWA(11, 2, positions), oracle.ids(2, 24)
    exact = oracle.truth("llama", spec, 2, 24)
    with applied(oracle.model("llama"), spec) as student, torch.no_grad():
        cache = student(tokens[:, :seen]).cache
        for layer in cache.layers:
            dead = slot_positions(torch.tensor(seen), spec, spec.window) < 0
            layer.keys[:, :, dead] = layer.values[:, :, dead] = torch.nan
        got = oracle.in_chunks(student, tokens[:, seen:], sizes, cache)
    assert oracle.error(got, exact.logits[:, seen:]) <= exact.bound


def test_left_padding_counts_leading_pads():
    mask = torch.tensor([[0, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]])
    assert left_padding(mask).tolist() == [2, 0, 4, 5]
    assert left_padding(mask.bool()).tolist() == [2, 0, 4, 5]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(1, 1, 3, 3), "takes a padding mask .batch, tokens.; got one of shape .1, 1, 3, 3."),
        (torch.tensor([[1, 1, 2, 2]]), "holds 1 for a token and 0 for a pad"),
        (torch.tensor([[1, 0, 1]]), "the padding mask has a hole"),
        (torch.tensor([[0, 1, 0, 1]]), "the padding mask has a hole"),
    ],
)
def test_padding_that_means_nothing_is_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        left_padding(mask)


def test_a_step_refuses_keys_that_can_not_be_its_own():
    with pytest.raises(
        RuntimeError, match="got 9 keys for 1 queries after 20 tokens: the cache is not this student's"
    ):
        Step(20, 1).k_pos(SWA(7, 2), 9)
    with pytest.raises(RuntimeError, match="got 9 keys for 2 queries after 20 tokens"):
        Step(20, 2).k_pos(Full(), 9)
