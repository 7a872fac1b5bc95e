"""RWKV-6 against its formula token by token, and against linear attention where it is that."""

import pytest
import torch
import torch.nn.functional as F
from mixer_contract import (
    SIZES,
    check_constant_memory,
    check_forms_and_splits,
    check_gradients,
    check_half_precision,
    check_padding,
    check_pads_between,
    made,
    near,
    noise,
    run,
    tokens,
)
from rwkv_checks import check_start, parameters, vary

from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes
from swalib.linear.recurrences import linear_attention
from swalib.linear.rwkv6 import RWKV6, RWKV6Config, previous_tokens
from swalib.models import tiny

CONFIG = RWKV6Config(shift_rank=3, decay_rank=5)
BIASED = Sizes(20, 4, 2, 6, qkv_bias=True, o_bias=True)
FAMILIES = ("llama", "qwen2", "qwen3", "phi", "gemma3")


def written_out(p, x, order="wkvrg"):
    """y [t, 20] of one row [t, 20], 4 heads of 6 that share 2 kv heads."""
    state, previous, rows = torch.zeros(4, 6, 6, dtype=x.dtype), torch.zeros_like(x[0]), []
    for now in x:
        delta, to = previous - now, {}
        inner = torch.tanh((now + delta * p["time_maa_x"]) @ p["time_maa_w1"])
        for i, c in enumerate(order):
            move = inner[3 * i : 3 * i + 3] @ p["time_maa_w2"][i]
            to[c] = now + delta * (p[f"time_maa_{c}"] + move)
        r, k, v = (
            (p[f"{name}_proj.weight"] @ to[c] + p.get(f"{name}_proj.bias", 0)).view(-1, 6)
            for name, c in zip("qkv", "rkv", strict=True)
        )
        decay = p["time_decay"] + torch.tanh(to["w"] @ p["time_decay_w1"]) @ p["time_decay_w2"]
        w, gate, heads = torch.exp(-torch.exp(decay)).view(4, 6), p["gate.weight"] @ to["g"], []
        for head in range(4):
            written = torch.outer(k[head // 2], v[head // 2])
            o = r[head] @ (state[head] + p["time_faaaa"][head][:, None] * written)
            state[head] = w[head][:, None] * state[head] + written
            heads.append((o - o.mean()) / (o.var(correction=0) + 64e-5).sqrt())
        o = torch.cat(heads) * p["ln_x.weight"] + p["ln_x.bias"]
        rows.append(p["o_proj.weight"] @ (o * gate * gate.sigmoid()) + p.get("o_proj.bias", 0))
        previous = now
    return torch.stack(rows), state


@pytest.mark.parametrize("sizes", [SIZES, BIASED], ids=["plain", "biased"])
@torch.no_grad()
def test_as_its_formula_written_out(sizes):
    mixer, x = made(RWKV6, CONFIG, sizes), noise(1, 11, 20)
    vary(mixer.time_decay, -4, 2)
    y, state = run(mixer, x)
    expected, last = written_out(parameters(mixer), x[0])
    near(y[0], expected)
    near(state["S"][0], last)
    assert torch.equal(state["last"], x[:, -1])
    other, _ = written_out(parameters(mixer), x[0], order="rkvwg")  # QRWKV6's order is another function
    assert float((other - expected).abs().max()) > 0.01


def test_contract():
    mixer = made(RWKV6, CONFIG)
    vary(mixer.time_decay, -6, 1)
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer, factor=8)  # the norm amplifies the first rows


@torch.no_grad()
def test_without_decay_and_with_a_bonus_of_1_it_is_linear_attention():
    mixer, x = made(RWKV6, CONFIG), noise(2, 15, 20)
    mixer.time_decay.fill_(-1e9)
    mixer.time_faaaa.fill_(1)
    for name in ("time_maa_w1", "time_decay_w2", *(f"time_maa_{c}" for c in "rkvwg")):
        getattr(mixer, name).zero_()
    q, k, v = mixer.qkv(x)
    o, after = linear_attention(q, mixer.per_query_head(k), mixer.per_query_head(v))
    gate = F.silu(x @ mixer.gate.weight.T)
    y, state = run(mixer, x)
    near(state["S"], after.S)
    near(y, mixer.o_proj(mixer.ln_x(mixer.merged(o).flatten(0, 1)).view(2, 15, -1) * gate))


def test_the_token_before_is_the_last_real_one_of_the_row():
    x = noise(2, 4, 3)
    real = torch.tensor([[False, True, False, True], [True, True, True, False]])
    zero, carried = torch.zeros(3, dtype=torch.float64), noise(2, 3, seed=1)
    before, last = previous_tokens(x, real, None)
    assert torch.equal(before[0], torch.stack([zero, zero, x[0, 1], x[0, 1]]))
    assert torch.equal(before[1], torch.stack([zero, x[1, 0], x[1, 1], x[1, 2]]))
    assert torch.equal(last, torch.stack([x[0, 3], x[1, 2]]))
    before, last = previous_tokens(x[:, :1], torch.zeros(2, 1, dtype=torch.bool), carried)
    assert torch.equal(before[:, 0], carried)
    assert torch.equal(last, carried)


@torch.no_grad()
def test_the_shift_sees_one_token_back_and_no_more():
    mixer, x = made(RWKV6, CONFIG), noise(1, 4, 20)
    told = tokens(1, 0, 4)
    to, _ = mixer.shifted(x, told, None)
    moved = x.clone()
    moved[:, 1] += 1
    changed, _ = mixer.shifted(moved, told, None)
    for c in "wkvrg":
        differs = (to[c] - changed[c]).abs().amax(dim=(0, 2)) > 0
        assert differs.tolist() == [False, True, True, False]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_start_from_a_teacher(family):
    attention = tiny(family).model.layers[1].self_attn
    mixer = RWKV6.init_from(attention, CONFIG, layer=1)
    out = getattr(attention, "o_proj", None) or attention.dense
    for mine, theirs in zip("qkv", ("q_proj", "k_proj", "v_proj"), strict=True):
        linear, source = getattr(mixer, f"{mine}_proj"), getattr(attention, theirs)
        assert torch.equal(linear.weight, source.weight)
        assert linear.weight is not source.weight
        assert (linear.bias is None) == (source.bias is None)
        assert linear.bias is None or torch.equal(linear.bias, source.bias)
    assert torch.equal(mixer.o_proj.weight, out.weight)
    assert hasattr(mixer, "q_norm") == hasattr(attention, "q_norm")
    hidden, width, depth, above = out.weight.shape[0], out.weight.shape[1], 1 / 2, 2 / 3
    check_start(mixer.time_decay, lambda n: -6 + 5 * (n / (width - 1)) ** (0.7 + 1.3 * depth))
    check_start(mixer.time_maa_k, lambda n: 1 - (n / hidden) ** above)
    check_start(mixer.time_maa_v, lambda n: 1 - (n / hidden) ** above - 0.3 * depth)
    check_start(mixer.time_maa_g, lambda n: 1 - (n / hidden) ** (above / 2))
    bonus = [depth * (1 - n / (width - 1)) + ((n + 1) % 3 - 1) * 0.1 for n in range(width)]
    check_start(mixer.time_faaaa, lambda n: bonus[n])
    check_start(mixer.ln_x.weight, lambda _: (2 / 3) ** 0.7)
    for zero in (mixer.time_maa_w1, mixer.time_decay_w1, mixer.ln_x.bias):
        assert not zero.any()
    x = noise(1, 5, hidden, dtype=torch.float32)
    assert bool(mixer.mix(x, Tokens(torch.arange(5)[None]))[0].isfinite().all())


@torch.no_grad()
def test_qwen3s_norms_of_q_and_k_are_kept():
    attention = tiny("qwen3").model.layers[0].self_attn
    mixer = RWKV6.init_from(attention, CONFIG)
    x, told = noise(1, 5, 36, dtype=torch.float32), Tokens(torch.arange(5)[None])
    before, _ = mixer.mix(x, told)
    assert mixer.q_norm.weight is not attention.q_norm.weight
    mixer.k_norm.weight[0] += 1
    assert float((mixer.mix(x, told)[0] - before).abs().max()) > 1e-4


def test_ranks_are_rwkv_lms():
    small, large = (RWKV6(RWKV6Config(), Sizes(hidden, 1, 1, 4)) for hidden in (64, 4096))
    assert (small.time_maa_w2.shape, small.time_decay_w1.shape) == ((5, 32, 64), (64, 64))
    assert (large.time_maa_w2.shape, large.time_decay_w1.shape) == ((5, 64, 4096), (4096, 128))


def test_a_teacher_in_bf16_makes_a_mixer_in_bf16():
    mixer = RWKV6.init_from(tiny("llama").bfloat16().model.layers[2].self_attn, CONFIG, layer=2)
    assert {p.dtype for p in mixer.parameters()} == {torch.bfloat16}
    y, state = mixer.mix(noise(1, 6, 36, dtype=torch.bfloat16), Tokens(torch.arange(6)[None]))
    assert (y.dtype, state["S"].dtype, state["last"].dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)
