"""Misuse is one clear sentence, raised at the boundary, and leaves the student as it was."""

import oracle
import pytest
import torch
from oracle import bloom, error, ids, model, truth
from transformers import DynamicCache

from swalib import SWA, PerLayer, SinkCache, applied, layer_specs, prefill, under

A, B = SWA(11, 3), SWA(5, 0)


def test_a_block_that_runs_the_model_and_never_its_student_is_an_error():
    for run in (lambda m: m(ids(1, 3)), lambda m: m.generate(ids(1, 3), max_new_tokens=2)):
        with (
            pytest.raises(
                RuntimeError, match=r"never its student: write `with applied.* as student:` and run `student`"
            ),
            applied(model("llama"), A),
        ):
            run(model("llama"))


def test_blocks_that_run_something_else_or_nothing_are_fine():
    with applied(model("llama"), A):
        model("qwen2")(ids(1, 3))
    with applied(model("llama"), A), applied(model("llama"), B) as inner:
        inner(ids(1, 3))
    with applied(model("llama"), A) as outer, applied(outer, B) as inner:
        inner(ids(1, 3))


def test_prefill_takes_students_alone():
    with pytest.raises(TypeError, match="prefill reads through a student"):
        prefill(model("llama"), ids(1, 5))


def gemma3(**settings):
    return lambda: oracle.tiny("gemma3", **settings)


WRONG_MODELS = {
    "no model": (lambda: "smollm2", A, TypeError, "goes on a transformers causal LM, got str"),
    "no causal LM": (lambda: model("llama").model, A, TypeError, "transformers causal LM, got LlamaModel"),
    "another family": (bloom, A, ValueError, "proven here on .*llama, .*; this model's type is 'bloom'"),
    "both ways": (gemma3(use_bidirectional_attention=True), A, ValueError, "attends in both directions"),
    "no spec": (lambda: model("llama"), (64, 4), TypeError, r"a spec is Full\(\), SWA.*got \(64, 4\)"),
    "None": (lambda: model("llama"), None, TypeError, "a spec is .*got None"),
    "layers": (lambda: model("llama"), PerLayer((A,)), ValueError, "has 1 specs, but the model has 3"),
    "wider than trained": (
        lambda: model("mistral-local"), SWA(64, 4),
        ValueError, "60 recents to a layer trained with .* of 23"),
    "wider than trained, one layer": (
        lambda: model("gemma3"), PerLayer((SWA(9, 1), A, A)),
        ValueError, "8 recents to a layer trained .* of 7"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_what_can_not_be_a_student_is_refused_in_one_sentence(case):
    make, spec, kind, message = WRONG_MODELS[case]
    with pytest.raises(kind, match=message) as caught, applied(make(), spec):
        pass
    assert "\n" not in str(caught.value)


def test_an_unknown_impl_is_refused():
    with pytest.raises(ValueError, match=r"impl must be one of .*got 'eager'"):
        under(model("llama"), A, "eager")


def rows(*masks):
    return torch.tensor(masks)


def padded(student, mask):
    """The cache of a row of as many tokens as its mask has."""
    return student(ids(1, len(mask)), attention_mask=rows(mask)).cache


def generate(**arguments):
    return lambda student: student.generate(ids(1, 9), max_new_tokens=3, **arguments)


def native(student):
    return DynamicCache(config=student.config)


LEFT, RIGHT = [0, 1, 1, 1, 1], [1, 1, 0]
WRONG_CALLS = {
    "a native cache": (lambda s: s(ids(1, 9), cache=native(s)), TypeError, "was given a DynamicCache"),
    "a native cache in generate": (
        lambda s: generate(cache=native(s))(s), TypeError, "was given a DynamicCache"),
    "another spec's cache": (
        lambda s: s(ids(1, 9), cache=SinkCache(layer_specs(s, SWA(9, 3)))),
        ValueError, "made for other specs"),
    "assisted decoding": (
        lambda s: generate(assistant_model=model("qwen2"))(s),
        ValueError, "assisted decoding rolls the cache"),
    "prompt lookup": (generate(prompt_lookup_num_tokens=3), ValueError, "assisted decoding rolls the cache"),
    "a cache by name": (
        generate(cache_implementation="static"), ValueError, "'static' would replace the sink cache"),
    "a mask of its own": (
        lambda s: s(ids(1, 9), attention_mask=torch.ones(1, 1, 9, 9)), ValueError, "takes a padding mask"),
    "masks by layer": (
        lambda s: s(ids(1, 9), attention_mask={"full_attention": None}),
        (TypeError, ValueError), "padding mask"),
    "a short mask": (
        lambda s: s(ids(1, 9), attention_mask=torch.ones(1, 8)),
        ValueError, "covers 8 tokens of 1 rows, but there are 9"),
    "packed rows": (
        lambda s: s(ids(1, 9), position_ids=torch.arange(9)[None] % 5), ValueError, "packed rows"),
    "padding forgotten": (
        lambda s: s(ids(1, 1), cache=padded(s, LEFT)), ValueError, "pass the attention_mask of all tokens"),
    "padding changed": (
        lambda s: s(ids(1, 1), attention_mask=rows([1] * 6), cache=padded(s, LEFT)),
        ValueError, "row changed"),
    "tokens after right padding": (
        lambda s: s(ids(1, 1), attention_mask=rows([*RIGHT, 1]), cache=padded(s, RIGHT)),
        ValueError, "a hole"),
    "right padding forgotten": (
        lambda s: s(ids(1, 1), cache=padded(s, RIGHT)), ValueError, "pass the attention_mask of all tokens"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_what_would_silently_be_another_function_is_refused(case):
    call, kind, message = WRONG_CALLS[case]
    with torch.no_grad(), applied(model("mistral-local"), A) as student:
        with pytest.raises(kind, match=message) as caught:
            call(student)
        assert "\n" not in str(caught.value)
        exact = truth("mistral-local", A, 1, 37)
        assert error(student(ids(1, 37)).logits, exact.logits) <= exact.bound
