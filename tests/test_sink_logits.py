"""A learned sink logit is a parameter of the student: zero at first, trained, kept, gone with its spec."""

import copy
import json

import oracle
import pytest
import torch
from by_head import HEADS, compute, learned, truth
from oracle import error, ids, in_chunks, model

from swalib import SWA, Full, PerLayer, assert_applied, under
from swalib.canary import NotApplied
from swalib.spec import PerHead, from_dict

L = 37
ZERO = SWA(11, 3, sink_logit=0.0)
LEARNED, LEARNED_TABLE = SWA(11, 3, sink_logit="learned"), SWA([11, 7, 5, 9], 2, sink_logit="learned")
BY_LAYER = PerLayer((LEARNED, SWA(9, 2), PerHead((*LEARNED_TABLE.heads[:3], SWA(7, 1, sink_logit=0.5)))))


def trained(name, spec, dtype=torch.float32):
    """A student whose learned sink logits are no longer 0; its teacher is its own."""
    student = under(copy.deepcopy(model(name)).to(dtype), spec)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in learned(student):
            parameter.copy_(2 * torch.randn(HEADS, generator=generator))
    return student


def by_layer(spec, parameters):
    """One [h] or None for each of the three layers."""
    each = spec.layers if isinstance(spec, PerLayer) else [spec] * 3
    given = iter(parameters)
    return [None if s == SWA(9, 2) else next(given) for s in each]


@pytest.mark.parametrize(
    ("name", "spec", "layers"),
    [("llama", LEARNED, 3), ("qwen2", LEARNED_TABLE, 3), ("llama", BY_LAYER, 2), ("gemma3", LEARNED, 1)],
    ids=str,
)  # fmt: skip
def test_learned_sink_logits_are_the_students_alone_and_start_as_zero_sinks(name, spec, layers):
    teacher = model(name)
    names = list(teacher.state_dict())
    student, zero = under(teacher, spec), json.loads(json.dumps(spec.to_dict()).replace('"learned"', "0.0"))
    assert list(teacher.state_dict()) == names
    assert [parameter.tolist() for parameter in learned(student)] == [[0] * HEADS] * layers
    assert len(student.state_dict()) == len(names) + layers
    exact = truth(name, from_dict(zero), L)
    with torch.no_grad():
        assert error(student(ids(1, L)).logits, exact.logits) <= exact.bound


@pytest.mark.parametrize(
    ("name", "spec"),
    [("llama", LEARNED), ("qwen2", LEARNED_TABLE), ("llama", BY_LAYER),
     ("llama", SWA(11, 3, "cache", sink_logit="learned"))],
    ids=str,
)  # fmt: skip
def test_learned_sink_logits_and_their_gradients_are_the_oracles(name, spec):
    weight = torch.randn(1, L, 97, generator=torch.Generator().manual_seed(1))
    student = trained(name, spec)

    def gradients(logits, parameters):
        return torch.autograd.grad((logits * weight.to(logits.dtype)).sum(), parameters)

    given = learned(student)
    logits = student(ids(1, L)).logits
    got, expected = gradients(logits, given), {}
    for dtype in (torch.float64, torch.float32):
        own = [p.detach().to(dtype).requires_grad_() for p in given]
        outcome = compute(name, spec, ids(1, L), dtype, by_layer(spec, own))
        expected[dtype] = outcome.detach(), gradients(outcome, own)
    (exact, exact_gradients), (rough, rough_gradients) = expected.values()
    assert error(logits.detach(), exact) <= 4 * error(rough, exact)
    with torch.no_grad():
        assert error(in_chunks(student, ids(1, L), [13, 1, 3]), exact) <= 4 * error(rough, exact)
    for ours, true, plain in zip(got, exact_gradients, rough_gradients, strict=True):
        assert error(ours, true) <= 8 * error(plain, true)
        assert int((true.abs() > 1e-3).sum()) == int((ours != 0).sum()) >= 3


def test_learned_sink_logits_survive_under_again_and_go_with_a_spec_that_has_none():
    student = trained("llama", LEARNED)
    again, without, constant = (under(student, s) for s in (LEARNED_TABLE, SWA(7, 1), ZERO))
    assert all(ours is theirs for ours, theirs in zip(learned(again), learned(student), strict=True))
    assert len(learned(again)) == 3
    assert learned(without) == learned(constant) == []
    values = [parameter.tolist() for parameter in learned(student)]
    for other, spec in ((without, SWA(7, 1)), (constant, ZERO)):
        with torch.no_grad():
            assert (
                error(other(ids(1, L)).logits, truth("llama", spec, L).logits)
                <= truth("llama", spec, L).bound
            )
    assert [parameter.tolist() for parameter in learned(student)] == values
    fresh = under(without, LEARNED)
    assert [parameter.tolist() for parameter in learned(fresh)] == [[0] * HEADS] * 3


def test_training_the_sink_logits_leaves_the_teacher_alone():
    student = trained("llama", LEARNED)
    logits = student(ids(1, L)).logits
    optimizer = torch.optim.SGD(learned(student), lr=0.1)
    logits.square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        assert error(student(ids(1, L)).logits, logits) > 1e-3
        plain = under(student, Full())(ids(1, L)).logits
        assert torch.equal(plain, under(model("llama"), Full())(ids(1, L)).logits)


@pytest.mark.parametrize("logit", [0.0, 1, "learned"])
def test_a_model_with_sink_logits_of_its_own_takes_no_others(logit):
    with pytest.raises(ValueError, match="has sink logits of its own, which stay") as caught:
        under(oracle.tiny("gpt_oss"), SWA(11, 3, sink_logit=logit))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", [LEARNED, BY_LAYER], ids=str)
def test_the_canary_tells_learned_logits_from_constant_ones(spec):
    student = trained("llama", spec)
    assert_applied(student, spec)
    constant = json.dumps(spec.to_dict()).replace('"learned"', "0.0")
    for other in (ZERO, SWA(11, 3), from_dict(json.loads(constant))):
        with pytest.raises(NotApplied):
            assert_applied(student, other)
