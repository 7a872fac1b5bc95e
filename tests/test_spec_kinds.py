"""Specs by head, by layer, with chosen sinks, a reach or a sink logit, against loops over heads and rows."""

import pytest
import torch
from by_head import HEADS, attention, compute, head, heads, truth
from oracle import error, ids, in_chunks, model

import swalib.step as swalib_step
from swalib import SWA, Full, PerLayer, SinkCache, applied, assert_applied
from swalib.attention import attend
from swalib.canary import NotApplied
from swalib.spec import PerHead

L = 37
TABLE = SWA([11, 7, 5, 9], [3, 0, 1, 2])
BESIDE_FULL = PerHead((SWA(11, 3), Full(), SWA(7, 0), SWA(5, 2)))
BY_LAYER = SWA([[11], [5, 7, 9, 11], [13]], 2)
IN_CACHE = SWA([11, 7, 7, 9], [2, 2, 2, 3], positions="cache")
CHOSEN, LATE = SWA(11, 3, sink_positions=(0, 4, 9)), SWA(8, 3, sink_positions=(2, 13, 30))
REACH, LOCAL_TABLE = SWA(11, 3, reach=8), SWA([11, 7, 5, 11], [3, 0, 1, 3], local="intersect")
ZERO, LOGITS = SWA(11, 3, sink_logit=0.0), SWA([11, 7, 5, 9], 2, sink_logit=-1.5)
HEADS_MIXED = PerHead((SWA(11, 3, "cache"), Full(), SWA(7, 1, sink_logit=0.5), SWA(9, 2, reach=8)))
MIXED = PerLayer((BESIDE_FULL, SWA(9, 2, sink_logit=2), HEADS_MIXED))

KINDS = [
    ("llama", TABLE, [13, 1, 5, 1, 2], "reference"),
    ("qwen2", BESIDE_FULL, [1], "sdpa"),
    ("qwen2", BY_LAYER, [12, 3], "sdpa"),
    ("gemma3", TABLE, [1], "sdpa"),
    ("gemma3", LOCAL_TABLE, [5, 1], "sdpa"),
    ("llama", IN_CACHE, [13, 3, 1], "sdpa"),
    ("gemma3", IN_CACHE, [11, 5], "reference"),
    ("llama", CHOSEN, [1], "reference"),
    ("qwen2", CHOSEN, [5, 3, 1], "sdpa"),
    ("llama", LATE, [7, 1, 2], "sdpa"),
    ("llama", REACH, [1], "sdpa"),
    ("qwen2", SWA([11, 7, 5, 9], [3, 0, 1, 2], reach=6), [13, 2], "sdpa"),
    ("qwen2", SWA(11, 3, "cache", reach=10), [13, 2], "sdpa"),
    ("llama", SWA(11, 5, sink_positions=(0, 4, 9, 11, 30), reach=9), [3], "reference"),
    ("mistral-local", SWA(33, 4, local="intersect"), [24, 1], "sdpa"),
    ("gemma3", SWA(11, 3, "cache", local="intersect"), [6, 1], "sdpa"),
    ("llama", ZERO, [13, 1], "sdpa"),
    ("gemma3", SWA(11, 3, sink_logit=1.5), [5, 3], "reference"),
    ("qwen2", SWA(11, 3, "cache", sink_logit=1), [5, 3], "sdpa"),
    ("llama", LOGITS, [13, 1], "sdpa"),
    ("llama", MIXED, [1], "sdpa"),
    ("mistral-local", HEADS_MIXED, [24, 1], "sdpa"),
    ("qwen2", HEADS_MIXED, [5, 3], "reference"),
]


@pytest.mark.parametrize(("name", "spec", "sizes", "impl"), KINDS, ids=str)
def test_one_forward_and_pieces(name, spec, sizes, impl):
    exact = truth(name, spec, L)
    assert exact.bound < 1e-4 * float(exact.logits.abs().max())
    with applied(model(name), spec, impl) as student, torch.no_grad():
        whole, pieces = student(ids(1, L), use_cache=False).logits, in_chunks(student, ids(1, L), sizes)
    assert error(whole, exact.logits) <= exact.bound
    assert error(pieces, exact.logits) <= exact.bound


def replace_head(spec, number, other):
    return PerHead((*spec.heads[:number], other, *spec.heads[number + 1 :]))


NEIGHBOURS = [
    *((TABLE, SWA([11, 7, 5 + one, 9], [3, 0, 1, 2])) for one in (-1, 1)),
    *((TABLE, SWA([11, 7, 5, 9], [3, 0, 1, 2 + one])) for one in (-1, 1)),
    (TABLE, SWA([7, 11, 5, 9], [0, 3, 1, 2])),
    (BESIDE_FULL, PerHead((Full(), SWA(11, 3), SWA(7, 0), SWA(5, 2)))),
    (BY_LAYER, SWA([[11], [5, 7, 9, 12], [13]], 2)),
    (BY_LAYER, SWA([[13], [5, 7, 9, 11], [11]], 2)),
    (IN_CACHE, SWA([11, 7, 7, 9], [2, 2, 2, 3])),
    (CHOSEN, SWA(11, 3, sink_positions=(0, 4, 8))),
    (CHOSEN, SWA(11, 3)),
    (REACH, SWA(11, 3, reach=9)),
    (REACH, SWA(11, 3)),
    (ZERO, SWA(11, 3)),
    (ZERO, SWA(11, 3, sink_logit=0.1)),
    (LOGITS, SWA([11, 7, 5, 9], 2)),
    *((HEADS_MIXED, replace_head(HEADS_MIXED, *change)) for change in (
        (0, SWA(11, 3)), (1, SWA(23, 0)), (1, SWA(L, 0, sink_logit=0.5)), (2, SWA(7, 1)), (3, SWA(9, 2)))),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "other"), NEIGHBOURS, ids=str)
def test_a_neighbour_of_a_kind_is_another_function(spec, other):
    """So that the tests above can fail: one head, one sink or one key off shows in the logits."""
    with applied(model("llama"), other) as student, torch.no_grad():
        exact = truth("llama", spec, L)
        assert error(student(ids(1, L)).logits, exact.logits) > 100 * exact.bound


@pytest.mark.parametrize(
    ("name", "spec", "beams"),
    [("llama", TABLE, 1), ("qwen2", BESIDE_FULL, 3), ("gemma3", LOCAL_TABLE, 1), ("llama", IN_CACHE, 1),
     ("llama", CHOSEN, 1), ("llama", LATE, 3), ("qwen2", ZERO, 1)],
    ids=str,
)  # fmt: skip
def test_generate_is_generate_without_a_cache(name, spec, beams):
    arguments = {"max_new_tokens": 13, "do_sample": False, "num_beams": beams}
    with applied(model(name), spec) as student:
        got = student.generate(ids(1, 9), **arguments)
        assert torch.equal(got, student.generate(ids(1, 9), use_cache=False, **arguments))
        exact = compute(name, spec, got[:, :-1])[0, 8:].detach()
    if beams == 1:
        behind = exact.amax(-1) - exact.gather(1, got[0, 9:, None])[:, 0]
        assert behind.max() <= truth(name, spec, L).bound


PADS = [0, 3, 31]


@pytest.mark.parametrize(
    ("name", "spec", "sizes"),
    [("llama", TABLE, [32, 1]), ("qwen2", BESIDE_FULL, [14, 3]), ("llama", IN_CACHE, [32, 2]),
     ("llama", CHOSEN, [33, 1]), ("llama", LATE, [14, 5, 1]), ("gemma3", LOCAL_TABLE, [32, 2]),
     ("llama", REACH, [33, 1]), ("llama", ZERO, [32, 1])],
    ids=str,
)  # fmt: skip
def test_each_row_of_a_padded_batch_is_that_row_alone(name, spec, sizes):
    exact, pads = truth(name, spec, L, 3), torch.tensor(PADS)
    rows = torch.stack([row.roll(pad) for row, pad in zip(ids(3, L), PADS, strict=True)])
    mask = (torch.arange(L) >= pads[:, None]).long()
    with applied(model(name), spec) as student, torch.no_grad():
        whole = student(rows, attention_mask=mask, use_cache=False).logits
        pieces = in_chunks(student, rows, sizes, mask=mask)
    for row, pad in enumerate(PADS):
        for logits in (whole, pieces):
            assert error(logits[row, pad:], exact.logits[row, : L - pad]) <= exact.bound


# ------------------------------------------------------------------------------------------------ on `attend`

ATTEND = [
    TABLE,
    BESIDE_FULL,
    CHOSEN,
    LATE,
    REACH,
    LOGITS,
    ZERO,
    PerHead((SWA(5, 1), SWA(7, 2), SWA(9, 3), SWA(5, 1))),
]


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
@pytest.mark.parametrize("h_kv", [1, 2, 4])
@pytest.mark.parametrize("spec", ATTEND, ids=str)
def test_attend_by_head(spec, h_kv, impl):
    """Keys in any order, some of them no token's; fp64 to the last digits."""
    generator = torch.Generator().manual_seed(h_kv)
    q, k, v = (
        torch.randn(2, h, L, d, generator=generator).double() for h, d in ((4, 6), (h_kv, 6), (h_kv, 3))
    )
    order = torch.randperm(L, generator=generator)
    k_pos = torch.cat([order, torch.tensor([-1, -1])])
    shuffled = [torch.cat([x[:, :, order], torch.full_like(x[:, :, :2], torch.nan)], 2) for x in (k, v)]
    got = attend(q, *shuffled, spec, impl, q_pos=torch.arange(L), k_pos=k_pos)
    each = spec.heads if isinstance(spec, PerHead) else [spec] * HEADS
    for h, rule in enumerate(map(head, each)):
        expected = attention(q[:, h], k[:, h * h_kv // 4], v[:, h * h_kv // 4], rule, 6**-0.5)
        torch.testing.assert_close(got[:, h], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("spec", [TABLE, BESIDE_FULL], ids=str)
def test_the_weights_of_the_reference_are_those_of_each_head(spec):
    with applied(model("llama"), spec, "reference") as student, torch.no_grad():
        maps = student(ids(1, L), output_attentions=True, use_cache=False).attentions
    for weights, rules in zip(maps, heads("llama", spec), strict=True):
        assert torch.equal(weights[0] > 0, torch.stack([rule.mask(L) for rule in rules]))


# ---------------------------------------------------------------------------------------- what a cache holds

SLOTS = [
    ("llama", TABLE, [11, 11, 11]),  # 3 sinks and 8 recents: of one head; 9 and 7 of others lie within
    ("llama", SWA([11, 5, 5, 5], [1, 4, 0, 0]), [14, 14, 14]),  # 4 sinks of one head, 10 recents of another
    ("llama", BESIDE_FULL, [L, L, L]),
    ("llama", BY_LAYER, [11, 11, 13]),
    ("llama", PerLayer((BESIDE_FULL, SWA(9, 2), Full())), [L, 9, L]),
    ("mistral-local", HEADS_MIXED, [26, 26, 26]),  # 3 sinks of one head, 23 recents of the model's own window
    ("llama", LATE, [8, 8, 8]),
    ("gemma3", TABLE, [7, 11, 7]),
    ("gemma3", LOCAL_TABLE, [11, 11, 11]),
]


@pytest.mark.parametrize(("name", "spec", "slots"), SLOTS, ids=str)
def test_the_cache_of_a_layer_holds_its_own_slots(name, spec, slots):
    with applied(model(name), spec) as student, torch.no_grad():
        cache = student(ids(2, L)).cache
    assert type(cache) is SinkCache
    assert cache.allocated_bytes == sum(slots) * 2 * 2 * 2 * 10 * 4  # k and v, rows, heads, size, bytes
    held = [layer.keys.shape[-2] for layer in cache.layers]
    assert held == slots


# ------------------------------------------------------------------------------------------------ the canary

RIGHT = [("llama", TABLE), ("qwen2", BESIDE_FULL), ("gemma3", LOCAL_TABLE), ("llama", IN_CACHE),
         ("llama", BY_LAYER), ("llama", CHOSEN), ("llama", LATE), ("llama", REACH), ("llama", LOGITS),
         ("llama", MIXED), ("llama", SWA([11, 7, 5, 9], [3, 0, 1, 2], reach=6)),
         ("llama", PerHead((SWA(4, 1), SWA(9, 1), SWA(9, 1), SWA(9, 1))))]  # fmt: skip


@pytest.mark.parametrize(("name", "spec"), RIGHT, ids=str)
def test_the_canary_passes_for_every_kind(name, spec):
    with applied(model(name), spec) as student:
        assert_applied(student, spec)


@pytest.mark.parametrize("change", [(1, 0), (-1, 0), (0, 1), (0, -1)], ids=str)
@pytest.mark.parametrize("number", range(HEADS))
def test_the_canary_catches_one_head_off_by_one(number, change):
    given = [SWA(11, 3), SWA(7, 1), SWA(5, 2), SWA(9, 1)]
    spec, (window, sinks) = PerHead(given), (given[number].window, given[number].sinks)
    given[number] = SWA(window + change[0], sinks + change[1])
    with applied(model("llama"), PerHead(given)) as student, pytest.raises(NotApplied):
        assert_applied(student, spec)


MUTANTS = {
    "heads in another order": lambda spec, *rest: (PerHead(spec.heads[1:] + spec.heads[:1]), *rest),
    "all heads under the widest": lambda spec, *rest: (PerHead((spec.heads[0],) * HEADS), *rest),
}


@pytest.mark.parametrize("spec", [TABLE, BESIDE_FULL], ids=str)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_canary_catches_heads_that_only_say_what_they_see(monkeypatch, mutant, spec):
    right = swalib_step.by_head
    monkeypatch.setattr(swalib_step, "by_head", lambda *given: right(*MUTANTS[mutant](*given)))
    with applied(model("llama"), spec) as student, pytest.raises(NotApplied):
        assert_applied(student, spec)
