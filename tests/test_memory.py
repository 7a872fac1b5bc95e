"""At a fixed window, memory doesn't depend on how long a text is: measured by the allocator, in every use.

torch's CPU allocator reports each allocation and each release to the profiler, temporaries inside a kernel
included. Their running sum is what is live: its peak is what a use needs, its end what the use keeps. Python
frees tensors at their last reference, so the numbers are exact, and the same at every run.
"""

import gc
from typing import NamedTuple

import oracle
import pytest
import torch
from oracle import ids
from torch.profiler import ProfilerActivity, profile

from swalib import SWA, Full, SinkCache, layer_specs, prefill, under
from swalib.spec import PerHead

W, SHORT, LONG = 3, 4 * 3, 12 * 3
SLOT = 2 * 2 * 10 * 4  # bytes of a key and a value: kv heads, size of a head, fp32
A, IN_CACHE = SWA(W, 1), SWA(W, 1, positions="cache")
BY_HEAD = PerHead((SWA(3, 1), SWA(2, 1), SWA(2, 0), SWA(1, 0)))


class Bytes(NamedTuple):
    peak: int
    kept: int


def measure(use, *given) -> Bytes:
    """Of what `use(*given)` allocates; what it returns is what it keeps."""
    gc.disable()  # it would release, now and then, what earlier tests left
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, torch.no_grad():
            kept = use(*given)
    finally:
        gc.enable()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live, peak = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    del kept
    return Bytes(peak, live)


def test_what_is_released_counts_at_the_peak_and_what_is_kept_at_the_end():
    def use():
        first = torch.ones(1000)
        del first
        return torch.ones(400).softmax(0)  # of which 400 are released

    assert measure(use) == Bytes(4000, 1600)
    assert measure(lambda: torch.ones(100)[:1]) == Bytes(400, 400)


def decode(student, tokens, mask=None, reorder=None):
    """Token by token; a cache is all that is kept."""
    cache = None
    for seen in range(1, tokens.shape[1] + 1):
        own = None if mask is None else mask[:, :seen]
        cache = student(tokens[:, seen - 1 : seen], attention_mask=own, cache=cache, use_cache=True).cache
        if reorder is not None:
            cache.reorder_cache(reorder)
    return cache


def read(student, tokens):
    """In chunks of 6 tokens, twice the window."""
    return prefill(student, tokens, chunk_tokens=6)[1]


def beams(student, tokens):
    return decode(student, tokens, reorder=torch.tensor([1, 1, 0]))


def in_turns(student, tokens):
    """Texts of 2 tokens and answers of 1 on a cache of one's own."""
    cache = SinkCache(layer_specs(student, student.model._swa.spec))
    for turn in tokens.split(3, dim=1):
        for part in (turn[:, :2], turn[:, 2:]):
            student(part, cache=cache, use_cache=True)
    return cache


USES = {
    "decode": (decode, A, "sdpa", 1),
    "decode, reference": (decode, A, "reference", 1),
    "decode, cache positions": (decode, IN_CACHE, "sdpa", 1),
    "decode, by head": (decode, BY_HEAD, "sdpa", 1),
    "decode, chosen sinks": (decode, SWA(W, 1, sink_positions=(2,)), "sdpa", 1),
    "decode, sink logit": (decode, SWA(W, 1, sink_logit="learned"), "sdpa", 1),
    "chunks": (read, A, "sdpa", 2),
    "chunks, reference": (read, A, "reference", 1),
    "chunks, cache positions": (read, IN_CACHE, "sdpa", 1),
    "chunks, by head": (read, BY_HEAD, "reference", 1),
    "turns": (in_turns, A, "sdpa", 1),
    "beams": (beams, A, "sdpa", 3),
}


@pytest.fixture(scope="module")
def teacher():
    return oracle.tiny("llama", num_hidden_layers=1)


def short_and_long(student, use, rows, *given):
    use(student, ids(rows, 2 * W), *given)  # what is made once and for all belongs to no use
    return [measure(use, student, ids(rows, length), *given) for length in (SHORT, LONG)]


@pytest.mark.parametrize("name", USES)
def test_twelve_windows_take_what_four_take(teacher, name):
    use, spec, impl, rows = USES[name]
    short, long = short_and_long(under(teacher, spec, impl), use, rows)
    assert long == short
    assert long.kept == rows * W * SLOT
    assert long.peak > long.kept


@pytest.mark.parametrize("use", [decode, read, in_turns, beams])
def test_under_full_attention_the_same_uses_grow(teacher, use):
    student = under(teacher, Full())
    short, long = short_and_long(student, use, 3)
    assert long.kept - short.kept == 3 * (LONG - SHORT) * SLOT
    assert long.peak - short.peak >= 3 * (LONG - SHORT) * SLOT


COUNTING = 16  # bytes for each token of a row: its mask, and the running sum that finds where it begins


@pytest.mark.parametrize("spec", [A, IN_CACHE, Full()], ids=str)
def test_a_padded_batch_keeps_no_more_and_counts_its_tokens(teacher, spec):
    mask = torch.arange(LONG) >= torch.tensor([0, 2, 5])[:, None]
    short, long = short_and_long(under(teacher, spec), decode, 3, mask)
    if spec == Full():
        assert long.peak - short.peak >= 3 * (LONG - SHORT) * SLOT
    else:
        assert long.peak - short.peak <= 3 * (LONG - SHORT) * COUNTING
        counted = 3 * 8  # the left padding itself
        assert short.kept == long.kept == 3 * W * SLOT + counted


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("spec", [A, Full()], ids=str)
def test_generate_holds_tokens_and_nothing_else_that_grows(teacher, spec, num_beams):
    """Sequences, their masks and positions are integers for each token of each beam; a key is far more."""
    arguments = {"max_new_tokens": 3, "do_sample": False, "num_beams": num_beams, "prefill_chunk_size": 6}

    def use(student, tokens):
        return student.generate(tokens, **arguments)

    short, long = short_and_long(under(teacher, spec), use, 2)
    tokens = 2 * num_beams * (LONG - SHORT)
    if spec == Full():
        assert long.peak - short.peak >= tokens * SLOT
    else:
        assert long.peak - short.peak <= tokens * 5 * 8
