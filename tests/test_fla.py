"""flash-linear-attention twice: its naive functions as oracles of our recurrences, and its kernels as their
impl="fla", which on a CPU can only be refused, or called by name with the naive functions in their place."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fla_calls import naive, needs_fla, stand_in, turned
from oracle import ids, in_chunks
from recurrence_oracle import CALLS, NAMES, call, inputs

from swalib import convert
from swalib.linear import METHODS, _fla, config_class, mixer_class
from swalib.linear import recurrences as r
from swalib.linear.recurrences import State
from swalib.models import tiny

SCALE = 0.3


def halves(t, dtype=torch.float32, seed=0):
    return {name: x.to(dtype) for name, x in inputs(t, seed).items()}


def near(got, wanted, eps=3e-6):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=eps * float(wanted.abs().max()))


# ---------------------------------------------------------------------------------------------------- oracles

DELTA = ("delta_rule/naive.py", "generalized_delta_rule/dplr/naive.py")
CHUNKS = {
    "plain": lambda x: turned(
        naive("linear_attn/naive.py", "naive_chunk_linear_attn")(*turned(x["q"], x["k"], x["v"]), scale=1.0)
    )[0],
    "scalar": lambda x: turned(
        naive("simple_gla/naive.py", "naive_chunk_simple_gla")(*turned(*(x[n] for n in "qkvg")), scale=1.0)[0]
    )[0],
    "scalar, parallel": lambda x: turned(
        naive("simple_gla/naive.py", "naive_parallel_simple_gla")(
            *turned(*(x[n] for n in "qkvg")), scale=1.0
        )[0]
    )[0],
    "rwkv6": lambda x: naive("rwkv6/chunk_naive.py", "naive_chunk_rwkv6")(
        *(x[n] for n in ("q", "k", "v", "gates", "u"))
    ),
    "delta": lambda x: naive(DELTA[0], "delta_rule_chunkwise")(
        x["q"] * x["q"].shape[-1] ** 0.5, *(x[n] for n in ("unit", "v", "beta"))
    )[0],
    "gated delta": lambda x: turned(
        naive("gated_delta_rule/naive.py", "naive_chunk_gated_delta_rule")(
            *turned(*(x[n] for n in ("q", "unit", "v", "g", "beta"))), scale=1.0
        )[0]
    )[0],
    "rwkv7": lambda x: naive(DELTA[1], "dplr_chunkwise")(
        x["q"] * x["q"].shape[-1] ** 0.5,
        *(x["k"], x["v"], -x["unit"], x["unit"] * x["a"], x["gates"]),
    )[0],
}


@needs_fla
@pytest.mark.parametrize("name", CHUNKS)
def test_its_chunked_references_agree(name):
    x = halves(64)
    wanted = CHUNKS[name](x)
    for form in ("chunked", "recurrent"):
        near(CALLS[name.partition(",")[0]](x, form=form)[0], wanted, 2e-5)


@needs_fla
def test_its_normalised_linear_attention_agrees():
    x = {name: tensor.float() for name, tensor in inputs(23).items()}
    function = naive("linear_attn/naive.py", "naive_recurrent_linear_attn")
    q, k, v = x["q"].abs(), x["k"].abs(), x["v"]
    before = (x["s"], x["z"][:, None])
    o, (s, z) = function(
        *turned(q, k, v), scale=1.0, initial_state=before, output_final_state=True, normalize=True
    )
    got, state = r.linear_attention(q, k, v, normalised=True, eps=1e-10, state=State(x["s"], x["z"]))
    near(got, o.transpose(1, 2))
    near(state.S, s)
    near(state.z, z[:, 0])


# ---------------------------------------------------------------------------------- impl="fla" on the CPU


@pytest.fixture
def on_cpu(monkeypatch):
    """The naive references in the kernels' place; the names of those that were called."""
    called = []

    def function(module, name):
        called.append(name)
        return stand_in(module, name)

    monkeypatch.setattr(_fla, "_function", function)
    monkeypatch.setattr(_fla, "_check_device", lambda v: None)
    return called


@needs_fla
@pytest.mark.parametrize("form", ["chunked", "recurrent"])
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_given_what_the_recurrence_is(name, form, on_cpu):
    """And so gives its output and state: tensors, layout, scale, the state from before, and every option."""
    x = halves(19, torch.bfloat16 if name == "delta" and form == "chunked" else torch.float32)
    near_enough = 3e-6 if x["q"].dtype == torch.float32 else 2**-7
    x |= {"s": x["s"].float(), "z": x["z"].float()}
    wanted, last = call(name, x, scale=SCALE)
    o, state = call(name, x, scale=SCALE, form=form, impl="fla")
    near(o, wanted, near_enough)
    near(state.S, last.S, near_enough)
    assert (o.dtype, state.S.dtype) == (wanted.dtype, torch.float32)
    assert on_cpu[-1].startswith("chunk_" if form == "chunked" else "fused_recurrent_")


@needs_fla
def test_gates_of_size_1_are_spread_and_half_precision_keeps_gates_whole(on_cpu, monkeypatch):
    x = halves(9)
    near(
        call("scalar", x | {"g": x["g"][:1, :, :1]}, impl="fla")[0],
        call("scalar", x | {"g": x["g"][:1, :, :1]})[0],
    )
    given = {}
    monkeypatch.setattr(
        _fla, "_function", lambda *place: lambda **g: given.update(g) or stand_in(*place)(**g)
    )
    low = {name: tensor.bfloat16() for name, tensor in x.items()}
    call("gla", low | {"gates": x["gates"], "q": x["q"]}, impl="fla")
    kinds = {name: given[name].dtype for name in ("q", "k", "v", "g")}
    assert kinds == dict.fromkeys("qkv", torch.bfloat16) | {"g": torch.float32}


@needs_fla
@torch.no_grad()
@pytest.mark.parametrize("method", [m for m in METHODS if mixer_class(m).kernels])
def test_a_student_on_its_kernels_is_the_same_student(method, on_cpu):
    options = {"window": 6} if method == "liger" else {}
    teacher, rows = tiny("qwen2", num_hidden_layers=2), ids(2, 17)
    students = []
    for impl in ("torch", "fla"):
        torch.manual_seed(0)
        students.append(convert(teacher, config_class(method)(**options), linear_impl=impl))
    wanted, got = (student(rows).logits for student in students)
    assert [name.partition("_")[0] for name in on_cpu] == ["chunk"] * 2
    near(got, wanted, 2e-5)
    on_cpu.clear()
    near(in_chunks(students[1], rows, [16, 1]), wanted, 2e-5)
    assert [name.partition("_")[0] for name in on_cpu] == ["chunk"] * 2 + ["fused"] * 2


# ------------------------------------------------------------------------------------------------ refusals


def torch_call(**options):
    x = halves(5, options.pop("dtype", torch.float32))
    return r.linear_attention(x["q"], x["k"], x["v"], impl="fla", **options)


@needs_fla
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, RuntimeError, r'impl="fla" runs on a GPU and these tensors lie on the CPU: move the model'),
        ({"form": "parallel"}, ValueError, r"has no parallel form"),
        ({"dtype": torch.float64}, ValueError, r"linear_attn takes bfloat16, float16 or float32, got .*64"),
    ],
)
def test_what_kernels_cannot_do_is_refused(options, kind, message):
    with pytest.raises(kind, match=message) as caught:
        torch_call(**options)
    assert "\n" not in str(caught.value)


@needs_fla
def test_the_delta_rules_chunks_are_for_half_precision():
    with pytest.raises(ValueError, match=r"delta_rule takes bfloat16, float16, got torch.float32: cast"):
        call("delta", halves(5), impl="fla")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_fla, "find_spec", lambda name: None if name == "fla" else name)
    monkeypatch.setattr(_fla, "_check_device", lambda v: None)
    _fla._function.cache_clear()
    for attempt in (torch_call, lambda: convert(tiny("llama"), config_class("gla")(), linear_impl="fla")):
        with pytest.raises(ImportError, match=r"there is no fla: pip install fla-core einops triton, or"):
            attempt()


def test_an_unknown_impl_and_a_method_without_a_kernel_are_refused():
    with pytest.raises(ValueError, match=r"impl must be one of \['torch', 'fla'\], got 'cuda'"):
        convert(tiny("llama"), config_class("gla")(), linear_impl="cuda")
    with pytest.raises(ValueError, match=r"has no kernel for lolcats, whose window and linear part"):
        convert(tiny("llama"), config_class("lolcats")(), linear_impl="fla")


@needs_fla
def test_a_student_on_the_cpu_is_refused_when_it_runs():
    student = convert(tiny("llama"), config_class("gla")(), linear_impl="fla")
    with pytest.raises(RuntimeError, match="these tensors lie on the CPU"):
        student(ids(1, 3))


# --------------------------------------------------------------------------------------------- the kernels


@pytest.mark.slow
@needs_fla
def test_the_recurrent_kernels_themselves_interpreted():
    """Triton runs them on the CPU where TRITON_INTERPRET is set before it is imported: in a process of its
    own."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("fla_interpreted.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(" agrees") == len(NAMES)


@pytest.mark.gpu
@needs_fla
@pytest.mark.parametrize("form", ["chunked", "recurrent"])
@pytest.mark.parametrize("t", [1, 63, 500])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_on_the_gpu(name, t, form):
    """In bf16, no further from fp64 than four times our own chunked form, or a rounding."""
    x = {label: y.cuda() for label, y in on_gpu_sizes(t).items()}
    low = {label: y.to(torch.bfloat16) for label, y in x.items()}
    low |= {label: x[label].float() for label in ("g", "gates", "s", "z")}
    exact, last = call(name, {label: y.double() for label, y in low.items()}, scale=SCALE)
    ours, own = call(name, low, scale=SCALE)
    o, state = call(name, low, scale=SCALE, form=form, impl="fla")
    for got, mine, wanted in ((o, ours, exact), (state.S, own.S, last.S)):
        error, allowed = (float((y.double() - wanted).abs().max()) for y in (got, mine))
        assert error <= 4 * allowed + 2**-7 * float(wanted.abs().max())


def on_gpu_sizes(t):
    """As `inputs`, with heads of 64, which kernels are made for."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape):
        return torch.randn(2, 3, *shape, generator=generator, dtype=torch.float64)

    x = {"q": noise(t, 64) / 8, "k": noise(t, 64) / 8, "v": noise(t, 64), "g": -noise(t).abs() / 4}
    x |= {"gates": -noise(t, 64).abs() / 4, "u": noise(3, 64)[0, 0], "beta": noise(t).sigmoid()}
    x |= {"a": noise(t, 64).sigmoid(), "unit": torch.nn.functional.normalize(noise(t, 64), dim=-1)}
    return x | {"s": noise(64, 64) / 8, "z": noise(64).abs()}
