"""RWKV-7 against its formula token by token; layer 0's values handed on; and where it is a diagonal decay."""

import math

import pytest
import torch
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
from swalib.linear.recurrences import diagonal_decay
from swalib.linear.rwkv7 import RWKV7, RWKV7Config
from swalib.models import tiny

CONFIG = RWKV7Config(decay_rank=3, rate_rank=5, value_rank=2, gate_rank=4)
LATER = Sizes(20, 4, 2, 6, layer=3)
BIASED = Sizes(20, 4, 2, 6, qkv_bias=True, o_bias=True, layer=1)
FIRST = {"v_first": noise(3, 4, 40, 6, seed=7)}


def first_values(batch, t):
    return {"v_first": FIRST["v_first"][:batch, :, :t]}


def written_out(p, x, v_first):
    """y [t, 20] of one row [t, 20], 4 heads of 6 that share 2 kv heads; v_first [4, t, 6], or None."""
    state, previous, rows = torch.zeros(4, 6, 6, dtype=x.dtype), torch.zeros_like(x[0]), []
    for t, now in enumerate(x):
        to = {c: now + (previous - now) * p[f"x_{c}"] for c in "rwkvag"}
        r, k, v = (
            (p[f"{name}_proj.weight"] @ to[c] + p.get(f"{name}_proj.bias", 0)).view(-1, 6)
            for name, c in zip("qkv", "rkv", strict=True)
        )
        d = p["w0"] + torch.tanh(to["w"] @ p["w1"]) @ p["w2"]
        w = torch.exp(-torch.exp(-0.5 - torch.log1p(torch.exp(-d)))).view(
            4, 6
        )  # exp(-exp(-0.5 - softplus(-d)))
        a = torch.sigmoid(p["a0"] + to["a"] @ p["a1"] @ p["a2"]).view(4, 6)
        g = torch.sigmoid(to["g"] @ p["g1"]) @ p["g2"]
        k_k, k_a, heads = p["k_k"].view(4, 6), p["k_a"].view(4, 6), []
        for head in range(4):
            key, value = k[head // 2], v[head // 2]
            if v_first is not None:
                share = torch.sigmoid(p["v0"] + to["v"] @ p["v1"] @ p["v2"]).view(4, 6)[head]
                value = value + (v_first[head, t] - value) * share
            kappa = key * k_k[head] / (key * k_k[head]).square().sum().sqrt()
            key = key * (1 + (a[head] - 1) * k_a[head])
            s = state[head]  # keys by values; the paper's is its transpose
            removed = torch.outer(a[head] * kappa, kappa @ s)
            state[head] = w[head][:, None] * s - removed + torch.outer(key, value)
            o = r[head] @ state[head]
            o = (o - o.mean()) / (o.var(correction=0) + 64e-5).sqrt()
            weight, bias = p["ln_x.weight"].view(4, 6)[head], p["ln_x.bias"].view(4, 6)[head]
            heads.append(o * weight + bias + (r[head] * key * p["r_k"][head]).sum() * value)
        rows.append(p["o_proj.weight"] @ (torch.cat(heads) * g) + p.get("o_proj.bias", 0))
        previous = now
    return torch.stack(rows), state


@pytest.mark.parametrize("sizes", [SIZES, LATER, BIASED], ids=["first", "later", "biased"])
@torch.no_grad()
def test_as_its_formula_written_out(sizes):
    mixer, x = made(RWKV7, CONFIG, sizes), noise(1, 11, 20)
    vary(mixer.w0, -6, 4)
    shared = first_values(1, 11) if sizes.layer else {}
    y, state = run(mixer, x, shared=shared)
    expected, last = written_out(parameters(mixer), x[0], shared["v_first"][0] if shared else None)
    near(y[0], expected)
    near(state["S"][0], last)
    assert torch.equal(state["last"], x[:, -1])


@pytest.mark.parametrize("sizes", [SIZES, LATER], ids=["first", "later"])
def test_contract(sizes):
    mixer = made(RWKV7, CONFIG, sizes)
    vary(mixer.w0, -6, 4)
    check_forms_and_splits(mixer, shared=first_values(2, 37))
    check_padding(mixer, shared=first_values(3, 23))
    check_pads_between(mixer, shared=first_values(1, 29))
    check_constant_memory(mixer, shared=first_values(2, 1))
    check_gradients(mixer, shared=first_values(1, 19))
    check_half_precision(mixer, shared={"v_first": noise(1, 4, 60, 6)} if sizes.layer else None)


def test_layer_0_hands_its_values_on_and_later_layers_take_them():
    first, later, x = made(RWKV7, CONFIG), made(RWKV7, CONFIG, LATER), noise(2, 9, 20)
    told = tokens(2, 0, 9)
    y, _ = first.mix(x, told)
    to = x + (torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1) - x) * first.x_v
    values = first.heads_of(first.v_proj(to)).repeat_interleave(2, dim=1)
    near(told.shared["v_first"], values)
    whole, _ = later.mix(y, told)
    assert torch.equal(told.shared["v_first"], first.heads_of(first.v_proj(to)).repeat_interleave(2, dim=1))
    whole.sum().backward()
    assert bool((first.v_proj.weight.grad != 0).all())
    with torch.no_grad():  # in two calls, each handing on the values of its own tokens
        states, outputs = (None, None), []
        for start, stop in ((0, 4), (4, 9)):
            part = tokens(2, start, stop)
            y, one = first.mix(x[:, start:stop], part, states[0])
            y, other = later.mix(y, part, states[1])
            states, outputs = (one, other), [*outputs, y]
        near(torch.cat(outputs, dim=1), whole)


@torch.no_grad()
def test_v0_decides_between_own_and_first_values():
    mixer, x, first = made(RWKV7, CONFIG, LATER), noise(1, 9, 20), first_values(1, 9)
    mixer.v2.zero_()
    mixer.v0.fill_(-1e9)
    own, _ = run(mixer, x, shared=first)
    near(run(mixer, x, shared={"v_first": first["v_first"] + 1})[0], own)
    mixer.v0.fill_(1e9)
    theirs, _ = run(mixer, x, shared=first)
    mixer.v_proj.weight.add_(1)
    near(run(mixer, x, shared=first)[0], theirs)


@pytest.mark.parametrize("shared", [{}, {"v_first": noise(1, 2, 5, 6)}], ids=["missing", "not repeated"])
def test_first_values_that_are_missing_or_do_not_fit_are_one_clear_error(shared):
    mixer = made(RWKV7, CONFIG, LATER)
    found = "(1, 2, 5, 6)" if shared else "none"
    with pytest.raises(
        ValueError, match=r"^layer 3 mixes its values with those of layer 0.*(1, 4, 5, 6).*"
    ) as caught:
        mixer.mix(noise(1, 5, 20), tokens(1, 0, 5, shared=shared))
    assert str(caught.value).endswith(f"found {found}")


@torch.no_grad()
def test_with_a_rate_of_0_it_is_a_diagonal_decay():
    mixer, x = made(RWKV7, CONFIG), noise(2, 15, 20)
    mixer.a2.zero_()
    mixer.a0.fill_(-1e9)
    mixer.r_k.zero_()
    for c in "rwkvag":
        getattr(mixer, f"x_{c}").zero_()
    r, k, v = mixer.qkv(x)
    k, v = mixer.per_query_head(k) * (1 - mixer.k_a.view(4, 1, 6)), mixer.per_query_head(v)
    decay = mixer.w0 + torch.tanh(x @ mixer.w1) @ mixer.w2
    o, after = diagonal_decay(r, k, v, mixer.heads_of(-math.exp(-0.5) * decay.sigmoid()))
    y, state = run(mixer, x)
    near(state["S"], after.S)
    gate = (x @ mixer.g1).sigmoid() @ mixer.g2
    near(y, mixer.o_proj(mixer.ln_x(mixer.merged(o).flatten(0, 1)).view(2, 15, -1) * gate))


@torch.no_grad()
def test_the_bonus_is_of_the_own_token_after_the_norm():
    mixer, x = made(RWKV7, CONFIG), noise(1, 8, 20)
    with_bonus, state = run(mixer, x)
    mixer.r_k.zero_()
    without, same = run(mixer, x)
    near(same["S"], state["S"])
    assert float((with_bonus - without).abs().amax(dim=-1).min()) > 1e-3


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "gemma3"])
@torch.no_grad()
def test_a_start_from_a_teacher(family, layer):
    attention = tiny(family).model.layers[layer].self_attn
    mixer = RWKV7.init_from(attention, CONFIG, layer=layer)
    out = getattr(attention, "o_proj", None) or attention.dense
    pairs = [(getattr(mixer, f"{c}_proj"), getattr(attention, f"{c}_proj")) for c in "qkv"]
    for mine, theirs in [*pairs, (mixer.o_proj, out)]:
        assert torch.equal(mine.weight, theirs.weight)
        assert mine.weight is not theirs.weight
        assert (mine.bias is None) == (theirs.bias is None)
        assert mine.bias is None or torch.equal(mine.bias, theirs.bias)
    assert hasattr(mixer, "q_norm") == hasattr(attention, "q_norm")
    hidden, width = out.weight.shape
    depth, above = layer / 2, 1 - layer / 3

    def zigzag(n):
        place = (n % 10 - 4.5) / 4.5
        return place * abs(place)

    def slope(n):
        return n / (width - 1) - 0.5

    check_start(
        mixer.w0,
        lambda n: -6 + 6 * (n / (width - 1)) ** (1 + depth**0.3) + 0.5 + 2.5 * zigzag(n),
    )
    check_start(mixer.a0, lambda n: -0.19 + 0.3 * zigzag(n) + 0.4 * slope(n))
    check_start(mixer.k_k, lambda n: 0.71 - 0.1 * slope(n))
    check_start(mixer.k_a, lambda n: 1.02)
    check_start(mixer.r_k, lambda n: -0.04)
    check_start(mixer.ln_x.weight, lambda n: ((layer + 1) / 3) ** 0.7)
    for c, power in zip("rwkvag", (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):
        check_start(getattr(mixer, f"x_{c}"), lambda n, power=power: 1 - (n / hidden) ** (power * above))
    assert hasattr(mixer, "v0") == (layer > 0)
    if layer:
        check_start(mixer.v0, lambda n: 0.73 - 0.4 * slope(n))
    for name in ("w", "a", "g", *("v" * layer)):
        assert not getattr(mixer, f"{name}1").any()
        second = getattr(mixer, f"{name}2")
        near(second @ second.T, 0.01 * torch.eye(len(second)), atol=1e-6)


def test_ranks_are_rwkv_lms():
    mixer = RWKV7(RWKV7Config(), Sizes(768, 1, 1, 4, layer=1))
    assert [getattr(mixer, f"{name}1").shape[1] for name in "wavg"] == [64, 64, 32, 128]


@pytest.mark.parametrize("head_dim", [1, 3])
@torch.no_grad()
def test_any_head_size(head_dim):
    mixer = RWKV7(CONFIG, Sizes(5, 2, 1, head_dim))
    y, _ = mixer.mix(noise(1, 4, 5, dtype=torch.float32), Tokens(torch.arange(4)[None]))
    assert bool(y.isfinite().all())
