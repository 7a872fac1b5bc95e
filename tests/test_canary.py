"""The canary passes for what is right, and fails for every way in which it could be wrong."""

import copy

import oracle
import pytest
import torch
from oracle import bloom, model

from swalib import SWA, Full, PerLayer, applied, assert_applied, under
from swalib.attention import sdpa
from swalib.canary import NotApplied
from swalib.sink_layer import SinkLayer
from swalib.step import Step

A = SWA(11, 3)

RIGHT = [
    ("llama", A, "sdpa", torch.float32),
    ("llama", A, "reference", torch.bfloat16),
    ("llama", SWA(11, 3, "cache"), "sdpa", torch.bfloat16),
    ("llama", SWA(1, 0), "sdpa", torch.float32),
    ("llama", SWA(2, 1), "reference", torch.float32),
    ("llama", SWA(149, 4), "sdpa", torch.float32),
    ("qwen2", SWA(7, 6), "sdpa", torch.float32),
    ("qwen2", SWA(7, 6, "cache"), "reference", torch.float64),
    ("mistral", SWA(11, 0), "sdpa", torch.bfloat16),
    ("mistral-local", A, "sdpa", torch.float32),
    ("mistral-local", Full(), "sdpa", torch.float32),
    ("gemma3", A, "sdpa", torch.float32),
    ("gemma3", SWA(11, 3, "cache"), "reference", torch.float32),
    ("gemma3", Full(), "sdpa", torch.float32),
    ("llama", PerLayer((Full(), A, SWA(5, 1))), "sdpa", torch.float32),
    ("llama", PerLayer((A, SWA(5, 1, "cache"), Full())), "sdpa", torch.float32),
]


@pytest.mark.parametrize(("name", "spec", "impl", "dtype"), RIGHT, ids=str)
def test_a_right_student_passes_and_is_left_as_it_was(name, spec, impl, dtype):
    student = under(copy.deepcopy(model(name)).to(dtype), spec, impl)
    before = student(oracle.ids(1, 23)).logits
    hooks = [len(module._forward_pre_hooks) for module in student.modules()]
    assert_applied(student, spec)
    assert [len(module._forward_pre_hooks) for module in student.modules()] == hooks
    assert torch.equal(student(oracle.ids(1, 23)).logits, before)


# -------------------------------------------------------------------------------- another spec than claimed

OFF_BY_ONE = [SWA(12, 3), SWA(10, 3), SWA(11, 2), SWA(11, 4), SWA(12, 4), SWA(10, 2)]


@pytest.mark.parametrize("real", OFF_BY_ONE, ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_window_or_sinks_off_by_one_fail(name, real):
    with (
        applied(model(name), real) as student,
        pytest.raises(NotApplied, match=r"layer \d under SWA\(11, 3\): in (prefill|decode)"),
    ):
        assert_applied(student, A)


@pytest.mark.parametrize(
    ("real", "claimed"),
    [
        (Full(), A),
        (Full(), SWA(1, 0)),
        (SWA(64, 4), A),
        (SWA(11, 0), SWA(11, 1)),
        (SWA(11, 1), SWA(11, 0)),
        (SWA(2, 0), SWA(2, 1)),
        (SWA(2, 0), SWA(1, 0)),
    ],
    ids=str,
)
def test_any_other_window_fails(real, claimed):
    with applied(model("llama"), real) as student, pytest.raises(NotApplied):
        assert_applied(student, claimed)


@pytest.mark.parametrize(
    ("real", "claimed"),
    [
        (A, Full()),
        (PerLayer((A, Full(), A)), PerLayer((Full(), Full(), A))),
        (SWA(11, 3, "cache"), A),
        (A, SWA(11, 3, "cache")),
    ],
    ids=str,
)
def test_a_window_called_full_and_positions_called_by_the_other_name_fail(real, claimed):
    with applied(model("llama"), real) as student, pytest.raises(NotApplied):
        assert_applied(student, claimed)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("wrong", [Full(), SWA(12, 3), SWA(11, 4)], ids=str)
def test_one_wrong_layer_is_enough_and_is_named(layer, wrong):
    layers = [A, A, A]
    layers[layer] = wrong
    with (
        applied(model("llama"), PerLayer(layers)) as student,
        pytest.raises(NotApplied, match=f"layer {layer} under "),
    ):
        assert_applied(student, A)


@pytest.mark.parametrize("name", oracle.MODELS)
def test_the_teacher_fails(name):
    with pytest.raises(NotApplied):
        assert_applied(model(name), A)


def test_the_teacher_of_a_block_fails_inside_it():
    with applied(model("llama"), A) as student:
        student(oracle.ids(1, 3))
        with pytest.raises(NotApplied):
            assert_applied(model("llama"), A)


def test_a_model_of_another_family_is_refused():
    with pytest.raises(ValueError, match="proven here on"):
        assert_applied(bloom(), A)


@pytest.mark.parametrize(
    ("claimed", "error", "message"),
    [
        (None, TypeError, "a spec is"),
        ((11, 3), TypeError, "a spec is"),
        (PerLayer((A,)), ValueError, "PerLayer has 1 specs, but the model has 3 decoder layers"),
    ],
    ids=str,
)
def test_a_claim_that_is_no_spec_is_refused(claimed, error, message):
    with applied(model("llama"), A) as student, pytest.raises(error, match=message):
        assert_applied(student, claimed)


# ---------------------------------------------------------------------------- the library itself made wrong


def broken(spec=A, impl="sdpa"):
    with pytest.raises(NotApplied) as caught:
        assert_applied(under(model("llama"), spec, impl), spec)
    return str(caught.value)


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_nothing_masked(monkeypatch, impl):
    """Case 18: a patch that is a no-op."""
    monkeypatch.setattr("swalib.masks.visible", lambda q_pos, k_pos, spec: (k_pos >= 0) & (k_pos <= q_pos))
    assert "in prefill" in broken(impl=impl)


def test_a_students_attention_put_back_to_transformers_own():
    student = under(model("llama"), A)
    student.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="attention was replaced by 'sdpa'"):
        assert_applied(student, A)


def test_sinks_ignored(monkeypatch):
    """Case 9."""

    def band(q_pos, k_pos, spec):
        return (k_pos >= 0) & (k_pos <= q_pos) & (q_pos - k_pos < spec.recents)

    monkeypatch.setattr("swalib.masks.visible", band)
    assert "key 2" in broken()


@pytest.mark.parametrize(
    ("change", "phase"),
    [(lambda step: step.length > 1, "prefill"), (lambda step: step.length == 1, "decode")],
)
@pytest.mark.parametrize("drop", ["oldest", "sink"])
def test_one_phase_loses_a_key(monkeypatch, change, phase, drop):
    whole = Step.plan

    def plan(step, impl, spec, kept, columns):
        if not change(step):
            return whole(step, impl, spec, kept, columns)
        k_pos = step.k_pos(kept, columns)
        lost = spec.sinks - 1 if drop == "sink" else step.start + step.length - spec.recents
        return sdpa.plan(spec, step.q_pos, k_pos.masked_fill(k_pos == lost, -1))

    monkeypatch.setattr(Step, "plan", plan)
    assert f"in {phase}" in broken()


def test_a_cache_that_keeps_the_wrong_tokens(monkeypatch):
    """Case 6: eviction one token too early shows in decode alone."""
    write = SinkLayer._write

    def wrong(layer, key_states, value_states, left_padding):
        write(layer, key_states, value_states, left_padding)
        if layer.seen_tokens >= layer.spec.window:
            oldest = layer.spec.sinks + (layer.seen_tokens - layer.spec.sinks) % layer.spec.recents
            layer.keys[:, :, oldest] = layer.values[:, :, oldest] = 0

    monkeypatch.setattr(SinkLayer, "_write", wrong)
    assert "decode" in broken()


def test_positions_of_queries_and_keys_that_disagree(monkeypatch):
    """Case 1: in-cache queries one slot off, in decode alone."""
    right = sdpa.query_position
    monkeypatch.setattr(
        "swalib.attention.sdpa.query_position",
        lambda q_pos, spec: right(q_pos, spec) - int(q_pos.shape[-1] == 1),
    )
    assert "decode and prefill differ" in broken(SWA(11, 3, "cache"))
