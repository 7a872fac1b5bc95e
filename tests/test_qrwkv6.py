"""QRWKV6 (RAD-RWKV6) against its formula token by token, in every configuration that the code has, against
the released vectors, and against GLA's recurrence where it is that."""

import math
from dataclasses import replace

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
    released,
    rope,
    run,
    tokens,
)
from rwkv_checks import POSITION, check_start, load, parameters, vary

from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes
from swalib.linear.qrwkv6 import QRWKV6, QRWKV6Config
from swalib.linear.recurrences import State, diagonal_decay
from swalib.models import tiny

CONFIG = QRWKV6Config(shift_rank=3, decay_rank=5, gate_rank=4)
BIASED = Sizes(20, 4, 2, 6, qkv_bias=True)
# the released yaml files: qwerky6, its ablations, and what else the code takes
VARIANTS = {
    "released": CONFIG,
    "rope": replace(CONFIG, rope=True),
    "groupnorm": replace(CONFIG, group_norm=True, balance=False),
    "no gate": replace(CONFIG, gate="none"),
    "no token shift": replace(CONFIG, token_shift=False),
    "low-rank gate": replace(CONFIG, gate="low_rank"),
    "all at once": replace(CONFIG, rope=True, group_norm=True, gate="low_rank"),
}
each_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def places(p, now, previous, config):
    if not config.token_shift:
        return dict.fromkeys("rkvwg", now)
    delta, to = previous - now, {}
    inner = torch.tanh((now + delta * p["time_maa_x"]) @ p["time_maa_w1"])
    for i, c in enumerate("rkvwg"):
        move = inner[3 * i : 3 * i + 3] @ p["time_maa_w2"][i]
        to[c] = now + delta * (p[f"time_maa_{c}"] + move)
    return to


def gate_of(p, x, config):
    full = torch.sigmoid(p["gate.weight"] @ x) if config.gate == "full" else 1
    return torch.sigmoid(x @ p["g1"]) @ p["g2"] if config.gate == "low_rank" else full


def written_out(p, x, config):
    """y [t, 20] of one row [t, 20], 4 heads of 6 that share 2 kv heads."""
    state, previous, rows = torch.zeros(4, 6, 6, dtype=x.dtype), torch.zeros_like(x[0]), []
    for t, now in enumerate(x):
        to = places(p, now, previous, config)
        q, k, v = (
            (p[f"{name}_proj.weight"] @ to[c] + p[f"{name}_proj.bias"]).view(-1, 6)
            for name, c in zip("qkv", "rkv", strict=True)
        )
        if config.rope:
            q, k = (rope(torch.tensor([[t]]))(z[None, :, None])[0, :, 0] for z in (q, k))
        decay = p["time_decay"] + torch.tanh(to["w"] @ p["time_decay_w1"]) @ p["time_decay_w2"]
        w, heads = torch.exp(torch.maximum(-torch.exp(decay), torch.tensor(-5.0))).view(4, 6), []
        for head in range(4):
            key = k[head // 2] * (1 - w[head] if config.balance else 1)
            state[head] = w[head][:, None] * state[head] + torch.outer(key, v[head // 2])
            o = q[head] @ state[head] / 6**0.5
            if config.group_norm:
                o = (o - o.mean()) / (o.var(correction=0) + 6e-5).sqrt()
            heads.append(o)
        o = torch.cat(heads)
        if config.group_norm:
            o = o * p["ln_x.weight"] + p["ln_x.bias"]
        rows.append(p["o_proj.weight"] @ (o * gate_of(p, to["g"], config)))
        previous = now
    return torch.stack(rows), state


@each_variant
@torch.no_grad()
def test_as_its_formula_written_out(config):
    mixer, x = made(QRWKV6, config, BIASED), noise(1, 11, 20)
    vary(mixer.time_decay, -4, 3)  # beyond ln 5, where the decay is held at e^-5
    y, state = run(mixer, x)
    expected, last = written_out(parameters(mixer), x[0], config)
    near(y[0], expected)
    near(state["S"][0], last)
    assert set(state) == ({"S", "last"} if config.token_shift else {"S"})
    if config.token_shift:
        assert torch.equal(state["last"], x[:, -1])


@each_variant
def test_contract_of_each_configuration(config):
    mixer = made(QRWKV6, config)
    vary(mixer.time_decay, -6, 1.5)
    check_forms_and_splits(mixer, t=14)
    check_pads_between(mixer)
    unused = ("time_maa_g",) if config.gate == "none" else ()  # without a gate, its place in the shift idles
    check_gradients(mixer, t=9, frozen=unused)


@pytest.mark.parametrize("variant", ["released", "all at once"])
def test_contract(variant):
    mixer = made(QRWKV6, VARIANTS[variant])
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_constant_memory(mixer)
    check_half_precision(mixer)


RELEASED = {"rad_rwkv6_released_cfg": QRWKV6Config(shift_rank=3, decay_rank=3)}


@pytest.mark.parametrize("name", RELEASED)
@torch.no_grad()
def test_released_vectors(name):
    z, index = released(name)
    mixer = QRWKV6(RELEASED[name], Sizes(16, 4, 2, 4, qkv_bias=True))
    assert load(mixer, z) == {"x", "y"}
    for form in ("recurrent", "chunked", "parallel"):
        y, state = mixer.mix(z["x"], Tokens(POSITION), form=form)
        near(y, z["y"], atol=2e-5)
    first, before = mixer.mix(z["x"][:, :6], Tokens(POSITION[:, :6]))
    rest, after = mixer.mix(z["x"][:, 6:], Tokens(POSITION[:, 6:]), before)
    near(torch.cat([first, rest], dim=1), z["y"], atol=2e-5)
    near(after["S"], state["S"], atol=2e-5)
    assert index["tolerance"] == "2e-5"
    twice = z["y"] * 4**-0.5  # as the paper's equations have it: linear in o, and no bias of o
    assert float((y - twice).abs().max()) > 0.01


@torch.no_grad()
def test_without_balance_it_is_glas_recurrence():
    mixer, x, before = made(QRWKV6, replace(CONFIG, balance=False)), noise(2, 15, 20), noise(2, 4, 6, 6)
    told = tokens(2, 0, 15)
    to, last = mixer.shifted(x, told, {"last": x[:, 3]})
    q, k, v = (
        mixer.heads_of(linear(to[c]))
        for linear, c in ((mixer.q_proj, "r"), (mixer.k_proj, "k"), (mixer.v_proj, "v"))
    )
    k, v = mixer.per_query_head(k), mixer.per_query_head(v)
    gates = mixer.log_decay(to["w"]).clamp(min=-5)
    o, after = diagonal_decay(q, k, v, gates, scale=6**-0.5, state=State(before), form="recurrent")
    y, state = mixer.mix(x, told, {"S": before, "last": x[:, 3]})
    near(state["S"], after.S)
    near(y, mixer.o_proj(mixer.merged(o) * torch.sigmoid(to["g"] @ mixer.gate.weight.T)))
    assert torch.equal(last, state["last"])


@torch.no_grad()
def test_balance_keeps_the_state_where_keys_and_values_are():
    grown = {}
    for balance in (True, False):
        config = replace(CONFIG, balance=balance, token_shift=False)
        mixer, x = made(QRWKV6, config), noise(1, 1, 20).expand(1, 600, 20)
        mixer.time_decay.fill_(-4)
        mixer.time_decay_w2.zero_()
        key, value = (
            mixer.per_query_head(mixer.heads_of(linear(x[:, :1]))) for linear in (mixer.k_proj, mixer.v_proj)
        )
        grown[balance] = run(mixer, x)[1]["S"] / (key.mT @ value)
    near(grown[True], torch.ones_like(grown[True]), atol=0.01)
    near(grown[False], torch.full_like(grown[False], 1 / (1 - math.exp(-math.exp(-4)))), atol=0.5)


@torch.no_grad()
def test_the_released_code_mixes_a_first_token_with_the_pad_before_it():
    mixer, x, left = made(QRWKV6, CONFIG), noise(1, 9, 20), torch.tensor([3])
    alone, _ = run(mixer, x[:, 3:])
    near(run(mixer, x, left=left)[0][:, 3:], alone)
    as_released = run(mixer, x)[0][:, 3:]  # to which pads are tokens
    assert float((as_released - alone).abs().max()) > 0.01


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "gemma3"])
@torch.no_grad()
def test_a_start_from_a_teacher(family):
    attention = tiny(family).model.layers[2].self_attn
    mixer = QRWKV6.init_from(attention, CONFIG, layer=2)
    out = getattr(attention, "o_proj", None) or attention.dense
    pairs = [(getattr(mixer, f"{c}_proj"), getattr(attention, f"{c}_proj")) for c in "qkv"]
    for mine, theirs in [*pairs, (mixer.o_proj, out)]:
        assert torch.equal(mine.weight, theirs.weight)
        assert mine.weight is not theirs.weight
        assert (mine.bias is None) == (theirs.bias is None)
        assert mine.bias is None or torch.equal(mine.bias, theirs.bias)
    assert hasattr(mixer, "q_norm") == hasattr(attention, "q_norm")
    width = out.weight.shape[1]
    check_start(mixer.time_decay, lambda n: -6 + 5 * (n / (width - 1)) ** 2)
    told = Tokens(torch.arange(5)[None])
    x = noise(1, 5, out.weight.shape[0], dtype=torch.float32)
    to, _ = mixer.shifted(x, told, None)
    assert all(torch.equal(moved, x) for moved in to.values())  # no shift
    assert bool((mixer.gated(torch.ones(1, 5, width), x) == 0.5).all())
    assert not mixer.time_decay_w1.any()
    assert mixer.time_maa_w2.std() > 1e-3
    q, k, v = mixer.projected(x, x, x)
    for got, expected in zip((q, k, v), mixer.qkv(x), strict=True):
        assert torch.equal(got, expected)


@torch.no_grad()
def test_a_low_rank_gate_starts_the_same_for_every_token():
    mixer = QRWKV6(replace(CONFIG, gate="low_rank", group_norm=True), SIZES)
    gate = mixer.gated(torch.ones(1, 7, 24), noise(1, 7, 20, dtype=torch.float32))
    near(gate, gate[:, :1].expand_as(gate), atol=1e-6)
    near(mixer.g2 @ mixer.g2.T, 0.01 * torch.eye(4), atol=1e-6)  # 4 orthogonal rows of norm 0.1
    assert bool((mixer.ln_x.weight == 1).all())


def test_ranks_are_the_released():
    mixer = QRWKV6(QRWKV6Config(gate="low_rank"), Sizes(3584, 1, 1, 4))
    shapes = mixer.time_maa_w2.shape[1], mixer.time_decay_w1.shape[1], mixer.g1.shape[1]
    assert shapes == (96, 96, 416)


def test_an_unknown_gate_is_refused():
    with pytest.raises(ValueError, match=r"gate must be one of .*'low_rank'.*, got 'swish'"):
        QRWKV6Config(gate="swish")
