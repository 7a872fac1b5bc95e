"""ARWKV against its formula token by token, in every configuration that the code has, and the released
vectors."""

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

from swalib.linear.arwkv import ARWKV, ARWKVConfig
from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes
from swalib.linear.rwkv7 import RWKV7, RWKV7Config
from swalib.models import tiny

CONFIG = ARWKVConfig(decay_rank=3, rate_rank=5, value_rank=2, gate_rank=4)
FIRST, LATER = (Sizes(20, 4, 2, 6, layer=layer) for layer in (0, 2))
VALUES = noise(3, 4, 60, 6, seed=7)
VARIANTS = {
    "released": CONFIG,
    "gate": replace(CONFIG, gate=True),
    "ported gate": replace(CONFIG, gate=True, gate_offset=0.0),
    "groupnorm": replace(CONFIG, group_norm=True),
    "all at once": replace(CONFIG, gate=True, group_norm=True),
}
each_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def first_values(batch, t):
    return {"v_first": VALUES[:batch, :, :t]}


def written_out(p, x, config, v_first):
    """y [t, 20] of one row [t, 20], 4 heads of 6; v_first [4, t, 6], or None."""
    state, previous, rows = torch.zeros(4, 6, 6, dtype=x.dtype), torch.zeros_like(x[0]), []
    for t, now in enumerate(x):
        to = {c: now + (previous - now) * p[f"x_{c}"] for c in ("rwkvag" if config.gate else "rwkva")}
        r, k, v = (
            (p[f"{name}_proj.weight"] @ to[c]).view(4, 6) for name, c in zip("qkv", "rkv", strict=True)
        )
        d = p["w0"] + torch.tanh(to["w"] @ p["w1"]) @ p["w2"]
        w = torch.exp(-torch.exp(-torch.log1p(torch.exp(-d)) - 0.5)).view(4, 6)
        a = torch.sigmoid(p["a0"] + to["a"] @ p["a1"] @ p["a2"]).view(4, 6)
        if v_first is not None:
            v = v + (v_first[:, t] - v) * torch.sigmoid(p["v0"] + to["v"] @ p["v1"] @ p["v2"]).view(4, 6)
        kappa, heads = k * p["k_k"].view(4, 6), []
        k = k * (1 + (a - 1) * p["k_a"].view(4, 6))
        for head in range(4):
            unit = kappa[head] / kappa[head].square().sum().sqrt()
            s = state[head]  # keys by values; the released is its transpose
            state[head] = w[head][:, None] * s - torch.outer(a[head] * unit, unit @ s)
            state[head] = state[head] + torch.outer(k[head], v[head])
            o = r[head] @ state[head]
            if config.group_norm:
                o = (o - o.mean()) / (o.var(correction=0) + 64e-5).sqrt()
                o = o * p["ln_x.weight"].view(4, 6)[head] + p["ln_x.bias"].view(4, 6)[head]
            heads.append(o + (r[head] * k[head] * p["r_k"][head]).sum() * v[head])
        gate = config.gate_offset + torch.sigmoid(to["g"] @ p["g1"]) @ p["g2"] if config.gate else 1
        rows.append(p["o_proj.weight"] @ (torch.cat(heads) * gate))
        previous = now
    return torch.stack(rows), state


@pytest.mark.parametrize("sizes", [FIRST, LATER], ids=["first", "later"])
@each_variant
@torch.no_grad()
def test_as_its_formula_written_out(config, sizes):
    mixer, x = made(ARWKV, config, sizes), noise(1, 11, 20)
    vary(mixer.w0, -6, 4)
    shared = first_values(1, 11) if sizes.layer else {}
    y, state = run(mixer, x, shared=shared)
    expected, last = written_out(parameters(mixer), x[0], config, shared["v_first"][0] if shared else None)
    near(y[0], expected)
    near(state["S"][0], last)
    assert torch.equal(state["last"], x[:, -1])


@each_variant
def test_contract_of_each_configuration(config):
    mixer = made(ARWKV, config, LATER)
    vary(mixer.w0, -6, 4)
    check_forms_and_splits(mixer, t=14, shared=first_values(2, 14))
    check_pads_between(mixer, shared=first_values(1, 29))
    check_gradients(mixer, t=9, shared=first_values(1, 9))


def test_contract():
    mixer = made(ARWKV, CONFIG, LATER)
    vary(mixer.w0, -6, 4)
    check_forms_and_splits(mixer, shared=first_values(2, 37))
    check_padding(mixer, shared=first_values(3, 23))
    check_constant_memory(mixer, shared=first_values(2, 1))
    check_half_precision(mixer, shared=first_values(1, 60))


def test_contract_of_layer_0():
    mixer = made(ARWKV, CONFIG, FIRST)
    vary(mixer.w0, -6, 4)
    check_forms_and_splits(mixer, t=14)
    check_padding(mixer, t=11)
    check_gradients(mixer, t=9)


# name -> configuration, layer, arrays of parameters that the configuration leaves unused
RELEASED = {
    "arwkv_rwkv7_released_cfg": (ARWKVConfig(decay_rank=3, rate_rank=3, value_rank=3), 1, {"x_g"}),
}


@pytest.mark.parametrize("name", RELEASED)
@torch.no_grad()
def test_released_vectors(name):
    z, index = released(name)
    config, layer, unused = RELEASED[name]
    mixer = ARWKV(config, Sizes(16, 4, 4, 4, layer=layer))
    assert load(mixer, z) == {"x", "y", "v_first"} | unused
    first, states = mixer.heads_of(z["v_first"]), []
    for form in ("recurrent", "chunked", "parallel"):
        turned = Tokens(POSITION, rope(POSITION), {"v_first": first})  # RoPE is offered, and not taken
        y, state = mixer.mix(z["x"], turned, form=form)
        near(y, z["y"], atol=2e-5)
        states.append(state["S"])
    state, outputs = None, []
    for now in (slice(0, 1), slice(1, 7), slice(7, 13)):
        told = Tokens(POSITION[:, now], shared={"v_first": first[:, :, now]})
        y, state = mixer.mix(z["x"][:, now], told, state)
        outputs.append(y)
    near(torch.cat(outputs, dim=1), z["y"], atol=2e-5)
    for other in states:
        near(other, state["S"], atol=2e-5)
    assert index["tolerance"] == "2e-5"


@torch.no_grad()
def test_without_places_in_the_shift_there_is_none():
    mixer, x = made(ARWKV, CONFIG), noise(1, 9, 20)
    start = {"S": noise(1, 4, 6, 6, seed=1), "last": noise(1, 20, seed=2)}
    other = {"S": start["S"], "last": noise(1, 20, seed=3)}
    shifted = [mixer.mix(x, tokens(1, 0, 9), state)[0] for state in (start, other)]
    assert float((shifted[0] - shifted[1]).abs().max()) > 1e-3
    for c in "rwkva":
        getattr(mixer, f"x_{c}").zero_()
    plain = [mixer.mix(x, tokens(1, 0, 9), state)[0] for state in (start, other)]
    assert torch.equal(plain[0], plain[1])
    _, k, v = mixer.qkv(x)
    kappa, written = mixer.removal_and_written_keys(k, mixer.rate(x))
    step = start["S"]
    for t in range(9):  # of the token's own hidden state alone
        w, a = (gate[:, :, t, :, None] for gate in (mixer.log_decay(x).exp(), mixer.rate(x)))
        unit = kappa[:, :, t, :, None]
        step = w * step - a * unit * (unit.mT @ step) + written[:, :, t, :, None] * v[:, :, t, None]
    near(mixer.mix(x, tokens(1, 0, 9), start)[1]["S"], step)


@torch.no_grad()
def test_with_norm_and_the_ported_gate_it_is_rwkv7():
    ranks = {"decay_rank": 3, "rate_rank": 5, "value_rank": 2, "gate_rank": 4}
    config = ARWKVConfig(gate=True, gate_offset=0.0, group_norm=True, **ranks)
    mixer = made(ARWKV, config, LATER)
    proper = made(RWKV7, RWKV7Config(**ranks), Sizes(20, 4, 4, 6, layer=2))
    proper.load_state_dict(mixer.state_dict())
    x = noise(2, 9, 20)
    near(run(mixer, x, shared=first_values(2, 9))[0], run(proper, x, shared=first_values(2, 9))[0])


@torch.no_grad()
def test_the_port_leaves_out_the_gates_1():
    mixer, x = made(ARWKV, VARIANTS["gate"]), noise(1, 9, 20)
    ported = made(ARWKV, VARIANTS["ported gate"])
    ported.load_state_dict(mixer.state_dict())
    plain = made(ARWKV, CONFIG)
    plain.load_state_dict(mixer.state_dict(), strict=False)
    near(run(mixer, x)[0], run(ported, x)[0] + run(plain, x)[0])


@torch.no_grad()
def test_a_missing_v_first_is_one_clear_error():
    with pytest.raises(ValueError, match=r"^layer 2 mixes its values with those of layer 0.*, found none$"):
        run(made(ARWKV, CONFIG, LATER), noise(1, 3, 20))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "gemma3"])
@torch.no_grad()
def test_a_start_from_a_teacher(family, layer):
    attention = tiny(family).model.layers[layer].self_attn
    mixer = ARWKV.init_from(attention, replace(CONFIG, gate=True), layer=layer)
    out = getattr(attention, "o_proj", None) or attention.dense
    for mine, theirs in ((mixer.q_proj, attention.q_proj), (mixer.o_proj, out)):
        assert torch.equal(mine.weight, theirs.weight)
        assert mine.weight is not theirs.weight
    hidden, width = out.weight.shape
    groups = attention.q_proj.out_features // attention.k_proj.out_features
    for name in ("k_proj", "v_proj"):
        mine, theirs = getattr(mixer, name), getattr(attention, name)
        assert mine.weight.shape == (width, hidden)
        assert (mine.bias is None) == (theirs.bias is None)
        for head in range(4):
            own, shared = slice(10 * head, 10 * head + 10), 10 * (head // groups)
            assert torch.equal(mine.weight[own], theirs.weight[shared : shared + 10])
            assert mine.bias is None or torch.equal(mine.bias[own], theirs.bias[shared : shared + 10])
    assert hasattr(mixer, "q_norm") == hasattr(attention, "q_norm")
    depth, above = layer / 2, 1 - layer / 3
    for c, power, less in zip("rwkva", (0.2, 0.9, 0.9, 0.4, 0.9), (0, 0, 0.4, 0.6, 0), strict=True):
        check_start(
            getattr(mixer, f"x_{c}"),
            lambda n, power=power, less=less: 1 - (n / hidden) ** (power * above) - less * depth,
        )
    check_start(mixer.w0, lambda n: -7 + 5 * (n / (width - 1)) ** (0.85 + depth**0.5) + 0.5)
    starts = {"x_g": 1, "a0": 0, "k_k": 0.85, "k_a": 1, "r_k": 0, "g1": 0, "g2": 0} | (
        {"v0": 1} if layer else {}
    )
    for name, value in starts.items():
        check_start(getattr(mixer, name), lambda n, value=value: value)
    assert hasattr(mixer, "v0") == (layer > 0)
    told = Tokens(torch.arange(5)[None], shared={"v_first": noise(1, 4, 5, 10, dtype=torch.float32)})
    y, state = mixer.mix(noise(1, 5, hidden, dtype=torch.float32), told)
    assert state["S"].shape == (1, 4, 10, 10)
    assert bool(y.isfinite().all())


@torch.no_grad()
def test_heads_of_the_released_size_split_the_teachers():
    attention = tiny("qwen2").model.layers[0].self_attn
    mixer = ARWKV.init_from(attention, replace(CONFIG, head_size=5))
    whole = ARWKV.init_from(attention, CONFIG)
    assert torch.equal(mixer.k_proj.weight, whole.k_proj.weight)
    x, told = noise(1, 6, 36, dtype=torch.float32), Tokens(torch.arange(6)[None])
    assert mixer.mix(x, told)[1]["S"].shape == (1, 8, 5, 5)
    with pytest.raises(ValueError, match="4 heads of 10 don't come apart into heads of 7"):
        ARWKV.init_from(attention, replace(CONFIG, head_size=7))
    with pytest.raises(ValueError, match="norms q and k by heads of 10"):
        ARWKV.init_from(tiny("qwen3").model.layers[0].self_attn, replace(CONFIG, head_size=5))
