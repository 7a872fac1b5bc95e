"""QRWKV7 (RAD-RWKV7) against its formula token by token, in every configuration that the code has, against
the released vectors, and against a diagonal decay where it is that."""

import math
from dataclasses import replace

import pytest
import torch
from mixer_contract import (
    check_constant_memory,
    check_forms_and_splits,
    check_gradients,
    check_half_precision,
    check_padding,
    check_pads_between,
    made,
    near,
    noise,
    released,
    rope,
    run,
    tokens,
)
from rwkv_checks import POSITION, check_start, load, parameters, vary

from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes
from swalib.linear.qrwkv7 import QRWKV7, QRWKV7Config
from swalib.linear.recurrences import diagonal_decay
from swalib.models import tiny

CONFIG = QRWKV7Config(decay_rank=3, rate_rank=5, value_rank=2, gate_rank=4)
FIRST, LATER = (Sizes(20, 4, 2, 6, qkv_bias=True, layer=layer) for layer in (0, 2))
VALUES = noise(3, 4, 60, 6, seed=7)
# the released yaml files of two dates, and what else the code takes
VARIANTS = {
    "released": CONFIG,
    "groupnorm": replace(CONFIG, group_norm=True, balance=False),
    "no gate": replace(CONFIG, gate="none"),
    "full gate": replace(CONFIG, gate="full"),
    "no rope": replace(CONFIG, rope=False, balance=False),
    "all at once": replace(CONFIG, group_norm=True, gate="full", rope=False),
}
each_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def first_values(batch, t):
    return {"v_first": VALUES[:batch, :, :t]}


def gate_of(p, x, config):
    full = torch.sigmoid(p["gate.weight"] @ x) if config.gate == "full" else 1
    return torch.sigmoid(x @ p["g1"]) @ p["g2"] if config.gate == "low_rank" else full


def written_out(p, x, config, v_first):
    """y [t, 20] of one row [t, 20], 4 heads of 6 that share 2 kv heads; v_first [4, t, 6], or None."""
    state, rows = torch.zeros(4, 6, 6, dtype=x.dtype), []
    for t, now in enumerate(x):
        r, k, v = ((p[f"{c}_proj.weight"] @ now + p[f"{c}_proj.bias"]).view(-1, 6) for c in "qkv")
        if config.rope:
            r, k = (rope(torch.tensor([[t]]))(z[None, :, None])[0, :, 0] for z in (r, k))
        d = p["w0"] + torch.tanh(now @ p["w1"]) @ p["w2"]
        w = torch.exp(-math.exp(-0.5) * torch.sigmoid(d)).view(4, 6)
        a = torch.sigmoid(p["a0"] + now @ p["a1"] @ p["a2"]).view(4, 6)
        heads = []
        for head in range(4):
            key, value = k[head // 2], v[head // 2]
            removed = key if config.balance else key * p["k_k"].view(4, 6)[head]
            kappa = removed / removed.square().sum().sqrt()
            if config.balance:
                key = key * (1 - w[head] + a[head])
            else:
                key = key * (1 + (a[head] - 1) * p["k_a"].view(4, 6)[head])
            if v_first is not None:
                nu = torch.sigmoid(p["v0"] + now @ p["v1"] @ p["v2"]).view(4, 6)[head]
                value = value + (v_first[head, t] - value) * nu
            s = state[head]  # keys by values; the released is its transpose
            state[head] = w[head][:, None] * s - torch.outer(a[head] * kappa, kappa @ s)
            state[head] = state[head] + torch.outer(key, value)
            o = r[head] @ state[head]
            if config.group_norm:
                o = (o - o.mean()) / (o.var(correction=0) + 6e-5).sqrt()
            heads.append(o if config.group_norm else o / 6**0.5)
        o = torch.cat(heads)
        if config.group_norm:
            o = o * p["ln_x.weight"] + p["ln_x.bias"]
        rows.append(p["o_proj.weight"] @ (o * gate_of(p, now, config)))
    return torch.stack(rows), state


@pytest.mark.parametrize("sizes", [FIRST, LATER], ids=["first", "later"])
@each_variant
@torch.no_grad()
def test_as_its_formula_written_out(config, sizes):
    mixer, x = made(QRWKV7, config, sizes), noise(1, 11, 20)
    vary(mixer.w0, -6, 4)
    shared = first_values(1, 11) if sizes.layer else {}
    y, state = run(mixer, x, shared=shared)
    expected, last = written_out(parameters(mixer), x[0], config, shared["v_first"][0] if shared else None)
    near(y[0], expected)
    near(state["S"][0], last)
    assert set(state) == {"S"}


@each_variant
def test_contract_of_each_configuration(config):
    mixer = made(QRWKV7, config, LATER)
    vary(mixer.w0, -6, 4)
    check_forms_and_splits(mixer, t=14, shared=first_values(2, 14))
    check_pads_between(mixer, shared=first_values(1, 29))
    check_gradients(mixer, t=9, shared=first_values(1, 9))


def test_contract():
    mixer = made(QRWKV7, CONFIG, LATER)
    vary(mixer.w0, -6, 4)
    check_forms_and_splits(mixer, shared=first_values(2, 37))
    check_padding(mixer, shared=first_values(3, 23))
    check_constant_memory(mixer, shared=first_values(2, 1))
    check_half_precision(mixer, shared=first_values(1, 60))


def test_contract_of_layer_0():
    mixer = made(QRWKV7, CONFIG, FIRST)
    vary(mixer.w0, -6, 4)
    check_forms_and_splits(mixer, t=14)
    check_padding(mixer, t=11)
    check_gradients(mixer, t=9)


# name -> configuration, layer
RELEASED = {"rad_rwkv7_layer1": (QRWKV7Config(decay_rank=3, rate_rank=3, value_rank=3, gate_rank=3), 1)}


@pytest.mark.parametrize("name", RELEASED)
@torch.no_grad()
def test_released_vectors(name):
    z, index = released(name)
    config, layer = RELEASED[name]
    mixer = QRWKV7(config, Sizes(16, 4, 2, 4, qkv_bias=True, layer=layer))
    assert load(mixer, z) == {"x", "y", "v_first_in", "v_first_out"}
    first, states = mixer.heads_of(z["v_first_in"]), []
    for form in ("recurrent", "chunked", "parallel"):
        told = Tokens(POSITION, rope(POSITION, 10_000.0), {"v_first": first})
        y, state = mixer.mix(z["x"], told, form=form)
        near(y, z["y"], atol=2e-5)
        near(mixer.merged(told.shared["v_first"]), z["v_first_out"], atol=0)
        states.append(state["S"])
    state, outputs = None, []
    for now in (slice(0, 6), slice(6, 13)):
        told = Tokens(POSITION[:, now], rope(POSITION[:, now], 10_000.0), {"v_first": first[:, :, now]})
        y, state = mixer.mix(z["x"][:, now], told, state)
        outputs.append(y)
    near(torch.cat(outputs, dim=1), z["y"], atol=2e-5)
    for other in states:
        near(other, state["S"], atol=2e-5)
    assert index["tolerance"] == "2e-5"


@torch.no_grad()
def test_the_scale_is_applied_once_whatever_a_kernel_does_by_default():
    """fla changed its default from 1 to d^(-1/2) in 2025; the released code, which gives none, then scales
    twice. Linear in o, so that output is known from ours."""
    z, _ = released("rad_rwkv7_layer1")
    mixer = QRWKV7(RELEASED["rad_rwkv7_layer1"][0], Sizes(16, 4, 2, 4, qkv_bias=True, layer=1))
    load(mixer, z)
    told = Tokens(POSITION, rope(POSITION, 10_000.0), {"v_first": mixer.heads_of(z["v_first_in"])})
    y, _ = mixer.mix(z["x"], told)
    near(y, z["y"], atol=2e-5)
    assert float((y - z["y"] * 4**-0.5).abs().max()) > 0.01


@torch.no_grad()
def test_the_port_for_qwen3_without_balance_removes_along_k_and_writes_k():
    mixer, x = made(QRWKV7, replace(CONFIG, balance=False), FIRST), noise(1, 9, 20)
    mixer.k_k.fill_(1)
    mixer.k_a.fill_(0)
    written = parameters(mixer)
    expected, _ = written_out(written, x[0], replace(CONFIG, balance=False), None)
    near(run(mixer, x)[0][0], expected)
    told = tokens(1, 0, 9)
    k = mixer.per_query_head(told.rotate(mixer.qkv(x)[1]))
    kappa, key = mixer.removal_and_written_keys(k, mixer.rate(x))
    near(key, k)
    near(kappa, k / k.norm(dim=-1, keepdim=True))


@torch.no_grad()
def test_with_a_rate_of_0_it_is_a_diagonal_decay_of_balanced_keys():
    mixer, x = made(QRWKV7, CONFIG, FIRST), noise(2, 15, 20)
    mixer.a2.zero_()
    mixer.a0.fill_(-1e9)
    told = tokens(2, 0, 15)
    r, k, v = mixer.qkv(x)
    r, k, v = told.rotate(r), mixer.per_query_head(told.rotate(k)), mixer.per_query_head(v)
    gates = -math.exp(-0.5) * torch.sigmoid(mixer.heads_of(mixer.w0 + torch.tanh(x @ mixer.w1) @ mixer.w2))
    o, after = diagonal_decay(r, k * (1 - gates.exp()), v, gates, scale=6**-0.5)
    y, state = mixer.mix(x, told)
    near(state["S"], after.S)
    near(y, mixer.o_proj(mixer.merged(o) * (torch.sigmoid(x @ mixer.g1) @ mixer.g2)))


@torch.no_grad()
def test_positions_matter_and_not_only_distances():
    """RoPE does not commute with a decay by channel; with one decay for all, distances are all there is."""
    mixer, x = made(QRWKV7, CONFIG, FIRST), noise(1, 9, 20)
    mixer.a2.zero_()
    mixer.a0.fill_(-1e9)
    told = [tokens(1, 0, 9), Tokens(torch.arange(9)[None], rope(torch.arange(9)[None] + 5))]
    here, there = (mixer.mix(x, places)[0] for places in told)
    assert float((here - there).abs().max()) > 1e-3
    mixer.w2.zero_()
    mixer.w0.zero_()
    here, there = (mixer.mix(x, places)[0] for places in told)
    near(here, there)


@torch.no_grad()
def test_layer_0_hands_on_the_values_of_every_query_head():
    mixer, x, told = made(QRWKV7, CONFIG, FIRST), noise(2, 5, 20), tokens(2, 0, 5)
    mixer.mix(x, told)
    near(told.shared["v_first"], mixer.qkv(x)[2].repeat_interleave(2, dim=1))
    with pytest.raises(ValueError, match=r"^layer 2 mixes its values with those of layer 0.*, found none$"):
        made(QRWKV7, CONFIG, LATER).mix(x, tokens(2, 0, 5))


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "gemma3"])
@torch.no_grad()
def test_a_start_from_a_teacher(family, layer):
    attention = tiny(family).model.layers[layer].self_attn
    mixer = QRWKV7.init_from(attention, CONFIG, layer=layer)
    out = getattr(attention, "o_proj", None) or attention.dense
    pairs = [(getattr(mixer, f"{c}_proj"), getattr(attention, f"{c}_proj")) for c in "qkv"]
    for mine, theirs in [*pairs, (mixer.o_proj, out)]:
        assert torch.equal(mine.weight, theirs.weight)
        assert mine.weight is not theirs.weight
        assert (mine.bias is None) == (theirs.bias is None)
        assert mine.bias is None or torch.equal(mine.bias, theirs.bias)
    assert hasattr(mixer, "q_norm") == hasattr(attention, "q_norm")
    width, depth = out.weight.shape[1], layer / 2
    check_start(mixer.w0, lambda n: -7 + 5 * (n / (width - 1)) ** (0.85 + depth**0.5) + 0.5)
    check_start(mixer.a0, lambda n: 0)
    assert hasattr(mixer, "v0") == (layer > 0)
    if layer:
        check_start(mixer.v0, lambda n: 1)
    for name in ("w", "a", "g", *(["v"] if layer else [])):
        assert not getattr(mixer, f"{name}1").any()
        second = getattr(mixer, f"{name}2")
        near(second @ second.T, 0.01 * torch.eye(len(second)), atol=1e-6)


@torch.no_grad()
def test_other_configurations_start_as_released():
    mixer = QRWKV7(replace(CONFIG, balance=False, gate="full", group_norm=True), LATER)
    check_start(mixer.k_k, lambda n: 0.85)
    check_start(mixer.k_a, lambda n: 1)
    assert bool((mixer.gated(torch.ones(1, 3, 24), noise(1, 3, 20, dtype=torch.float32)) == 0.5).all())
    assert bool((mixer.ln_x.weight == 1).all())


def test_ranks_are_the_released():
    mixer = QRWKV7(QRWKV7Config(), Sizes(3584, 1, 1, 4, layer=1))
    assert [getattr(mixer, f"{name}1").shape[1] for name in "wavg"] == [96, 96, 64, 416]


def test_an_unknown_gate_is_refused():
    with pytest.raises(ValueError, match="gate must be one of"):
        QRWKV7Config(gate="swish")
