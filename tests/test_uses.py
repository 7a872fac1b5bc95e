"""Batches, beams, samples, turns and prefixes: however a student is used, it is the masked model."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from oracle import error, ids, in_chunks, literal, model, truth

from swalib import SWA, Full, PerLayer, SinkCache, applied, layer_specs, under
from swalib.spec import PerHead

L = 37
A, IN_CACHE, TABLE = SWA(11, 3), SWA(11, 3, positions="cache"), SWA([11, 7, 5, 9], [3, 0, 1, 2])
GREEDY = {"max_new_tokens": 9, "do_sample": False}


def near(name, spec):
    """How far an independent fp32 computation strays from the exact logits of such a text, times 4."""
    return truth(name, spec, 1, L).bound


def exact(name, spec, row):
    return literal(model(name), row[None], spec)[0]


# ------------------------------------------------------------------------------------- padding on either side

SIDES = [(0, 0), (30, 5), (30, 4), (4, 25), (9, 0), (0, 9), (25, 11), (36, 0), (0, 36)]


def padded(sides, length=L):
    """Row r: pads, that row's first tokens, pads; tokens, mask."""
    column = torch.arange(length)
    mask = torch.stack([(column >= left) & (column < length - right) for left, right in sides])
    tokens = ids(len(sides), length)
    return torch.stack([row.roll(s[0]) for row, s in zip(tokens, sides, strict=True)]).where(mask, 7), mask


@pytest.mark.parametrize(
    ("name", "spec", "impl"),
    [("llama", A, "sdpa"), ("llama", IN_CACHE, "reference"), ("qwen2", SWA(29, 5), "sdpa"),
     ("qwen2", SWA(7, 6), "reference"), ("gemma3", A, "sdpa"), ("gemma3", IN_CACHE, "sdpa"),
     ("llama", PerLayer((A, Full(), SWA(5, 0))), "sdpa")],
    ids=str,
)  # fmt: skip
def test_left_and_right_padding_in_one_batch(name, spec, impl):
    """Rows shorter than their sinks, as long, shorter than the window, of one token, and far beyond it."""
    (tokens, mask), right = padded(SIDES), truth(name, spec, len(SIDES), L)
    with applied(model(name), spec, impl) as student, torch.no_grad():
        logits = [student(tokens, attention_mask=mask, use_cache=kept).logits for kept in (False, True)]
    for got in logits:
        assert bool(torch.isfinite(got).all())
        for row, (before, after) in enumerate(SIDES):
            assert error(got[row, before : L - after], right.logits[row, : L - before - after]) <= right.bound


@pytest.mark.parametrize(
    ("spec", "sizes"), [(A, [8, 1]), (IN_CACHE, [8, 5]), (TABLE, [8, 3, 1]), (SWA(31, 9), [1])], ids=str
)
def test_rows_that_begin_or_end_in_a_later_chunk(spec, sizes):
    """A row may have no token at all in the first chunks, or none in the last ones."""
    sides = [(0, 0), (13, 0), (33, 0), (0, 29), (8, 20), (20, 1)]
    tokens, mask = padded(sides)
    with applied(model("llama"), spec) as student, torch.no_grad():
        got = in_chunks(student, tokens, sizes, mask=mask)
        for row, (before, after) in enumerate(sides):
            alone = student(ids(len(sides), L)[row : row + 1, : L - before - after]).logits[0]
            assert error(got[row, before : L - after], alone) <= near("llama", A)
    assert bool(torch.isfinite(got).all())


# ---------------------------------------------------------------- generation is generation without a cache


@pytest.fixture
def reorders(monkeypatch):
    """How each beam step moved the rows of the cache, and after how many tokens."""
    seen, plain = [], SinkCache.reorder_cache

    def spy(cache, beam_idx):
        seen.append((cache.get_seq_length(), beam_idx.tolist()))
        plain(cache, beam_idx)

    monkeypatch.setattr(SinkCache, "reorder_cache", spy)
    return seen


def same(student, tokens, seed=0, **arguments):
    """What `generate` gives, which must be what it gives when each step reads the whole text anew."""
    outputs = []
    for use_cache in (True, False):
        torch.manual_seed(seed)
        outputs.append(student.generate(tokens, use_cache=use_cache, **arguments))
    assert torch.equal(*outputs)
    return outputs[0]


@pytest.mark.parametrize(
    ("name", "spec"), [("llama", A), ("qwen2", IN_CACHE), ("gemma3", A), ("llama", SWA(5, 1))], ids=str
)
def test_beams_that_change_places_after_eviction(name, spec, reorders):
    with applied(model(name), spec) as student:
        same(student, ids(2, 13), num_beams=4, **GREEDY)
    late = [rows for seen, rows in reorders if seen > 11]
    assert sum(rows != list(range(8)) for rows in late) >= 5


@pytest.mark.parametrize("spec", [A, IN_CACHE], ids=str)
def test_beams_of_padded_rows_that_change_places(spec, reorders):
    tokens, mask = padded([(0, 0), (11, 0), (5, 0)], 13)
    with applied(model("llama"), spec) as student:
        batch = same(student, tokens, num_beams=3, attention_mask=mask, **GREEDY)
        for row, before in enumerate((0, 11, 5)):
            alone = student.generate(tokens[row : row + 1, before:], num_beams=3, **GREEDY)
            assert torch.equal(batch[row, before:], alone[0])
    assert any(rows != list(range(9)) for _, rows in reorders)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("name", "spec"), [("llama", A), ("llama", IN_CACHE), ("gemma3", A)], ids=str)
def test_samples_with_a_seed(name, spec, beams):
    arguments = {"do_sample": True, "num_beams": beams, "max_new_tokens": 9, "temperature": 1.5}
    with applied(model(name), spec) as student:
        first = same(student, ids(2, 13), 3, **arguments)
        assert not torch.equal(first, same(student, ids(2, 13), 4, **arguments))
        same(student, ids(1, 13), 5, num_return_sequences=3, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"guidance_scale": 1.7, "negative_prompt_ids": ids(1, 5, 9)}, {"repetition_penalty": 1.3},
     {"min_new_tokens": 5, "eos_token_id": [1, 2, 3], "pad_token_id": 0}],
    ids=lambda arguments: min(arguments),
)  # fmt: skip
def test_ways_to_choose_a_token(arguments):
    with applied(model("llama"), A) as student:
        same(student, ids(1, 23), **GREEDY, **arguments)


@pytest.mark.parametrize("spec", [A, IN_CACHE], ids=str)
def test_a_prompt_of_embeddings(spec):
    with applied(model("llama"), spec) as student:
        embedded = student.get_input_embeddings()(ids(2, 23))
        got = student.generate(inputs_embeds=embedded, **GREEDY)
        assert torch.equal(got, student.generate(ids(2, 23), **GREEDY)[:, 23:])


@pytest.mark.parametrize("spec", [A, IN_CACHE, TABLE], ids=str)
@pytest.mark.parametrize("chunk", [3, 12])
def test_a_padded_prompt_read_in_chunks(spec, chunk):
    tokens, mask = padded([(0, 0), (17, 0), (5, 0)], 23)
    with applied(model("llama"), spec) as student:
        whole = student.generate(tokens, attention_mask=mask, **GREEDY)
        got = student.generate(tokens, attention_mask=mask, prefill_chunk_size=chunk, **GREEDY)
    assert torch.equal(got, whole)


# ------------------------------------------------------------------------------- one cache, several calls


@pytest.mark.parametrize("spec", [A, IN_CACHE], ids=str)
def test_turns_of_a_padded_batch_on_one_cache(spec):
    """Generate, append what the user says, generate again: each row is one long masked text."""
    history, mask = padded([(0, 0), (8, 0)], 9)
    with applied(model("llama"), spec) as student:
        cache = SinkCache(layer_specs(student, spec))
        for turn in range(3):
            prompt = history.shape[1]
            history = student.generate(
                history, attention_mask=mask, cache=cache, max_new_tokens=5, do_sample=False
            )
            said = ids(2, 4, seed=turn + 1)
            mask = torch.cat([mask, mask.new_ones(2, history.shape[1] - prompt + 4)], 1)
            for row, before in ((0, 0), (1, 8)):
                text = history[row, before:]
                logits = exact("llama", spec, text[:-1])[prompt - before - 1 :]
                behind = logits.amax(-1) - logits.gather(1, text[prompt - before :, None])[:, 0]
                assert behind.max() <= near("llama", spec)
            history = torch.cat([history, said], 1)
    assert cache.get_seq_length() == history.shape[1] - 5


PREFIX = 14


@pytest.mark.parametrize("sizes", [[6], [1], [2, 1]], ids=str)
@pytest.mark.parametrize("spec", [A, IN_CACHE], ids=str)
def test_a_prefix_read_once_goes_on_in_copies_and_in_a_batch(spec, sizes):
    prefix, after = ids(1, PREFIX), ids(3, 6, seed=1)
    texts = torch.cat([prefix.expand(3, -1), after], 1)
    right = literal(model("llama"), texts, spec)[:, PREFIX:]
    with applied(model("llama"), spec) as student, torch.no_grad():
        cache = student(prefix).cache
        for row in (0, 2):
            got = in_chunks(student, after[row : row + 1], sizes, copy.deepcopy(cache))
            assert error(got[0], right[row]) <= near("llama", spec)
        batch = copy.deepcopy(cache)
        batch.batch_repeat_interleave(3)
        assert error(in_chunks(student, after, sizes, batch), right) <= near("llama", spec)
        got = in_chunks(student, after[1:2], sizes, cache)  # untouched by its copies
        assert error(got[0], right[1]) <= near("llama", spec)


def test_a_padded_prefix_goes_on_in_a_batch_and_loses_rows():
    tokens, mask = padded([(0, 0), (12, 0)], PREFIX)
    after, rows = ids(4, 6, seed=1), torch.tensor([3, 1])
    mask = torch.cat([mask.repeat_interleave(2, 0), torch.ones(4, 6, dtype=torch.bool)], 1)
    with applied(model("llama"), A) as student, torch.no_grad():
        cache = student(tokens, attention_mask=mask[::2, :PREFIX]).cache
        cache.batch_repeat_interleave(2)
        first = student(after[:, :2], attention_mask=mask[:, : PREFIX + 2], cache=cache).logits
        cache.batch_select_indices(rows)
        second = student(after[rows, 2:], attention_mask=mask[rows], cache=cache).logits
    for row in range(4):
        before = [0, 0, 12, 12][row]
        right = exact("llama", A, torch.cat([tokens[row // 2, before:], after[row]]))[PREFIX - before :]
        assert error(first[row], right[:2]) <= near("llama", A)
        if row in (1, 3):
            assert error(second[[3, 1].index(row)], right[2:]) <= near("llama", A)


def test_a_cache_emptied_by_reset_is_a_new_one():
    with applied(model("llama"), A) as student, torch.no_grad():
        tokens, mask = padded([(0, 0), (12, 0)], PREFIX)
        cache = student(tokens, attention_mask=mask).cache
        cache.reset()
        got = in_chunks(student, ids(2, L), [13, 1], cache)
    assert error(got, truth("llama", A, 2, L).logits) <= truth("llama", A, 2, L).bound


@pytest.mark.parametrize("spec", [A, IN_CACHE], ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_a_cache_begun_in_inference_mode_goes_on_outside(spec, size):
    exact = truth("llama", spec, 1, L)
    with applied(model("llama"), spec) as student:
        with torch.inference_mode():
            cache = student(ids(1, L)[:, :PREFIX]).cache
        with torch.no_grad():
            got = in_chunks(student, ids(1, L)[:, PREFIX:], [size], cache)
    assert error(got, exact.logits[:, PREFIX:]) <= exact.bound


# ------------------------------------------------------------------------- students beside and in each other


def test_students_generate_in_threads_what_they_generate_alone():
    """Several students, each in several threads at once, all of one teacher, which runs too."""
    specs = [A, SWA(5, 0), IN_CACHE, PerHead((SWA(11, 3), Full(), SWA(7, 0), SWA(5, 2))), Full()]
    runners = [*(under(model("llama"), spec) for spec in specs), model("llama")]
    jobs = [(runner, seed) for seed in range(2) for runner in runners]
    barrier = threading.Barrier(4)

    def run(job):
        runner, seed = job
        return runner.generate(ids(2, 13, seed), num_beams=2, **GREEDY)

    def at_once(job):
        barrier.wait(60)
        return run(job)

    alone = [run(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(at_once, jobs))
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)
    assert len({tuple(row[0].tolist()) for row in alone[: len(specs)]}) == len(specs)


def test_blocks_in_blocks_generate_each_under_its_own_spec():
    alone = {
        spec: under(model("llama"), spec).generate(ids(1, 23), **GREEDY) for spec in (A, SWA(5, 0), Full())
    }
    with applied(model("llama"), A) as a, applied(model("llama"), SWA(5, 0)) as b, applied(b, Full()) as c:
        for _ in range(2):
            for student, spec in ((c, Full()), (a, A), (b, SWA(5, 0))):
                assert torch.equal(student.generate(ids(1, 23), **GREEDY), alone[spec])
    assert len({tuple(row[0].tolist()) for row in alone.values()}) == 3


@pytest.mark.parametrize("ran", ["the model", "the student", "nothing"])
def test_an_exception_inside_a_block_comes_out_as_it_is(ran):
    """Even where the block had run the model alone, of which it would be warned at its end."""
    teacher = model("llama")
    hooks = [len(module._forward_pre_hooks) for module in teacher.modules()]

    def fail_after(student):
        if ran != "nothing":
            (teacher if ran == "the model" else student)(ids(1, 3))
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"), applied(teacher, A) as student:
        fail_after(student)
    assert [len(module._forward_pre_hooks) for module in teacher.modules()] == hooks
    with torch.no_grad():
        assert error(student(ids(1, L)).logits, truth("llama", A, 1, L).logits) <= near("llama", A)
