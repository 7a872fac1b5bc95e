"""Teacher and student beside each other: nothing leaks, nothing is left behind, gradients and dtypes hold."""

import copy
from concurrent.futures import ThreadPoolExecutor

import oracle
import pytest
import torch
from oracle import error, ids, model, truth

from swalib import SWA, Full, PerLayer, applied, under

L, A, B = 37, SWA(11, 3), SWA(5, 0)


def close(got, exact, rows=slice(None)):
    assert error(got, exact.logits[:, rows]) <= exact.bound


def snapshot(teacher):
    """Everything of a model that a student could have changed."""
    modules = [
        (name, sorted(vars(module)), len(module._forward_pre_hooks))
        for name, module in teacher.named_modules()
    ]
    tensors = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in teacher.state_dict().items()}
    return (
        teacher.config.to_dict(),
        teacher.config._attn_implementation,
        modules,
        sorted(vars(teacher)),
        tensors,
    )


def assert_unchanged(before, after):
    assert before[:4] == after[:4]
    for name, (place, tensor) in before[4].items():
        assert place == after[4][name][0]
        assert torch.equal(tensor, after[4][name][1])


# -------------------------------------------------------------------------------------------- nothing leaks


@pytest.mark.parametrize("name", ["llama", "mistral-local", "gemma3"])
@pytest.mark.parametrize("spec", [A, SWA(11, 3, "cache")], ids=str)
def test_the_teacher_is_bit_identical_inside_the_block_and_after(name, spec):
    """Case 18: no class-level patch, no changed config, no hook left behind."""
    teacher, other = (
        copy.deepcopy(model(name)),
        oracle.tiny(*oracle.MODELS[name][:1], 1, **oracle.MODELS[name][1]),
    )
    tokens = ids(1, L)
    before, states = [m(tokens).logits for m in (teacher, other)], [snapshot(m) for m in (teacher, other)]
    with applied(teacher, spec) as student, torch.no_grad():
        assert not torch.equal(student(tokens).logits, before[0])
        inside = [m(tokens).logits for m in (teacher, other)]
        student.generate(tokens, max_new_tokens=3)
    after = [m(tokens).logits for m in (teacher, other)]
    for m in range(2):
        assert torch.equal(before[m], inside[m])
        assert torch.equal(before[m], after[m])
        assert_unchanged(states[m], snapshot((teacher, other)[m]))
    assert torch.equal(
        teacher.generate(tokens, max_new_tokens=3), model(name).generate(tokens, max_new_tokens=3)
    )


def test_the_teacher_is_unchanged_after_an_exception():
    teacher = copy.deepcopy(model("llama"))
    state = snapshot(teacher)
    with pytest.raises(IndexError), applied(teacher, A) as student:
        student(torch.full((1, 3), 10_000))
    assert_unchanged(state, snapshot(teacher))


def test_a_student_shares_every_tensor():
    teacher = model("gemma3")
    student = under(teacher, A)
    places = {name: tensor.data_ptr() for name, tensor in teacher.state_dict().items()}
    assert {name: tensor.data_ptr() for name, tensor in student.state_dict().items()} == places
    assert all(
        ours is theirs for ours, theirs in zip(student.parameters(), teacher.parameters(), strict=True)
    )


def test_students_of_one_teacher_live_side_by_side():
    with applied(model("llama"), A) as a, applied(model("llama"), B) as b, torch.no_grad():
        caches = {}
        for start in range(0, L, 5):  # interleaved, piece by piece
            for student, spec in ((a, A), (b, B), (model("llama"), Full())):
                out = student(ids(1, L)[:, start : start + 5], cache=caches.get(spec))
                caches[spec] = out.cache
                exact = truth("llama", spec, 1, L)
                assert error(out.logits, exact.logits[:, start : start + 5]) <= exact.bound


@pytest.mark.parametrize("inner", [B, Full(), SWA(11, 3, "cache"), PerLayer((A, Full(), B))], ids=str)
def test_a_student_of_a_student_is_under_the_new_spec(inner):
    with (
        torch.no_grad(),
        applied(model("llama"), SWA(7, 1, "cache")) as a,
        applied(a, inner, "reference") as b,
    ):
        close(b(ids(1, L)).logits, truth("llama", inner, 1, L))
        close(a(ids(1, L)).logits, truth("llama", SWA(7, 1, "cache"), 1, L))


def test_threads():
    specs = [A, B, SWA(11, 3, "cache"), Full(), SWA(7, 6), A]

    def run(spec):
        with torch.no_grad(), applied(model("llama"), spec) as student:
            return [oracle.in_chunks(student, ids(1, L), [13, 8]) for _ in range(3)]

    exact = [truth("llama", spec, 1, L) for spec in specs]
    with ThreadPoolExecutor(4) as pool:
        for results, expected in zip(pool.map(run, specs), exact, strict=True):
            for got in results:
                close(got, expected)


def test_a_student_outlives_its_block():
    with applied(model("llama"), A) as student:
        pass
    close(student(ids(1, L)).logits.detach(), truth("llama", A, 1, L))


# ------------------------------------------------------------------------------------- gradients and dtypes


def gradients(network, tokens, weight, **arguments):
    loss = (network(tokens, **arguments).logits * weight.to(network.dtype)).sum()
    return torch.autograd.grad(loss, list(network.parameters()))


@pytest.mark.parametrize("use_cache", [False, True], ids=["", "use_cache"])
@pytest.mark.parametrize(("name", "impl"), [("llama", "sdpa"), ("qwen2", "reference"), ("gemma3", "sdpa")])
def test_gradients_are_the_oracles(name, impl, use_cache):
    tokens, weight = ids(2, 23), torch.randn(2, 23, 97, generator=torch.Generator().manual_seed(0))
    with (
        oracle.masked(copy.deepcopy(model(name)).double(), A, 23) as exact,
        oracle.masked(model(name), A, 23) as rough,
    ):
        expected = gradients(exact, tokens, weight, use_cache=False)
        plain = gradients(rough, tokens, weight, use_cache=False)
    with applied(model(name), A, impl) as student:
        got = gradients(student, tokens, weight, use_cache=use_cache)
    for ours, eager, true in zip(got, plain, expected, strict=True):
        assert error(ours, true) <= 8 * error(eager, true)


@pytest.mark.parametrize("size", [1, 3])
def test_a_token_decoded_under_autograd_keeps_its_gradient(size):
    """The gradient of the new tokens' logits by their embeddings, which no earlier key depends on."""
    tokens, embed = ids(1, 23), model("llama").get_input_embeddings()

    def last(network, embedded, **arguments):
        new = embedded.detach()[:, -size:].requires_grad_()
        whole = torch.cat([embedded.detach()[:, :-size], new], 1)
        logits = network(inputs_embeds=whole if not arguments else new, **arguments).logits[:, -size:]
        return torch.autograd.grad((logits**2).sum(), new)[0]

    with oracle.masked(model("llama"), A, 23) as plain:
        expected = last(plain, embed(tokens))
    with applied(model("llama"), A) as student:
        with torch.no_grad():
            cache = student(tokens[:, :-size]).cache
        got = last(student, embed(tokens), cache=cache)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [(A, [23]), (A, [1]), (SWA(11, 3, "cache"), [13, 3]), (SWA(11, 3, "cache"), [17, 1])],
    ids=str,
)
def test_bf16_strays_no_further_than_plain_bf16(spec, sizes):
    teacher, tokens = copy.deepcopy(model("llama")).bfloat16(), ids(2, 23)
    exact, text = oracle.literal(teacher, tokens, spec), oracle.literal(teacher, tokens, A)
    plain = oracle.eager(teacher, tokens, A) - text
    with applied(teacher, spec) as student, torch.no_grad():
        got = oracle.in_chunks(student, tokens, sizes)
    assert got.dtype == torch.bfloat16
    assert (got - exact).square().mean().sqrt() <= 2 * plain.square().mean().sqrt()
