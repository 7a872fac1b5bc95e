"""Faults that users of other systems reported, each as a small input with its right answer."""

import oracle
import pytest
import torch
from oracle import double_loop, error, ids, in_chunks, model, truth
from transformers import DynamicCache

from swalib import SWA, Full, applied, assert_applied
from swalib.attention import attend
from swalib.canary import NotApplied

IMPLS = ["sdpa", "reference"]
FAMILIES = ["llama", "qwen2", "mistral", "gemma3"]


def weights(spec, impl, length, **positions):
    """What each query gives each key, bool [t_q, t_k], read off values that are the unit vectors."""
    generator = torch.Generator().manual_seed(0)
    queries = positions["q_pos"].numel() if positions else length
    q, k = (torch.randn(1, 2, t, 6, generator=generator) for t in (queries, length))
    return attend(q, k, torch.eye(length).expand(1, 2, -1, -1), spec, impl, **positions)[0, 0] > 0


def attention_maps(student, tokens, **arguments):
    """Weights [layers, b, h, t_q, t_k] of a student under impl="reference"."""
    return torch.stack(student(tokens, output_attentions=True, **arguments).attentions)


# transformers #33691, #33692: SinkCache's new keys were not re-rotated
@pytest.mark.parametrize("positions", ["text", "cache"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_case_1_token_by_token_is_the_masked_forward_or_the_in_cache_reference(name, positions):
    spec = SWA(8, 2, positions)
    exact = truth(name, spec, 1, 20)
    with applied(model(name), spec) as student, torch.no_grad():
        assert error(in_chunks(student, ids(1, 20), [1]), exact.logits) <= exact.bound


# transformers #31537: a prompt longer than the window broke generate
@pytest.mark.parametrize("impl", IMPLS)
def test_case_2_a_prompt_longer_than_the_window(impl):
    with applied(model("llama"), SWA(16, 3), impl) as student:
        out = student.generate(
            ids(1, 50), max_new_tokens=9, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
    sequence = out.sequences[:, :-1]
    masked = oracle.literal(model("llama"), sequence, SWA(16, 3))
    plain = oracle.eager(model("llama"), sequence, SWA(16, 3))
    assert error(torch.stack(out.logits, 1), masked[:, 49:]) <= 4 * error(plain, masked)


# attention_sinks #17: one long forward was full attention
@pytest.mark.parametrize("name", FAMILIES)
def test_case_3_no_mass_outside_the_visible_set_in_one_long_forward(name):
    with applied(model(name), SWA(16, 3), "reference") as student, torch.no_grad():
        maps = attention_maps(student, ids(1, 64), use_cache=False)
    for layer, weight in zip(oracle.layers(model(name), SWA(16, 3)), maps, strict=True):
        assert not weight[:, :, ~double_loop(64, layer.window, layer.sinks)].any()
        torch.testing.assert_close(weight.sum(-1), torch.ones_like(weight.sum(-1)))


# transformers #29623, #40163, vLLM #3385: backends disagreed by one key
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("sinks", [0, 1, 3])
def test_case_4_every_impl_shows_w_keys(impl, sinks):
    assert weights(SWA(4, sinks), impl, 70).sum(1).tolist() == [min(i + 1, 4) for i in range(70)]


@pytest.mark.parametrize("impl", IMPLS)
def test_case_4_window_4_is_transformers_own_sliding_window_4(impl):
    native = oracle.tiny("mistral", sliding_window=4)
    with applied(model("mistral"), SWA(4, 0), impl) as student, torch.no_grad():
        got, expected = student(ids(1, 37)).logits, native(ids(1, 37)).logits
    assert error(got, expected) <= 2 * truth("mistral", SWA(4, 0), 1, 37).bound


# transformers #35924, #36351, sglang: a backend or a model ignored the window
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("impl", IMPLS)
def test_case_5_the_window_is_not_ignored(name, impl):
    full = model(name)(ids(1, 64)).logits
    with applied(model(name), SWA(8, 0), impl) as student, torch.no_grad():
        apart = (student(ids(1, 64)).logits - full).abs().amax(-1)[0]
    assert apart[:7].max() < 1e-3
    assert apart[8:].min() > 1e-2


# transformers #37574: the cache rolled when the length *reached* w
@pytest.mark.parametrize("positions", ["text", "cache"])
@pytest.mark.parametrize("prefill", [6, 7, 8, 9])
def test_case_6_nothing_still_needed_is_dropped_around_w(prefill, positions):
    spec = SWA(8, 2, positions)
    exact = truth("llama", spec, 1, 20)
    with applied(model("llama"), spec) as student, torch.no_grad():
        assert error(in_chunks(student, ids(1, 20), [prefill, 1]), exact.logits) <= exact.bound


# transformers #45940: the zero padding of a static cache was attended
@pytest.mark.parametrize("sizes", [[3], [1], [2, 1]], ids=str)
def test_case_7_slots_not_yet_used_have_no_weight(sizes):
    exact = truth("llama", Full(), 1, 3)
    with applied(model("llama"), SWA(8, 2)) as student, torch.no_grad():
        assert error(in_chunks(student, ids(1, 3), sizes), exact.logits) <= exact.bound


# LLMs-from-scratch #1008, duo-attention #3: early queries of a chunk lost keys, or the window grew within it
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_case_8_each_row_of_a_chunk_after_the_cache_is_full_sees_w_keys(name):
    with applied(model(name), SWA(8, 2), "reference") as student, torch.no_grad():
        cache = student(ids(1, 8)).cache
        maps = attention_maps(student, ids(1, 3, seed=1), cache=cache)
    assert (maps > 0).sum(-1).unique().tolist() == [8]


# vLLM #52148: a kernel accepted sinks and ignored them
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("positions", ["text", "cache"])
def test_case_9_sinks_change_the_output(impl, positions):
    logits = []
    for sinks in (0, 1, 2):
        with applied(model("llama"), SWA(8, sinks, positions), impl) as student, torch.no_grad():
            logits.append(in_chunks(student, ids(1, 20), [13, 1]))
    for one, other in ((0, 1), (1, 2), (0, 2)):
        apart = (logits[one] - logits[other]).abs().amax(-1)[0]
        assert apart[:8].max() < 1e-3
        assert apart[8:].min() > 1e-2


# vLLM #4405, #53628: fully masked rows, or stale evicted slots, gave NaN
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("positions", ["text", "cache"])
def test_case_10_evicted_keys_and_padded_rows_stay_finite(impl, positions):
    spec, mask = SWA(8, 2, positions), torch.ones(2, 20, dtype=torch.long)
    mask[0, :11] = 0
    tokens = torch.cat(
        [torch.cat([torch.zeros(11, dtype=torch.long), ids(2, 20)[0, :9]])[None], ids(2, 20)[1:]]
    )
    exact = truth("llama", spec, 2, 20)
    with applied(model("llama"), spec, impl) as student, torch.no_grad():
        first = student(tokens[:, :13], attention_mask=mask[:, :13])
        for layer in first.cache.layers:  # row 0 holds 2 tokens: its slots 2..7 hold none
            layer.keys[0, :, 2:] = layer.values[0, :, 2:] = torch.nan
        parts = [(13, 14), (14, 17), (17, 18), (18, 20)]
        rest = [
            student(tokens[:, a:b], attention_mask=mask[:, :b], cache=first.cache).logits for a, b in parts
        ]
    assert bool(torch.isfinite(first.logits).all())
    got = torch.cat([first.logits, *rest], 1)
    assert error(got[0, 11:], exact.logits[0, :9]) <= exact.bound
    assert error(got[1], exact.logits[1]) <= exact.bound


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("size", [1, 3])
def test_case_10_an_evicted_key_is_never_multiplied_by_zero(impl, size):
    """The slots of tokens that the next one evicts hold NaN: nothing that follows may notice."""
    spec, exact = SWA(8, 2), truth("llama", SWA(8, 2), 1, 20)
    with applied(model("llama"), spec, impl) as student, torch.no_grad():
        cache = student(ids(1, 20)[:, :13]).cache
        slot = 2 + (13 - 2) % 6  # where token 13 goes: token 7 stands there, which no query from 13 on sees
        for layer in cache.layers:
            layer.keys[:, :, slot] = layer.values[:, :, slot] = torch.nan
        got = in_chunks(student, ids(1, 20)[:, 13:], [size], cache)
    assert error(got, exact.logits[:, 13:]) <= exact.bound


# kvpress #158, streaming-llm #60: in-cache and text positions confused
def test_case_11_twelve_tokens_in_a_cache_of_ten_are_two_functions_with_two_names():
    text, cache = SWA(10, 2), SWA(10, 2, positions="cache")
    assert str(text) != str(cache)
    assert text.to_dict()["positions"] == "text"
    assert cache.to_dict()["positions"] == "cache"
    logits = {}
    for spec in (text, cache):
        exact = truth("llama", spec, 1, 12)
        with applied(model("llama"), spec) as student, torch.no_grad():
            logits[spec] = in_chunks(student, ids(1, 12), [1])
        assert error(logits[spec], exact.logits) <= exact.bound
    apart = (logits[text] - logits[cache]).abs().amax(-1)[0]
    assert apart[:10].max() < 1e-3
    assert apart[10:].min() > 1e-2


# a reproduction of the paper: sinks visible to queries before them; a patch that leaks or does nothing
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("spec", [SWA(8, 4), SWA(8, 4, "cache")], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_case_18_no_row_sees_a_later_sink(name, spec, impl):
    tokens = ids(1, 20)
    with applied(model(name), spec, impl) as student, torch.no_grad():
        before = student(tokens, use_cache=False).logits
        for changed in range(1, 5):
            other = tokens.clone()
            other[:, changed] = (tokens[:, changed] + 1) % 97
            logits = student(other, use_cache=False).logits
            assert torch.equal(logits[:, :changed], before[:, :changed])
            assert not torch.equal(logits[:, changed], before[:, changed])


def test_case_18_row_0_sees_key_0_only():
    for impl in IMPLS:
        assert weights(SWA(8, 4), impl, 20)[0].nonzero()[:, 0].tolist() == [0]


def test_case_18_the_teacher_after_its_student_and_a_canary_that_can_fail(monkeypatch):
    tokens, teacher = ids(1, 20), model("llama")
    before = teacher(tokens).logits
    with applied(teacher, SWA(8, 4)) as student:
        assert_applied(student, SWA(8, 4))
        student(tokens)
        monkeypatch.setattr("swalib.masks.visible", lambda q_pos, k_pos, spec: k_pos <= q_pos)
        with pytest.raises(NotApplied):
            assert_applied(student, SWA(8, 4))
    assert torch.equal(teacher(tokens).logits, before)
    assert type(teacher(tokens).cache) is DynamicCache


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_case_14_log_likelihoods_do_not_depend_on_the_batch(name):
    """Rows of mixed lengths, one by one and eight at once, padded on either side."""
    lengths, spec = [3, 31, 12, 5, 40, 8, 23, 17], SWA(8, 3)
    rows, bound = ids(8, max(lengths)), truth(name, spec, 8, max(lengths)).bound
    with applied(model(name), spec) as student:
        for left in (True, False):
            mask = torch.zeros_like(rows)
            for row, length in enumerate(lengths):
                mask[row, -length if left else 0 : None if left else length] = 1
            together = student(rows * mask, attention_mask=mask).logits.log_softmax(-1)
            for row in range(8):
                own = mask[row].bool()
                alone = student(rows[row : row + 1, own]).logits.log_softmax(-1)
                assert error(together[row, own], alone[0]) <= 2 * bound


@torch.no_grad()
@pytest.mark.parametrize("bos", [None, 96])
def test_case_15_whichever_token_stands_first_is_the_sink(bos):
    """A BOS in front takes the sink's place from the text's first token, which is then lost like any other.

    Whether a model gets one is part of its name's entry, and so of every row: see test_evals, test_models.
    """
    text = ids(1, 20)[0]
    told = text if bos is None else torch.cat([torch.tensor([bos]), text])
    with applied(model("llama"), SWA(6, 1)) as student:
        before = student(told[None]).logits[0, -1]
        for changed in (0, 1):  # three layers of a window of 5 reach 12 tokens back: to neither
            other = told.clone()
            other[changed] = (other[changed] + 1) % 97
            assert torch.equal(student(other[None]).logits[0, -1], before) == (changed == 1)
