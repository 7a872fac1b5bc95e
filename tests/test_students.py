"""Teacher and student beside each other: nothing leaks, nothing is left behind, and misuse is one clear sentence."""

import copy
from concurrent.futures import ThreadPoolExecutor

import oracle
import pytest
import torch
from oracle import error, ids, model, truth
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from swalib import SWA, Full, PerLayer, SinkCache, applied, layer_specs, under

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


# --------------------------------------------------------------------------------------------------- nothing leaks


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
    with pytest.raises(KeyError, match="in the block"), applied(teacher, A) as student:
        student(ids(1, 3))
        raise KeyError("in the block")
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
            return [oracle.in_chunks(student, ids(1, L), [13, 3]) for _ in range(3)]

    exact = [truth("llama", spec, 1, L) for spec in specs]
    with ThreadPoolExecutor(4) as pool:
        for results, expected in zip(pool.map(run, specs), exact, strict=True):
            for got in results:
                close(got, expected)


def test_a_student_outlives_its_block():
    with applied(model("llama"), A) as student:
        pass
    close(student(ids(1, L)).logits.detach(), truth("llama", A, 1, L))


# ------------------------------------------------------------------------------------------- gradients and dtypes


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


# ------------------------------------------------------------------------------------------------------------ misuse


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


def gpt2():
    sizes = {
        "n_layer": 1,
        "n_embd": 8,
        "n_head": 2,
        "vocab_size": 11,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **sizes))


WRONG_MODELS = {
    "no model": (lambda: "smollm2", A, TypeError, "goes on a transformers causal LM, got str"),
    "no causal LM": (lambda: model("llama").model, A, TypeError, "goes on a transformers causal LM, got LlamaModel"),
    "family": (gpt2, A, ValueError, "proven here on llama, .*; this model is of type 'gpt2'"),
    "softcap": (
        lambda: oracle.tiny("gemma3", attn_logit_softcapping=30.0), A, ValueError, "caps its attention logits"),
    "both ways": (
        lambda: oracle.tiny("gemma3", use_bidirectional_attention=True), A, ValueError, "attends in both directions"),
    "no spec": (lambda: model("llama"), (64, 4), TypeError, r"a spec is Full\(\), SWA.*got \(64, 4\)"),
    "None": (lambda: model("llama"), None, TypeError, "a spec is .*got None"),
    "layers": (lambda: model("llama"), PerLayer((A,)), ValueError, "PerLayer has 1 specs, but the model has 3"),
    "wider than trained": (
        lambda: model("mistral-local"), SWA(64, 4), ValueError, "60 recents to a layer trained with a local window of 23"),
    "wider than trained, one layer": (
        lambda: model("gemma3"), PerLayer((SWA(9, 1), A, A)), ValueError, "8 recents to a layer trained with .* of 7"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_what_can_not_be_a_student_is_refused_in_one_sentence(case):
    make, spec, kind, message = WRONG_MODELS[case]
    with pytest.raises(kind, match=message) as caught, applied(make(), spec):
        pass
    assert "\n" not in str(caught.value)


def test_an_unknown_impl_is_refused():
    with pytest.raises(ValueError, match="impl must be one of .*got 'flash'"):
        under(model("llama"), A, "flash")


def ones(*shape):
    return torch.ones(*shape, dtype=torch.long)


WRONG_CALLS = {
    "a native cache": (lambda s: s(ids(1, 9), cache=DynamicCache(config=s.config)), TypeError, "was given a DynamicCache"),
    "in generate": (
        lambda s: s.generate(ids(1, 9), max_new_tokens=3, cache=DynamicCache(config=s.config)), TypeError, "was given a DynamicCache"),
    "another spec's cache": (
        lambda s: s(ids(1, 9), cache=SinkCache(layer_specs(s, SWA(9, 3)))), ValueError, "made for other specs"),
    "assisted decoding": (
        lambda s: s.generate(ids(1, 9), max_new_tokens=3, assistant_model=model("mistral-local")), ValueError, "assisted decoding rolls"),
    "prompt lookup": (lambda s: s.generate(ids(1, 9), max_new_tokens=3, prompt_lookup_num_tokens=3), ValueError, "assisted decoding rolls"),
    "a cache by name": (
        lambda s: s.generate(ids(1, 9), max_new_tokens=3, cache_implementation="static"), ValueError, "'static' would replace the sink cache"),
    "a mask of its own": (lambda s: s(ids(1, 9), attention_mask=ones(1, 1, 9, 9)), ValueError, "a padding mask .batch, tok"),
    "masks by layer": (lambda s: s(ids(1, 9), attention_mask={"full_attention": None}), ValueError, "a padding mask"),
    "a short mask": (lambda s: s(ids(1, 9), attention_mask=ones(1, 8)), ValueError, "covers 8 tokens, but there are 9"),
    "packed rows": (lambda s: s(ids(1, 9), position_ids=torch.arange(9)[None] % 5), ValueError, "packed rows"),
    "padding forgotten": (
        lambda s: s(ids(1, 1), cache=s(ids(1, 5), attention_mask=torch.tensor([[0, 1, 1, 1, 1]])).cache),
        ValueError, "holds padded rows: pass the attention_mask of all tokens so far"),
    "padding changed": (
        lambda s: s(ids(1, 1), attention_mask=ones(1, 6),
                    cache=s(ids(1, 5), attention_mask=torch.tensor([[0, 1, 1, 1, 1]])).cache),
        ValueError, "padding of a row changed"),
    "tokens after right padding": (
        lambda s: s(ids(1, 1), attention_mask=torch.tensor([[1, 1, 0, 1]]),
                    cache=s(ids(1, 3), attention_mask=torch.tensor([[1, 1, 0]])).cache),
        ValueError, "has a hole"),
    "right padding forgotten": (
        lambda s: s(ids(1, 1), cache=s(ids(1, 3), attention_mask=torch.tensor([[1, 1, 0]])).cache),
        ValueError, "pass the attention_mask of all tokens so far"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_what_would_silently_be_another_function_is_refused(case):
    call, kind, message = WRONG_CALLS[case]
    with torch.no_grad(), applied(model("mistral-local"), A) as student:
        with pytest.raises(kind, match=message) as caught:
            call(student)
        assert "\n" not in str(caught.value)
        close(student(ids(1, L)).logits, truth("mistral-local", A, 1, L))
