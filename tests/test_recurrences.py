"""Recurrences against double loops in fp64 written from each formula."""

from functools import cache

import pytest
import torch
from recurrence_oracle import CALLS, D_V, NAMES, B, F, H, call, error, expected, inputs, literal, near

from swalib.linear import recurrences as r
from swalib.linear.recurrences import FORMS, State

# ------------------------------------------------------------------------------------------ forms and splits


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("t", [1, 2, 3, 15, 16, 17, 37])
@pytest.mark.parametrize("name", NAMES)
def test_each_form_is_the_double_loop(name, t, form):
    o, state = call(name, inputs(t), form=form, scale=0.3, chunk_tokens=8)
    wanted, s = expected(name, t)
    near(o, wanted)
    near(state.S, s)
    assert (state.z is None) == (name != "normalised")


@pytest.mark.parametrize("chunk_tokens", [1, 3, 5, 64])
@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_any_size(name, chunk_tokens):
    near(call(name, inputs(37), scale=0.3, chunk_tokens=chunk_tokens)[0], expected(name, 37)[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parts", [(32, 32), (63, 1), (1, 63), (13, 0, 51), (7, 8, 9, 40)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_parts_that_hand_the_state_over_are_the_whole(name, parts, form):
    """Case 12."""
    x = inputs(64)
    whole, last = call(name, x, form="recurrent")
    state, outputs, start = State(x["s"], x["z"] if name == "normalised" else None), [], 0
    for size in parts:
        piece = {n: v[:, :, start : start + size] if v.shape[2:3] == (64,) else v for n, v in x.items()}
        o, state = CALLS[name](piece, state=state, form=form, chunk_tokens=16)
        assert o.shape == (B, H, size, D_V)
        outputs.append(o)
        start += size
    near(torch.cat(outputs, dim=2), whole)
    near(state.S, last.S)
    if name == "normalised":
        near(state.z, x["z"] + x["k"].abs().sum(2))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_no_state_is_a_zero_state_and_a_given_one_is_left_alone(name, form):
    x = inputs(11)
    zero = x | {"s": torch.zeros_like(x["s"]), "z": torch.zeros_like(x["z"])}
    near(call(name, x, state=None, form=form)[0], call(name, zero, form="recurrent")[0])
    before = x["s"].clone()
    call(name, x, form=form)
    assert torch.equal(x["s"], before)


@pytest.mark.parametrize("form", FORMS)
def test_a_denominator_of_zero_gives_zero(form):
    """Relu features: the first tokens' keys are all 0, so nothing has been seen yet."""
    x = inputs(9)
    k = x["k"].relu()
    k[:, :, :4] = 0
    o, _ = r.linear_attention(x["q"].relu() + 0.1, k, x["v"], normalised=True, form=form, chunk_tokens=4)
    assert not o[:, :, :4].any()
    assert bool(torch.isfinite(o).all())
    assert bool(o[:, :, 5:].all())


def test_constant_gates_need_not_be_repeated():
    x = inputs(21)
    g, gates, beta = x["g"][:1, :, :1], x["gates"][:1, :, :1], x["beta"][:1, :, :1]
    same = {"g": g.expand(B, H, 21), "gates": gates.expand(B, H, 21, F), "beta": beta.expand(B, H, 21)}
    for name in ("scalar", "gla", "rwkv6", "gated delta", "rwkv7"):
        near(call(name, x | {"g": g, "gates": gates, "beta": beta})[0], call(name, x | same)[0])


def test_balanced_keys_write_what_decays():
    x = inputs(5)
    near(r.balanced_keys(x["k"], x["gates"]), (1 - x["gates"].exp()) * x["k"])


# ------------------------------------------------------------------------------------------------ gradients


def gradients(run, x):
    """Of a fixed weighting of o and S, with respect to every input that takes part."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in x.items()}
    o, s = run(leaves)
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64) for y in (o, s)]
    loss = (o * weights[0]).sum() + (s * weights[1]).sum()
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}


def shut(x):
    """The same with gates that are open (0), shut (-1e4) and shut for good (-inf) here and there."""
    x = dict(x)
    for name in ("g", "gates"):
        gate = x[name].clone()
        pattern = torch.arange(gate.numel()).reshape(gate.shape) % 7
        x[name] = gate.masked_fill(pattern == 0, 0).masked_fill(pattern == 3, -1e4)
        x[name] = x[name].masked_fill((pattern == 5) & (gate < -0.5), -torch.inf)
    return x


@cache
def expected_gradients(name, gates):
    x = inputs(13) if gates == "mild" else shut(inputs(13))
    return gradients(lambda leaves: literal(name, leaves), x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gates", ["mild", "shut"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients(name, gates, form):
    def run(leaves):
        o, state = call(name, leaves, form=form, chunk_tokens=5)
        return o, state.S

    wanted = expected_gradients(name, gates)
    got = gradients(run, inputs(13) if gates == "mild" else shut(inputs(13)))
    assert got.keys() == wanted.keys()
    for leaf, grad in wanted.items():
        near(got[leaf], grad)


# ------------------------------------------------------------------------------------------------- rounding


def as_dtype(x, dtype):
    return {name: tensor.to(dtype) for name, tensor in x.items()}


def nearly_open(x):
    """Gates of about -0.01, among which some are 0, -1e4 and -inf."""
    x = shut(x)
    for name in ("g", "gates"):
        x[name] = x[name].where(x[name] < -1e3, x[name] / 30)
    return as_dtype(x, torch.float32)


def in_half(x):
    return as_dtype(x, torch.bfloat16)


@cache
def exact_and_rough(name, prepare):
    """(o, S) of 67 tokens in fp64, and in fp32 by the same loop: what rounding is allowed to cost."""
    x = prepare(inputs(67))
    return literal(name, as_dtype(x, torch.float64)), literal(name, as_dtype(x, torch.float32))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_shut_gates_cost_no_digits(name, form):
    """Case 13."""
    (o, s), (rough_o, rough_s) = exact_and_rough(name, nearly_open)
    got, state = call(name, nearly_open(inputs(67)), form=form)
    assert error(got, o) <= 4 * error(rough_o, o)
    assert error(state.S, s) <= 4 * error(rough_s, s)


@cache
def state_in_bf16(name):
    """S after 67 tokens, had it been rounded to bf16 after every one."""
    x = in_half(inputs(67))
    state = State(x["s"], x["z"] if name == "normalised" else None)
    for i in range(67):
        token = {n: v[:, :, i : i + 1] if v.shape[2:3] == (67,) else v for n, v in x.items()}
        _, state = CALLS[name](token, state=state)
        state = State(*(None if part is None else part.bfloat16() for part in state))
    return state.S


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_rounds_inputs_and_outputs_but_never_the_state(name, form):
    (o, s), (rough_o, rough_s) = exact_and_rough(name, in_half)
    got, state = call(name, in_half(inputs(67)), form=form)
    assert (got.dtype, state.S.dtype) == (torch.bfloat16, torch.float32)
    assert error(got, o) <= 2 * error(rough_o.bfloat16(), o)
    assert error(state.S, s) <= 4 * error(rough_s, s)
    assert error(state_in_bf16(name), s) > 100 * error(state.S, s)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_nothing(name, form):
    x = as_dtype(inputs(19), torch.float32)
    plain = call(name, x, form=form, chunk_tokens=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = call(name, x, form=form, chunk_tokens=8)
    assert torch.equal(plain[0], cast[0])
    assert torch.equal(plain[1].S, cast[1].S)


# ----------------------------------------------------------------------------------------- padding and misuse


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_padded_row_is_the_row_alone(name, form):
    """Row 0 has 4 pads before, row 1 has 3 after; every pad holds NaN."""
    x, mask = inputs(23), torch.ones(B, 23, dtype=torch.bool)
    mask[0, :4] = mask[1, 20:] = False
    texts = {n: v for n, v in x.items() if v.shape[2:3] == (23,)}
    holes = {n: v.where(mask.view(B, 1, 23, *[1] * (v.ndim - 3)), torch.nan) for n, v in texts.items()}
    padded = x | dict(zip(holes, r.inert(mask, *holes.values()), strict=True))
    o, state = call(name, padded, form=form, chunk_tokens=8)
    assert bool(torch.isfinite(o).all())
    for row, tokens in ((0, slice(4, 23)), (1, slice(0, 20))):
        alone = {n: v[row : row + 1, :, tokens] if n in texts else v[row : row + 1] for n, v in x.items()}
        alone["u"] = x["u"]
        one, last = call(name, alone, form=form, chunk_tokens=8)
        near(o[row : row + 1, :, tokens], one)
        near(state.S[row : row + 1], last.S)


def test_inert_expands_a_constant_gate_and_refuses_another_layout():
    mask = torch.tensor([[True, False], [False, True]])
    (g,) = r.inert(mask, torch.full((1, H, 1), -2.0))
    assert g.tolist() == [[[-2, 0]] * H, [[0, -2]] * H]
    with pytest.raises(
        ValueError, match=r"inert takes tensors \[2, h, 2, ...\] with this mask, got \(2, 2, 3\)"
    ):
        r.inert(mask, torch.zeros(2, 2, 3))


@pytest.mark.parametrize("swapped", [("q",), ("v",), ("q", "k", "v", "unit")], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_another_layout_is_refused_in_one_sentence(name, swapped):
    """Case 13: [b, t, h, d] for [b, h, t, d], where anything else, be it the state, has the right one."""
    x = inputs(11)
    wrong = x | {n: x[n].transpose(1, 2) for n in swapped}
    takes = r"\w+ takes [qr] \[b, h, t, f\], .*v \[b, h, t, d_v\].*; got .*\(2, 11, 3, [57]\)[^.]*"
    with pytest.raises(ValueError, match=takes):
        call(name, wrong)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_or_a_gate_of_another_shape_is_refused(name):
    x = inputs(11)
    gates = {"scalar": ["g"], "gla": ["gates"], "rwkv6": ["gates", "u"], "rwkv7": ["gates", "a"]}
    gates |= {"delta": ["beta"], "gated delta": ["beta", "g"], "normalised": ["z"]}
    for label in ["s", *gates.get(name, [])]:
        with pytest.raises(ValueError, match=r"; got \("):
            call(name, x | {label: x[label].repeat(*[1] * (x[label].ndim - 1), 2)})
        with pytest.raises(ValueError, match=r"; got \("):
            call(name, x | {label: x[label][..., None]})


def test_only_gates_may_be_of_size_1():
    x = inputs(11)
    for label in "qkv":
        with pytest.raises(ValueError, match=r"; got \("):
            call("scalar", x | {label: x[label][:, :, :1]})


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_form_or_an_empty_chunk_is_refused(name):
    with pytest.raises(
        ValueError, match=r"form must be one of \['parallel', 'chunked', 'recurrent'\], got 'scan'"
    ):
        call(name, inputs(3), form="scan")
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1, got 0"):
        call(name, inputs(3), chunk_tokens=0)


def test_what_contradicts_itself_is_refused():
    x = inputs(3)
    q, k, v, s = x["q"], x["k"], x["v"], State(x["s"])
    with pytest.raises(ValueError, match=r"state\.z must be given exactly if normalised; normalised is True"):
        r.linear_attention(q, k, v, normalised=True, state=s)
    with pytest.raises(ValueError, match="normalised is False"):
        r.linear_attention(q, k, v, state=State(x["s"], x["z"]))
    with pytest.raises(ValueError, match="a bonus weights the own key"):
        r.diagonal_decay(q, k, v, x["gates"], bonus=x["u"])
    with pytest.raises(ValueError, match='output must be "after" or "before" the update, got \'both\''):
        r.diagonal_decay(q, k, v, x["gates"], output="both")
