"""Uses that would be another function than SWA(w, s): one sentence each, and student and cache go on."""

import copy

import oracle
import pytest
import torch
from oracle import error, ids, in_chunks, model, truth
from transformers import DataCollatorWithFlattening

from swalib import SWA, Full, SinkCache, layer_specs, under

L, SEEN = 37, 20
A, IN_CACHE = SWA(11, 3), SWA(11, 3, positions="cache")


def goes_on(student, spec, cache=None):
    """The student is right as before; so is a cache that had seen `SEEN` tokens."""
    exact = truth("llama", spec, 1, L)
    with torch.no_grad():
        assert error(student(ids(1, L)).logits, exact.logits) <= exact.bound
        if cache is not None:
            got = in_chunks(student, ids(1, L)[:, SEEN:], [1, 3], cache)
            assert error(got, exact.logits[:, SEEN:]) <= exact.bound


def refuses(call, kind, message):
    with pytest.raises(kind, match=message) as caught, torch.no_grad():
        call()
    assert "\n" not in str(caught.value)


# ----------------------------------------------------------------------- wrong masks and positions on a cache


def at(*positions):
    return {"position_ids": torch.tensor([positions])}


def mask(*rows):
    return {"attention_mask": torch.tensor(rows)}


JUMP = "position_ids that jump or restart .packed rows. are not supported"
ON_A_CACHE = {  # each call is given a cache of 20 tokens
    "a jump": (1, at(SEEN + 5), JUMP),
    "a step back": (1, at(SEEN - 1), JUMP),
    "a restart": (3, at(0, 1, 2), JUMP),
    "a restart within": (4, at(20, 21, 0, 1), JUMP),
    "positions of other tokens": (2, at(20, 21, 22), "position_ids must be integers .1, 2., one for each"),
    "half positions": (2, at(20.0, 21.0), "position_ids must be integers"),
    "a hole": (2, mask([1] * SEEN + [0, 1]), "the padding mask has a hole"),
    "a hole before": (2, mask([1, 0] + [1] * SEEN), "the padding mask has a hole"),
    "a pad that was a token": (2, mask([0] + [1] * (SEEN + 1)), "the left padding of a row changed"),
    "a mask of the new tokens": (2, mask([1, 1]), "covers 2 tokens of 1 rows, but there are 22 so far, of 1"),
    "a mask of two rows": (2, mask(*[[1] * 22] * 2), "covers 22 tokens of 2 rows, but there are 22 .* of 1"),
    "segments": (2, mask([1] * 15 + [2] * 7), "holds 1 for a token and 0 for a pad"),
    "4-D": (2, {"attention_mask": torch.zeros(1, 1, 2, SEEN + 2)}, "takes a padding mask .batch, tokens."),
    "packed": (2, {"cu_seq_lens_q": torch.tensor([0, 1, 2])}, "packed rows .* are not supported"),
    "packed, Mamba's way": (2, {"seq_idx": torch.tensor([[0, 1]])}, "packed rows .* are not supported"),
}  # fmt: skip


@pytest.mark.parametrize("spec", [A, IN_CACHE], ids=str)
@pytest.mark.parametrize("case", ON_A_CACHE)
def test_a_refused_call_leaves_student_and_cache_as_they_were(case, spec):
    (size, arguments, message), student = ON_A_CACHE[case], under(model("llama"), spec)
    with torch.no_grad():
        cache = student(ids(1, SEEN)).cache
    refuses(lambda: student(ids(1, size), cache=cache, **arguments), ValueError, message)
    goes_on(student, spec, cache)


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_packed_rows_as_a_collator_makes_them(impl):
    student = under(model("llama"), A, impl)
    texts = [{"input_ids": row} for row in ids(3, 5).tolist()]
    for settings in ({}, {"return_position_ids": False, "return_flash_attn_kwargs": True}):
        batch = dict(DataCollatorWithFlattening(return_tensors="pt", **settings)(texts))
        del batch["labels"]
        refuses(lambda batch=batch: student(**batch), ValueError, "packed rows")
    goes_on(student, A)


def test_positions_that_say_where_the_tokens_stand_are_fine():
    """With or without counting the left pads; what they say of pads doesn't matter."""
    student, pads, column = under(model("llama"), A), 4, torch.arange(L)
    tokens, exact = torch.cat([ids(1, pads, 1), ids(1, L)[:, : L - pads]], 1), truth("llama", A, 1, L)
    for position in (column, column - pads):
        given = {
            "attention_mask": (column >= pads)[None],
            "position_ids": position.where(column >= pads, 1)[None],
        }
        with torch.no_grad():
            got = student(tokens, **given).logits[:, pads:]
        assert error(got, exact.logits[:, : L - pads]) <= exact.bound


# --------------------------------------------------------------------------------- a cache of something else


def test_the_cache_of_another_model_of_the_same_shapes():
    student, other = under(model("llama"), A), under(oracle.model("llama", 1), A)
    with torch.no_grad():
        cache, foreign = student(ids(1, SEEN)).cache, other(ids(1, SEEN)).cache
    refuses(lambda: student(ids(1, 1), cache=foreign), ValueError, "the keys of another model")
    goes_on(student, A, cache)
    with torch.no_grad():  # which the refusal left to its own student
        got = other(ids(1, 1, 2), cache=foreign).logits
        assert torch.equal(got, other(ids(1, 1, 2), cache=other(ids(1, SEEN)).cache).logits)


@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_of_another_batch_size(padded):
    student = under(model("llama"), A)
    before = {"attention_mask": torch.tensor([[0] + [1] * 8, [1] * 9])} if padded else {}
    for rows in (1, 3):
        after = {"attention_mask": torch.ones(rows, 10)} if padded else {}
        with torch.no_grad():
            cache = student(ids(2, 9), **before).cache
        refuses(lambda: student(ids(rows, 1), cache=cache, **after), ValueError, "row")  # noqa: B023
    goes_on(student, A)


@pytest.mark.parametrize("where", [torch.bfloat16, torch.float64, "meta"], ids=str)
def test_a_student_cast_or_moved_in_mid_stream(where):
    teacher = copy.deepcopy(model("llama"))
    student = under(teacher, A)
    with torch.no_grad():
        cache = student(ids(1, SEEN)).cache
    student.to(where)
    place = student.device
    refuses(
        lambda: student(ids(1, 1).to(place), cache=cache), ValueError,
        "of another model, or of this one before it was moved",
    )  # fmt: skip
    fresh = student(ids(1, L).to(place))
    assert fresh.logits.dtype == student.dtype
    if place.type != "meta":
        exact = oracle.literal(teacher, ids(1, L), A)  # its weights are the ones that were cast
        rough = oracle.eager(teacher, ids(1, L), A)
        assert error(fresh.logits.detach(), exact) <= 4 * error(rough, exact)


def test_a_forward_that_failed_midway():
    """A cache whose first layer has seen a token that its second one hasn't."""
    student = under(model("llama"), A)
    with torch.no_grad():
        cache, begun = student(ids(1, SEEN)).cache, SinkCache(layer_specs(student, A))

    def fail(*_):
        raise MemoryError

    hook = student.model.layers[1].register_forward_pre_hook(fail)
    for broken in (cache, begun):
        refuses(lambda broken=broken: student(ids(1, 1), cache=broken), MemoryError, None)
    hook.remove()
    for broken in (cache, begun):
        refuses(
            lambda broken=broken: student(ids(1, 1), cache=broken),
            ValueError,
            "has left this cache half-written",
        )
    begun.reset()
    goes_on(student, A)
    with torch.no_grad():
        exact = truth("llama", A, 1, L)
        assert error(in_chunks(student, ids(1, L), [9, 1], begun), exact.logits) <= exact.bound


def test_a_refused_padding_is_forgotten_by_a_cache_that_is_still_empty():
    student = under(model("llama"), A)
    cache = SinkCache(layer_specs(student, A))
    with pytest.raises(IndexError):
        student(torch.full((1, 3), 10_000), attention_mask=torch.tensor([[0, 1, 1]]), cache=cache)
    with torch.no_grad():
        exact = truth("llama", A, 1, L)
        assert error(in_chunks(student, ids(1, L), [9, 1], cache), exact.logits) <= exact.bound


def test_crop_is_refused_and_the_cache_goes_on():
    student = under(model("llama"), A)
    with torch.no_grad():
        cache = student(ids(1, SEEN)).cache
    for call in (lambda: cache.crop(-1), lambda: cache.layers[1].crop(-1)):
        refuses(call, RuntimeError, "can't be rolled back, since evicted tokens are gone")
    goes_on(student, A, cache)


@pytest.mark.parametrize("cache", ["fresh", "its student's"])
@pytest.mark.parametrize("call", ["forward", "generate"])
def test_the_teacher_with_a_sink_cache(call, cache):
    teacher, student = model("llama"), under(model("llama"), A)
    with torch.no_grad():
        given = SinkCache(layer_specs(student, A)) if cache == "fresh" else student(ids(1, SEEN)).cache
    calls = {"forward": teacher, "generate": lambda *a, **k: teacher.generate(*a, max_new_tokens=3, **k)}
    refuses(lambda: calls[call](ids(1, SEEN + 3), cache=given), (ValueError, RuntimeError), "cache")


@pytest.mark.parametrize("other", ["sdpa", "eager"])
def test_attention_replaced_behind_a_students_back(other):
    student = under(model("llama"), A)
    student.set_attn_implementation(other)
    refuses(lambda: student(ids(1, 3)), (ValueError, RuntimeError), "attention")
    goes_on(under(student, A), A)


# ------------------------------------------------------------------------------------- ways to decode

CACHE = "would replace the sink cache: leave it out"
ROLLS_BACK = "assisted decoding rolls the cache back"
ON_THE_HUB = "requires `trust_remote_code=True`"  # transformers' own words: the method lives elsewhere by now
DECODING = {
    "static": ({"cache_implementation": "static"}, CACHE),
    "dynamic": ({"cache_implementation": "dynamic"}, CACHE),
    "quantized": ({"cache_implementation": "quantized"}, CACHE),
    "offloaded": ({"cache_implementation": "offloaded"}, CACHE),
    "sliding window": ({"cache_implementation": "sliding_window"}, CACHE),
    "assistant": ({"assistant_model": model("llama")}, ROLLS_BACK),
    "assistant, a student": ({"assistant_model": under(model("llama"), A)}, ROLLS_BACK),
    "early exit": ({"assistant_early_exit": 1}, ROLLS_BACK),
    "prompt lookup": ({"prompt_lookup_num_tokens": 2}, ROLLS_BACK),
    "contrastive search": ({"penalty_alpha": 0.6, "top_k": 4}, ON_THE_HUB),
    "DoLa": ({"dola_layers": "high"}, ON_THE_HUB),
    "groups of beams": ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0}, ON_THE_HUB),
    "constrained beams": ({"num_beams": 3, "force_words_ids": [[5]]}, ON_THE_HUB),
}


@pytest.mark.parametrize("case", DECODING)
def test_ways_to_decode_that_a_sink_cache_can_not_serve(case):
    (arguments, message), student = DECODING[case], under(model("llama"), A)
    refuses(lambda: student.generate(ids(1, 9), max_new_tokens=3, **arguments), ValueError, message)
    goes_on(student, A)


@pytest.mark.parametrize("spec", [A, Full()], ids=str)
def test_a_student_can_not_assist_its_teacher(spec):
    student = under(model("llama"), spec)
    arguments = {"max_new_tokens": 3, "assistant_model": student}
    refuses(lambda: model("llama").generate(ids(1, 9), **arguments), ValueError, ROLLS_BACK)
    goes_on(student, spec)
