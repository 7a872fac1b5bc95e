"""Gated DeltaNet against a double loop, its released layer, arithmetic by hand, and what its gates mean."""

import math

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
    released,
    run,
    same_state,
    tokens,
)
from torch import nn

from swalib.linear.gated_deltanet import GatedDeltaNet, GatedDeltaNetConfig
from swalib.linear.projections import Sizes, projections
from swalib.models import tiny

CONFIGS = {
    "default": GatedDeltaNetConfig(),
    "signs": GatedDeltaNetConfig(negative_eigenvalues=True, conv_bias=True, conv_taps=2, expand_v=1.5),
    "plain": GatedDeltaNetConfig(conv_taps=0, output_gate=False, eps=1e-3),
    "more_values": GatedDeltaNetConfig(v_heads=8, expand_v=0.5),
}

RELEASED = {
    "gated_deltanet_layer": {"heads": 2},
    "gated_deltanet_layer_values": {"heads": 2, "v_heads": 4, "negative_eigenvalues": True},
}


def inputs_written_out(mixer, x, heads, kv_heads, v_heads):
    """q, k, v, g, beta of x [t, hidden], each [t, state heads, ...], kv heads repeated."""
    config = mixer.config
    q, k, v = (x @ project.weight.T for project in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    if config.conv_taps:
        rows, taps = torch.cat([v, k, q], dim=1), config.conv_taps
        past = torch.cat([torch.zeros(taps - 1, rows.shape[1]), rows])
        y = sum(mixer.conv1d.weight[:, 0, tap] * past[tap : tap + len(x)] for tap in range(taps))
        y = y if mixer.conv1d.bias is None else y + mixer.conv1d.bias
        v, k, q = y.split([v.shape[1], k.shape[1], q.shape[1]], dim=1)
    of = max(heads, v_heads)
    q, k, v = (
        torch.stack([F.silu(z).chunk(n, dim=1)[h * n // of] for h in range(of)], dim=1)
        for z, n in ((q, heads), (k, kv_heads), (v, v_heads))
    )
    q, k = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    rate = torch.log1p(torch.exp(x @ mixer.a_proj.weight.T + mixer.dt_bias))
    beta = torch.sigmoid(x @ mixer.b_proj.weight.T) * (2 if config.negative_eigenvalues else 1)
    return q, k, v, -torch.exp(mixer.A_log) * rate, beta


def written_out(mixer, x, heads=4, kv_heads=2, d=6):
    """y of x [t, hidden], by the formula: what each token writes, solved for token by token."""
    config = mixer.config
    v_heads = kv_heads if config.v_heads is None else config.v_heads
    q, k, v, g, beta = inputs_written_out(mixer, x, heads, kv_heads, v_heads)
    t, of, d_v = v.shape
    outputs = torch.zeros(t, of, d_v, dtype=x.dtype)
    for h in range(of):
        written = []
        for i in range(t):
            kept = [g[j + 1 : i + 1, h].sum().exp() for j in range(i + 1)]
            recalled = sum(((k[i, h] @ k[j, h]) * kept[j] * written[j] for j in range(i)), torch.zeros(d_v))
            written.append(beta[i, h] * (v[i, h] - recalled))
            o = sum((q[i, h] @ k[j, h]) * kept[j] * written[j] for j in range(i + 1)) * d**-0.5
            outputs[i, h] = o / (o.square().mean() + config.eps).sqrt() * mixer.norm.weight
    outputs = outputs.flatten(1)
    if config.output_gate:
        outputs = outputs * F.silu(x @ mixer.g_proj.weight.T)
    return outputs @ mixer.o_proj.weight.T


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_as_its_formula_written_out(name):
    mixer, x = made(GatedDeltaNet, CONFIGS[name]), noise(1, 11, SIZES.hidden_size)
    near(run(mixer, x)[0][0], written_out(mixer, x[0]))


@pytest.mark.parametrize("name", ["default", "signs"])
def test_contract(name):
    mixer = made(GatedDeltaNet, CONFIGS[name])
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


@torch.no_grad()
def test_contract_of_other_shapes():
    for name in ("plain", "more_values"):
        mixer = made(GatedDeltaNet, CONFIGS[name])
        check_forms_and_splits(mixer, t=11)
        check_padding(mixer, t=17)


@torch.no_grad()
def test_under_autocast_the_state_stays_in_fp32():
    mixer, x = made(GatedDeltaNet).float(), noise(2, 12, SIZES.hidden_size).float()
    exact = run(mixer, x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        y, state = run(mixer, x, [7, 1])
    assert state["S"].dtype == torch.float32
    near(y.float(), exact, atol=0.05 * float(exact.abs().max()))


def of_released(z, heads, **options) -> GatedDeltaNet:
    """The mixer with a released layer's parameters; what it lacks it was made without."""
    hidden, (width, _, taps), d_v = z["x"].shape[-1], z["q_conv1d_weight"].shape, z["o_norm_weight"].numel()
    d = width // heads
    options |= {"conv_taps": taps, "conv_bias": "q_conv1d_bias" in z, "expand_v": d_v / d}
    mixer = GatedDeltaNet(GatedDeltaNetConfig(**options), Sizes(hidden, heads, heads, d)).eval()
    with torch.no_grad():
        for part in "qkvoabg":
            getattr(mixer, f"{part}_proj").weight.copy_(z[f"{part}_proj_weight"])
        mixer.norm.weight.copy_(z["o_norm_weight"])
        mixer.A_log.copy_(z["A_log"])
        mixer.dt_bias.copy_(z["dt_bias"])
        for name, parameter in mixer.conv1d.named_parameters():
            parameter.copy_(torch.cat([z[f"{part}_conv1d_{name}"] for part in "vkq"]))
    return mixer


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@pytest.mark.parametrize(("name", "options"), RELEASED.items())
@torch.no_grad()
def test_released_vectors(name, options, form):
    z, index = released(name)
    tolerance = float(index["tolerance"])
    mixer, x = of_released(z, **options), z["x"]
    own = {n: a for n, a in z.items() if n.endswith(("weight", "bias", "A_log"))}
    assert sum(p.numel() for p in mixer.parameters()) == sum(a.numel() for a in own.values())
    near(run(mixer, x, form=form)[0], z["y"], atol=tolerance)
    near(run(mixer, x, [8, 1], form)[0], z.get("y_prefill8_decode5", z["y"]), atol=tolerance)
    if "recurrent_state8" in z:
        released_state(mixer, z, form, tolerance)


def released_state(mixer, z, form, tolerance):
    """The state after 8 tokens is the released layer's, and the text goes on from that."""
    x = z["x"]
    conv = torch.cat([z[f"conv_state8_{part}"] for part in "vkq"], dim=1)
    handed = {"S": z["recurrent_state8"].mT, "conv": conv[..., 1:].mT}
    same_state(run(mixer, x[:, :8], form=form)[1], handed, atol=tolerance)
    near(mixer.mix(x[:, 8:], tokens(2, 8, 13), handed, form)[0], z["y"][:, 8:], atol=tolerance)
    # A documented difference: the oldest input that released code keeps is read by no tap.
    oldest = torch.cat([project(x[:, 4]) for project in (mixer.v_proj, mixer.k_proj, mixer.q_proj)], dim=-1)
    near(conv[..., 0], oldest, atol=tolerance)


def by_hand(x: float, before: float, state: float) -> tuple[float, float]:
    """One token of one head of size 1: (y, state)."""

    def sigmoid(u):
        return 1 / (1 + math.exp(-u))

    q, k, v = (
        0.3 * before + w * x for w in (0.7, -1.1, 0.9)
    )  # a convolution of two taps, [0.3, 1]·w at once
    q, k, v = (u * sigmoid(u) for u in (q, k, v))
    q, k = (u / math.sqrt(u * u + 1e-6) for u in (q, k))
    state *= math.exp(-2.0 * math.log(1 + math.exp(0.5 * x + 0.1)))
    state += k * sigmoid(-0.4 * x) * (v - k * state)
    o = q * state
    o = o / math.sqrt(o * o + 1e-5) * 1.3
    gate = 0.8 * x
    return o * gate * sigmoid(gate) * 1.7, state


@torch.no_grad()
def test_one_head_of_size_one_by_hand():
    mixer = GatedDeltaNet(GatedDeltaNetConfig(conv_taps=2), Sizes(1, 1, 1, 1)).double()
    weights = {"q": 0.7, "k": -1.1, "v": 0.9, "a": 0.5, "b": -0.4, "g": 0.8, "o": 1.7}
    for part, weight in weights.items():
        getattr(mixer, f"{part}_proj").weight.fill_(weight)
    mixer.norm.weight.fill_(1.3)
    mixer.A_log.fill_(math.log(2.0))
    mixer.dt_bias.fill_(0.1)
    for channel, part in enumerate("vkq"):  # the tap before gives 0.3 of a token, whatever its projection
        mixer.conv1d.weight[channel, 0] = torch.tensor([0.3 / weights[part], 1.0])
    text, expected, before, state = (1.2, -0.7, 0.4, 2.1), [], 0.0, 0.0
    for x in text:
        y, state = by_hand(x, before, state)
        expected.append(y)
        before = x
    y, last = run(mixer, torch.tensor(text, dtype=torch.float64)[None, :, None])
    near(y[0, :, 0], torch.tensor(expected, dtype=torch.float64))
    assert float(last["S"]) == pytest.approx(state)


class Constant(nn.Module):
    """Stands in for a projection: the same number for every token."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x):
        return x.new_full((*x.shape[:-1], SIZES.heads), self.value)


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@torch.no_grad()
def test_what_writes_nothing_keeps_its_state(form):
    mixer, x = made(GatedDeltaNet), noise(2, 9, SIZES.hidden_size)
    _, state = run(mixer, noise(2, 5, SIZES.hidden_size, seed=1))
    mixer.b_proj = Constant(-torch.inf)  # beta = 0
    decays = -mixer.A_log.exp() * F.softplus(mixer.a_proj(x) + mixer.dt_bias)
    _, after = mixer.mix(x, tokens(2, 5, 14), state, form)
    near(after["S"], decays.sum(1).exp()[..., None, None] * state["S"])
    mixer.A_log.fill_(-torch.inf)  # and no decay
    _, after = mixer.mix(x, tokens(2, 5, 14), state, form)
    near(after["S"], state["S"], atol=0)


@torch.no_grad()
def test_what_it_writes_it_recalls():
    """With beta 1, no decay and unit keys the last key recalls its own value, whatever was written before."""
    mixer, x = made(GatedDeltaNet), 30 * noise(2, 9, SIZES.hidden_size)
    mixer.b_proj = Constant(torch.inf)
    mixer.A_log.fill_(-torch.inf)
    _, k, v = (F.silu(z[:, -1]) for z in mixer.convolved(x, tokens(2, 0, 9), None)[0])
    k, v = (mixer.per_query_head(z.unflatten(-1, (2, 6))) for z in (k, v))
    recalled = F.normalize(k, dim=-1)[:, :, None] @ run(mixer, x)[1]["S"]
    torch.testing.assert_close(recalled[:, :, 0], v, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "phi3", "gemma3"])
@torch.no_grad()
def test_init_from(family):
    attention = tiny(family).model.layers[1].self_attn
    mixer, source = GatedDeltaNet.init_from(attention, layer=1), projections(attention)
    assert (mixer.config, mixer.sizes.layer) == (GatedDeltaNetConfig(), 1)
    for part in "qkvo":
        expected, got = getattr(source, part), getattr(mixer, f"{part}_proj")
        assert got is expected or (family == "phi3" and torch.equal(got.weight, expected.weight))
    assert getattr(mixer, "q_norm", None) is source.q_norm
    assert getattr(mixer, "k_norm", None) is source.k_norm
    theirs = {id(p) for p in attention.parameters()}
    if family != "phi3":
        own = {name for name, p in mixer.named_parameters() if id(p) not in theirs}
        linear = {f"{part}_proj.weight" for part in "abg"}
        assert own == linear | {"A_log", "dt_bias", "conv1d.weight", "norm.weight"}
    assert torch.equal(mixer.norm.weight, torch.ones(10))
    check_forms_and_splits(mixer.double(), t=7)


@torch.no_grad()
def test_how_what_is_new_starts():
    mixer = GatedDeltaNet(GatedDeltaNetConfig(), Sizes(8, 2000, 1, 2))
    dt, a = F.softplus(mixer.dt_bias), mixer.A_log.exp()
    assert 0.999e-3 < float(dt.min()) < float(dt.max()) < 0.1001
    assert 0 < float(a.min()) < 0.2
    assert 15.9 < float(a.max()) <= 16.0001
    attention = tiny("llama").model.layers[0].self_attn
    mixer = GatedDeltaNet.init_from(attention, GatedDeltaNetConfig(v_heads=8))
    assert mixer.q_proj is attention.q_proj
    assert (mixer.v_proj.out_features, mixer.o_proj.in_features) == (80, 80)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="6 value heads are no multiple of 4"):
        GatedDeltaNet(GatedDeltaNetConfig(v_heads=6), SIZES)
    with pytest.raises(ValueError, match="no whole size"):
        GatedDeltaNet(GatedDeltaNetConfig(expand_v=1.1), SIZES)
