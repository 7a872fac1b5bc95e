"""A student trained, in half precision, compiled, copied, pickled: still SWA(w, s), still its teacher's."""

import copy
import io
import pickle

import oracle
import pytest
import torch
from by_head import learned
from oracle import error, ids, in_chunks, literal, model, truth
from test_uses import SIDES, padded

from swalib import SWA, SinkCache, applied, assert_applied, under

L = 37
A, IN_CACHE = SWA(11, 3), SWA(11, 3, positions="cache")
GREEDY = {"max_new_tokens": 9, "do_sample": False}


def own(name="llama", **settings):
    """A teacher that a test may change."""
    family, fixed = oracle.MODELS[name]
    return oracle.tiny(family, **fixed, **settings)


def gradients(network, tokens, labels=None, **arguments):
    network.zero_grad()
    network(tokens, labels=tokens if labels is None else labels, **arguments).loss.backward()
    return [parameter.grad.clone() for parameter in network.parameters()]


# --------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_step_through_the_student_trains_the_teachers_own_parameters(name):
    """Gradients arrive where the oracle's do; after a step the student is the stepped teacher under SWA."""
    teacher, tokens = own(name), ids(2, 23)
    with (
        oracle.masked(model(name), A, 23) as plain,
        oracle.masked(copy.deepcopy(model(name)).double(), A, 23) as e,
    ):
        rough, exact = gradients(plain, tokens, use_cache=False), gradients(e, tokens, use_cache=False)
    student = under(teacher, A)
    student(tokens, labels=tokens).loss.backward()
    for parameter, plain, true in zip(teacher.parameters(), rough, exact, strict=True):
        assert error(parameter.grad, true) <= 8 * error(plain, true)
    before = student(tokens).logits
    torch.optim.SGD(teacher.parameters(), lr=0.1).step()
    with torch.no_grad():
        after, right = student(tokens).logits, literal(teacher, tokens, A)
        assert error(after, right) <= 4 * error(oracle.eager(teacher, tokens, A), right)
        assert error(after, before.detach()) > 1e-2


def test_the_gradient_of_a_padded_batch_is_the_sum_over_its_rows():
    """Of a loss over each row's own tokens: padding on either side adds nothing, and no NaN."""
    sides = [(9, 5), (0, 0), (21, 14)]
    tokens, mask = padded(sides)
    first = mask & (mask.cumsum(1) == 1)  # nothing of the row predicts it
    got = gradients(under(own(), A), tokens, tokens.where(mask & ~first, -100), attention_mask=mask)
    sums = {}
    for dtype in (torch.float64, torch.float32):
        plain, count = copy.deepcopy(model("llama")).to(dtype), int((mask & ~first).sum())
        sums[dtype] = [torch.zeros_like(parameter) for parameter in plain.parameters()]
        for row, (before, after) in enumerate(sides):
            text = tokens[row : row + 1, before : L - after]
            with oracle.masked(plain, A, text.shape[1]) as alone:
                parts = gradients(alone, text, use_cache=False)
            for whole, part in zip(sums[dtype], parts, strict=True):
                whole += part * (text.shape[1] - 1) / count
    for ours, true, plain in zip(got, *sums.values(), strict=True):
        assert error(ours, true) <= 8 * error(plain, true)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("where", ["student", "teacher before", "not reentrant"])
def test_activation_checkpointing_changes_nothing(name, where):
    teacher, tokens = own(name), ids(2, 23)
    plain = gradients(under(teacher, A).train(), tokens)
    if where == "teacher before":
        teacher.activation_checkpointing_enable()
    student = under(teacher, A).train()
    if where != "teacher before":
        student.activation_checkpointing_enable(
            {"use_reentrant": False} if where == "not reentrant" else None
        )
        assert not teacher.is_activation_checkpointing
    assert student.is_activation_checkpointing
    calls = []
    student.model.layers[1].self_attn.register_forward_pre_hook(lambda *_: calls.append(1))
    for ours, theirs in zip(gradients(student, tokens), plain, strict=True):
        assert torch.equal(ours, theirs)
    assert len(calls) == 2  # forward, and again on the way back: else nothing was checkpointed


def test_train_and_eval_belong_to_the_student():
    teacher = own(attention_dropout=0.5)
    student = under(teacher, A)
    student.train()
    assert not teacher.training
    logits = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        logits.append(student(ids(1, 23)).logits)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    student.eval()
    with torch.no_grad():
        assert (
            error(student(ids(1, L)).logits, truth("llama", A, 1, L).logits) <= truth("llama", A, 1, L).bound
        )
    assert under(teacher.train(), A).training


@pytest.mark.parametrize("spec", [A, IN_CACHE, SWA(11, 3, sink_logit=0.5)], ids=str)
def test_attention_dropout_is_the_configs(spec):
    """All weights dropped: attention gives zeros, in the student as in the teacher."""
    teacher = own(attention_dropout=1.0).train()
    assert torch.equal(under(teacher, spec)(ids(1, 23)).logits, teacher(ids(1, 23)).logits)
    with pytest.raises(ValueError, match='impl="reference" has no attention dropout'):
        under(teacher, spec, "reference")(ids(1, 23))


# ----------------------------------------------------------------------------------------------- half a float


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "spec", "impl"),
    [("llama", A, "sdpa"), ("gemma3", A, "sdpa"), ("qwen2", SWA(7, 6), "reference"),
     ("llama", IN_CACHE, "sdpa")],
    ids=str,
)  # fmt: skip
def test_half_precision_strays_no_further_than_the_oracle_in_it(name, spec, impl, dtype):
    """Padded on both sides, whole and in pieces; finite everywhere, where no key is seen too."""
    teacher, (tokens, mask) = copy.deepcopy(model(name)).to(dtype), padded(SIDES)
    text = SWA(spec.window, spec.sinks)
    with applied(teacher, spec, impl) as student, torch.no_grad():
        whole = student(tokens, attention_mask=mask, use_cache=False).logits
        pieces = in_chunks(student, tokens, [8, 3, 1], mask=mask)
        strayed = {"plain": [], "whole": [], "pieces": []}
        for row, (before, after) in enumerate(SIDES):
            alone = tokens[row : row + 1, before : L - after]
            exact, plain = literal(teacher, alone, spec)[0], literal(teacher, alone, text)[0]
            strayed["plain"].append(oracle.eager(teacher, alone, text)[0] - plain)
            for name_, got in (("whole", whole), ("pieces", pieces)):
                strayed[name_].append(got[row, before : L - after] - exact)
    rms = {kind: float(torch.cat(parts).square().mean().sqrt()) for kind, parts in strayed.items()}
    assert whole.dtype == pieces.dtype == dtype
    assert bool(torch.isfinite(whole).all() and torch.isfinite(pieces).all())
    assert max(rms["whole"], rms["pieces"]) <= 2 * rms["plain"]


# --------------------------------------------------------------------------------------- copied and pickled


def pickled(student):
    return pickle.loads(pickle.dumps(student))


def torch_saved(student):
    file = io.BytesIO()
    torch.save(student, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("spec", [A, IN_CACHE, SWA([11, 7, 5, 9], 2, sink_logit="learned")], ids=str)
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, torch_saved])
def test_a_copy_is_a_student_of_its_own(copied, spec):
    student = under(own(), spec)
    for parameter in learned(student):
        parameter.data.normal_(generator=torch.Generator().manual_seed(0))
    logits, sequences = student(ids(1, L)).logits, student.generate(ids(1, 13), **GREEDY)
    other = copied(student)
    out = other.generate(ids(1, 13), return_dict_in_generate=True, **GREEDY)
    assert type(out.cache) is SinkCache
    assert torch.equal(out.sequences, sequences)
    assert_applied(other, spec)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(student(ids(1, L)).logits, logits)
    assert not other(ids(1, L)).logits.any()
    assert torch.equal(student.generate(ids(1, 13), **GREEDY), sequences)


# -------------------------------------------------------------------------------------------------- compiled


@pytest.fixture
def compiler():
    """A compiler that has seen nothing yet."""
    torch.compiler.reset()
    yield torch.compile
    torch.compiler.reset()


@pytest.mark.parametrize("beside", ["students", pytest.param("their teacher", marks=pytest.mark.slow)])
def test_compiled_students_side_by_side(compiler, beside):
    """The same code under two specs, or one and none: no spec is lost, or taken for a constant."""
    teacher, logits = own(num_hidden_layers=1), []
    runners = [under(teacher, A), under(teacher, SWA(5, 0)) if beside == "students" else teacher]
    compiled = [compiler(runner, backend="eager") for runner in runners]
    with torch.no_grad():
        for fast, runner in zip(compiled, runners, strict=True):
            logits.append(in_chunks(fast, ids(1, 17), [9, 1]))
            assert torch.equal(logits[-1], in_chunks(runner, ids(1, 17), [9, 1]))
        for fast, first in zip(compiled, logits, strict=True):  # when all of them are compiled
            assert torch.equal(in_chunks(fast, ids(1, 17), [9, 1]), first)
    assert not torch.equal(*logits)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [A, IN_CACHE, SWA([11, 7, 5, 9], 2, sink_logit="learned")], ids=str)
def test_a_compiled_student_generates_pads_and_learns(compiler, spec):
    teacher = own(num_hidden_layers=2)
    student, (tokens, mask) = under(teacher, spec), padded(SIDES)
    fast = compiler(student, backend="aot_eager")
    with torch.no_grad():
        for sizes in ([29], [9, 1], [9, 3]):
            assert torch.equal(in_chunks(fast, ids(1, 29), sizes), in_chunks(student, ids(1, 29), sizes))
        batch = {"attention_mask": mask}
        assert torch.equal(fast(tokens, **batch).logits, student(tokens, **batch).logits)
        assert torch.equal(fast.generate(ids(1, 13), **GREEDY), student.generate(ids(1, 13), **GREEDY))
    for ours, theirs in zip(gradients(fast, ids(1, 23)), gradients(student, ids(1, 23)), strict=True):
        assert torch.equal(ours, theirs)


def test_a_model_whose_forward_was_replaced_gives_no_student_that_runs_the_model():
    """`model.forward = torch.compile(model.forward)` is bound to that model, and so would be a copy of it."""
    teacher = own(num_hidden_layers=1)
    teacher.forward = torch.compile(teacher.forward, backend="eager")
    with pytest.raises(ValueError, match="forward") as caught:
        under(teacher, A)
    assert "\n" not in str(caught.value)
