"""Positions on every architecture: StreamingLLM's in the cache, tables that end, a RoPE that switches."""

from dataclasses import replace

import pytest
import torch
from architectures import ARCHITECTURES, L, check, check_rows, compute, model, truth
from oracle import error, ids, in_chunks

from swalib import SWA, applied, under
from swalib.tiny import tiny

A, ALL_SINKS = SWA(8, 2), SWA(5, 4)
IN_CACHE = SWA(8, 2, positions="cache")

rotary = pytest.mark.parametrize("name", [name for name, kind in ARCHITECTURES.items() if kind.pairs])
learned = pytest.mark.parametrize("name", [name for name, kind in ARCHITECTURES.items() if not kind.pairs])

# --------------------------------------------------------------------------------------- in-cache positions


@rotary
@pytest.mark.parametrize(
    ("spec", "sizes", "impl"),
    [(IN_CACHE, [L], "sdpa"), (IN_CACHE, [11, 1], "sdpa"), (ALL_SINKS, [5, 3], "reference")],
    ids=str,
)
def test_in_cache_positions(name, spec, sizes, impl):
    check(name, replace(spec, positions="cache"), sizes, impl=impl)


@rotary
def test_in_cache_positions_are_another_function(name):
    with applied(model(name), IN_CACHE) as student, torch.no_grad():
        got = student(ids(1, L)).logits
    for wrong in (A, SWA(9, 2, "cache"), SWA(7, 2, "cache"), SWA(8, 1, "cache"), SWA(8, 3, "cache")):
        assert error(got, compute(name, wrong, ids(1, L))) > 100 * truth(name, IN_CACHE).bound


@learned
def test_learned_positions_can_not_be_in_cache(name):
    with pytest.raises(ValueError, match='positions="cache"'):
        under(model(name), IN_CACHE)


# ------------------------------------------------------------------------------------- how long a text may be

LONG = 97  # the tiny model's LongRoPE turns everything by other angles once a text has more than 80 tokens


@learned
def test_a_text_as_long_as_the_learned_positions(name):
    check(name, A, [96], length=96)
    check(name, A, [95, 1], length=96)


@learned
@pytest.mark.parametrize("sizes", [[97], [89, 1], [50]], ids=str)
def test_a_text_longer_than_the_learned_positions_is_refused(name, sizes):
    with applied(model(name), A) as student, pytest.raises(ValueError, match="96"), torch.no_grad():
        in_chunks(student, ids(1, 97), sizes)


def test_the_end_of_gptjs_table_binds_text_positions_only():
    teacher, exact = tiny("gptj", max_position_embeddings=80), truth("gptj", IN_CACHE, LONG)  # same weights
    with applied(teacher, IN_CACHE) as student, torch.no_grad():
        assert error(in_chunks(student, ids(1, LONG), [5, 3]), exact.logits) <= exact.bound
    with applied(teacher, A) as student, pytest.raises(ValueError, match="for 80 tokens"), torch.no_grad():
        in_chunks(student, ids(1, LONG), [5, 3])


def test_longrope_beyond_the_switch_in_one_forward():
    check("phi3-longrope", A, [LONG], length=LONG)
    check("phi3-longrope", A, [81, 1], length=LONG)
    before, after = truth("phi3-longrope", A), truth("phi3-longrope", A, LONG)
    assert error(before.logits, after.logits[:, :L]) > 100 * after.bound


@pytest.mark.parametrize("sizes", [[1], [7], [80, 17]], ids=str)
def test_longrope_can_not_switch_under_cached_keys(sizes):
    with (
        applied(model("phi3-longrope"), A) as student,
        pytest.raises(ValueError, match="80 tokens"),
        torch.no_grad(),
    ):
        in_chunks(student, ids(1, LONG), sizes)


@pytest.mark.parametrize("sizes", [[LONG], [7], [79, 1]], ids=str)
def test_longrope_never_switches_in_cache(sizes):
    check("phi3-longrope", IN_CACHE, sizes, length=LONG)


def test_longrope_generates_as_masked_forwards_do_across_the_switch():
    """transformers drops Phi-3's cache there and reads the text anew."""
    for spec in (A, IN_CACHE):
        with applied(model("phi3-longrope"), spec) as student:
            out = student.generate(ids(1, 77), max_new_tokens=7, do_sample=False)
        for length in range(77, 84):
            logits = compute("phi3-longrope", spec, out[:, :length])[0, -1]
            assert logits.max() - logits[out[0, length]] <= truth("phi3-longrope", spec, LONG).bound


def test_longrope_turns_padded_rows_as_it_turns_them_alone():
    check_rows("phi3-longrope", A, [57, 60], length=LONG)
    check_rows("phi3-longrope", IN_CACHE, [0, 60], length=LONG)


def test_longrope_refuses_rows_on_both_sides_of_the_switch():
    behind = (torch.arange(LONG) >= torch.tensor([0, 60])[:, None]).long()
    with applied(model("phi3-longrope"), A) as student, torch.no_grad():
        for mask in (behind, behind.flip(1)):
            with pytest.raises(ValueError, match="80 tokens"):
                student(ids(2, LONG), attention_mask=mask, use_cache=False)
