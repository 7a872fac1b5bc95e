"""Liger against a double loop, the released code's numbers, and its two halves alone."""

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
    same_state,
    tokens,
)

from swalib import masks
from swalib.linear.liger import Liger, LigerConfig
from swalib.linear.lolcats import LoLCATs, LoLCATsConfig
from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes, projections
from swalib.linear.recurrences import diagonal_decay
from swalib.models import tiny
from swalib.spec import SWA

HALVES = LigerConfig(window=5)
OTHER = LigerConfig(window=1, linear_share=0.3, gate_divisor=1)


def literal(mixer, x, S=None):  # noqa: N803
    """y [t, hidden] of one row x [t, hidden], pair by pair, after a prior state S [h, d, d]."""
    config, t = mixer.config, x.shape[0]
    groups = mixer.sizes.heads // mixer.sizes.kv_heads
    turn, (q, k, v) = rope(torch.arange(t)[None]), (z[0] for z in mixer.qkv(x[None]))
    rq, rk = turn(q[None])[0], turn(k[None])[0]
    o = torch.zeros(t, mixer.sizes.heads, mixer.sizes.head_dim, dtype=x.dtype)
    for i in range(t):
        for h in range(mixer.sizes.heads):
            g = h // groups
            fq = q[h, i].exp() / q[h, i].exp().sum()
            far, near_, below = torch.zeros_like(v[g, 0]), torch.zeros_like(v[g, 0]), 0.0
            gates = [(1 + (-k[g, j]).exp()) ** (-1 / config.gate_divisor) for j in range(i + 1)]
            for j in range(i + 1):
                fk = k[g, j].exp() / k[g, j].exp().sum()
                for later in gates[j + 1 :]:
                    fk = fk * later
                far = far + (fq @ fk) * v[g, j]
                if i - j < config.window:
                    weight = ((rq[h, i] @ rk[g, j]) / mixer.sizes.head_dim**0.5).exp()
                    near_, below = near_ + weight * v[g, j], below + weight
            if S is not None:
                far = far + (fq * torch.stack(gates).prod(0)) @ S[h]
            o[i, h] = (1 - config.linear_share) * near_ / below + config.linear_share * far
    return o.flatten(1) @ mixer.o_proj.weight.T


@pytest.mark.parametrize("config", [HALVES, OTHER, LigerConfig()], ids=repr)
@torch.no_grad()
def test_as_its_formula_written_out(config):
    mixer, x = made(Liger, config), noise(2, 12, SIZES.hidden_size)
    near(run(mixer, x)[0], torch.stack([literal(mixer, row) for row in x]))


def test_gradients_are_the_formulas():
    mixer, x, found = made(Liger, HALVES), noise(1, 9, SIZES.hidden_size), []
    for y in (run(mixer, x)[0][0], literal(mixer, x[0])):
        mixer.zero_grad()
        y.square().sum().backward()
        found.append([p.grad for p in mixer.parameters()])
    for got, expected in zip(*found, strict=True):
        near(got, expected)


@torch.no_grad()
def test_a_prior_state_is_read_by_every_row():
    mixer, x = made(Liger, HALVES), noise(1, 9, SIZES.hidden_size)
    S = noise(1, 4, 6, 6, seed=1)  # noqa: N806
    near(mixer.mix(x, tokens(1, 0, 9), {"S": S})[0][0], literal(mixer, x[0], S[0]))
    empty = mixer.mix(x[:, :0], tokens(1, 0, 0))[1]
    near(mixer.mix(x, tokens(1, 0, 9), empty)[0][0], literal(mixer, x[0]))


@pytest.mark.parametrize("config", [HALVES, OTHER], ids=repr)
def test_contract(config):
    mixer = made(Liger, config)
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


def test_past_a_chunk_and_the_default_window():
    mixer, x = made(Liger), noise(1, 150, SIZES.hidden_size)
    whole, last = run(mixer, x, form="parallel")
    y, state = run(mixer, x, [70, 3])
    near(y, whole)
    same_state(state, last)
    check_gradients(mixer, t=70)


@torch.no_grad()
def test_its_halves_are_swa_and_gla():
    x, alone, mixer = noise(2, 17, SIZES.hidden_size), {}, made(Liger)
    for share in (0.0, 0.5, 1.0):
        twin = made(Liger, LigerConfig(window=5, linear_share=share))
        twin.load_state_dict(mixer.state_dict())
        alone[share] = run(twin, x)[0]
    q, k, v = mixer.qkv(x)
    k, v, turn = mixer.per_query_head(k), mixer.per_query_head(v), rope(torch.arange(17).expand(2, -1))
    swa = torch.nn.functional.scaled_dot_product_attention(
        turn(q), turn(k), v, attn_mask=masks.mask(17, SWA(5, 0))
    )
    gate = torch.nn.functional.logsigmoid(k) / 16
    gla, _ = diagonal_decay(q.softmax(-1), k.softmax(-1), v, gate, form="recurrent")
    near(alone[0.0], mixer.o_proj(mixer.merged(swa)))
    near(alone[1.0], mixer.o_proj(mixer.merged(gla)))
    near(alone[0.5], 0.5 * (alone[0.0] + alone[1.0]))


@torch.no_grad()
def loaded(z, window):
    d = z["S"].shape[-1]
    sizes = Sizes(z["x"].shape[-1], z["Wq"].shape[0] // d, z["Wk"].shape[0] // d, d)
    mixer = Liger(LigerConfig(window=window), sizes)
    for name, array in (("q_proj", "Wq"), ("k_proj", "Wk"), ("v_proj", "Wv"), ("o_proj", "Wo")):
        getattr(mixer, name).weight.copy_(z[array])
    return mixer


def told(start, stop, batch=1):
    position = torch.arange(start, stop).expand(batch, -1)
    return Tokens(position, rope(position, 10_000.0))


@pytest.mark.parametrize("look_back", [63, 64])
@torch.no_grad()
def test_released_numbers(look_back):
    """A window that counts the keys behind the query: 64 with its own, or, on older transformers, 65."""
    z, index = released("liger_gla_mixer")
    mixer, (b, t, _) = loaded(z, masks.from_flash_attention(look_back).window), z["x"].shape
    whole, last = mixer.mix(z["x"], told(0, t, b))
    near(whole, z[f"y_left{look_back}"], 2e-5)
    near(last["S"], z["S"], 2e-5)
    before, state = mixer.mix(z["x"][:, : t - 1], told(0, t - 1, b))
    row, state = mixer.mix(z["x"][:, t - 1 :], told(t - 1, t, b), state)
    near(torch.cat([before, row], dim=1), z[f"y_left{look_back}"], 2e-5)
    assert index["tolerance"].startswith("2e-5")


@torch.no_grad()
def test_decoding_keeps_the_window():
    """As released, it doesn't: the window half of a generated token is its own v."""
    z, _ = released("liger_gla_mixer")
    mixer, t = loaded(z, 64), z["x"].shape[1]
    _, state = mixer.mix(z["x"][:, : t - 1], told(0, t - 1))
    alone = loaded(z, 1)  # a window of the own key
    forgetful, _ = alone.mix(z["x"][:, t - 1 :], told(t - 1, t), {"S": state["S"]})
    near(forgetful, z["y_decode_row69"], 2e-5)
    row, _ = mixer.mix(z["x"][:, t - 1 :], told(t - 1, t), state)
    assert float((row - z["y_decode_row69"]).abs().max()) > 1e-2


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "gemma3", "granite"])
@torch.no_grad()
def test_everything_is_the_teachers(family):
    attention = tiny(family).model.layers[0].self_attn
    source, mixer = projections(attention), Liger.init_from(attention, LigerConfig(window=9, linear_share=0))
    for name in "qkvo":
        assert getattr(mixer, f"{name}_proj") is getattr(source, name)
    theirs = {id(p) for p in attention.parameters()}
    assert {id(p) for p in mixer.parameters()} == theirs
    x = noise(1, 9, mixer.sizes.hidden_size, dtype=torch.float32)
    exact = LoLCATs.init_from(
        attention, LoLCATsConfig(window=9)
    )  # the teacher's attention, as its tests show
    near(run(mixer, x)[0], run(exact, x)[0], 1e-5)


def test_settings_that_mean_nothing_are_refused():
    for options, message in (
        ({"window": 0}, "window must be at least 1"),
        ({"linear_share": 1.5}, r"linear_share must lie in \[0, 1\]"),
        ({"gate_divisor": 0}, "gate_divisor must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            LigerConfig(**options)
