"""Mamba in the Llama against a double loop, its released code, and linear attention."""

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
    tokens,
)

from swalib.linear.mamba_in_llama import MambaInLlama, MambaInLlamaConfig
from swalib.linear.projections import Sizes, projections
from swalib.linear.recurrences import linear_attention
from swalib.models import tiny

CONFIGS = (
    MambaInLlamaConfig(),
    MambaInLlamaConfig(repeat_before_conv=True, norm="before_gate", eps=1e-3),
    MambaInLlamaConfig(conv_taps=2, norm="none"),
)


def convolved(rows, conv):
    """silu of the convolution of rows [t, channels], term by term."""
    taps, out = conv.weight.shape[-1], []
    for i in range(len(rows)):
        terms = [conv.weight[:, 0, taps - 1 - back] * rows[i - back] for back in range(min(i + 1, taps))]
        out.append(F.silu(sum(terms) + conv.bias))
    return torch.stack(out)


def repeated(rows, heads=4, kv_heads=2):
    """[t, kv·d] as [t, heads·d]."""
    shared = rows.chunk(kv_heads, dim=1)
    return torch.cat([shared[h * kv_heads // heads] for h in range(heads)], dim=1)


def gated(mixer, y, z, weight):
    """One head's outputs of one token."""
    norm, eps = mixer.config.norm, mixer.config.eps
    if norm == "none":
        return y * F.silu(z)
    if norm == "after_gate":
        y = y * F.silu(z)
    y = y / (y.square().mean() + eps).sqrt() * weight
    return y * F.silu(z) if norm == "before_gate" else y


def written_out(mixer, u, heads=4, d=6):
    """y of u [t, hidden], by the formula: no state, every pair of tokens."""
    x, b, c = (u @ project.weight.T for project in (mixer.v_proj, mixer.k_proj, mixer.q_proj))
    if mixer.config.repeat_before_conv:
        x, b = repeated(x), repeated(b)
    width = x.shape[1]
    x, b, c = convolved(torch.cat([x, b, c], dim=1), mixer.conv1d).split([width, width, heads * d], dim=1)
    if not mixer.config.repeat_before_conv:
        x, b = repeated(x), repeated(b)
    dt = torch.log1p(torch.exp(u @ mixer.dt_proj.weight.T + mixer.dt_bias))
    z, outputs = u @ mixer.z_proj.weight.T, []
    for i in range(len(u)):
        row = []
        for h in range(heads):
            own = slice(h * d, h * d + d)
            y = mixer.D[h] * x[i, own]
            for j in range(i + 1):
                decay = torch.exp(-torch.exp(mixer.A_log[h]) * dt[j + 1 : i + 1, h].sum())
                y = y + (c[i, own] @ b[j, own]) * decay * dt[j, h] * x[j, own]
            weight = None if mixer.norm_weight is None else mixer.norm_weight[own]
            row.append(gated(mixer, y, z[i, own], weight))
        outputs.append(torch.cat(row) @ mixer.o_proj.weight.T)
    return torch.stack(outputs)


@pytest.mark.parametrize("config", CONFIGS, ids=("default", "repeat_before_conv", "no_norm"))
@torch.no_grad()
def test_as_its_formula_written_out(config):
    mixer, u = made(MambaInLlama, config), noise(1, 11, SIZES.hidden_size)
    near(run(mixer, u)[0][0], written_out(mixer, u[0]))


@pytest.mark.parametrize("config", CONFIGS[:2], ids=("default", "repeat_before_conv"))
def test_contract(config):
    mixer = made(MambaInLlama, config)
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


@torch.no_grad()
def test_under_autocast_the_state_stays_in_fp32():
    mixer, x = made(MambaInLlama).float(), noise(2, 12, SIZES.hidden_size).float()
    exact = run(mixer, x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        y, state = run(mixer, x, [7, 1])
    assert state["S"].dtype == torch.float32
    near(y.float(), exact, atol=0.05 * float(exact.abs().max()))


@torch.no_grad()
def test_without_decay_skip_and_norm_it_is_linear_attention():
    mixer, u = made(MambaInLlama, MambaInLlamaConfig(norm="none")), noise(2, 13, SIZES.hidden_size)
    mixer.conv1d.be_identity()
    for parameter, value in (
        (mixer.A_log, -torch.inf),
        (mixer.D, 0.0),
        (mixer.dt_proj.weight, 0.0),
        (mixer.dt_bias, math.log(math.e - 1)),
    ):
        parameter.fill_(value)
    q, k, v = (F.silu(z) for z in mixer.qkv(u))
    o, state = linear_attention(q, mixer.per_query_head(k), mixer.per_query_head(v))
    y, last = run(mixer, u)
    near(y, mixer.o_proj(mixer.merged(o) * F.silu(mixer.z_proj(u))))
    near(last["S"], state.S)


def of_released(z) -> MambaInLlama:
    """The mixer with released parameters: in_proj holds z, x, B, C and dt, in this order."""
    hidden, heads, inner = z["in_proj"].shape[1], z["D"].numel(), z["norm_w"].numel()
    kv_width = (z["in_proj"].shape[0] - 2 * inner - heads) // 2
    d = inner // heads
    repeat = z["conv_w"].shape[0] == 3 * inner and kv_width < inner
    config = MambaInLlamaConfig(conv_taps=z["conv_w"].shape[-1], repeat_before_conv=repeat)
    mixer = MambaInLlama(config, Sizes(hidden, heads, kv_width // d, d)).eval()
    parts = z["in_proj"].split([inner, kv_width, kv_width, inner, heads])
    with torch.no_grad():
        for name, weight in zip(("z", "v", "k", "q", "dt"), parts, strict=True):
            getattr(mixer, f"{name}_proj").weight.copy_(weight)
        mixer.o_proj.weight.copy_(z["out_proj"])
        mixer.conv1d.weight.copy_(z["conv_w"])
        mixer.conv1d.bias.copy_(z["conv_b"])
        for name, array in (
            ("A_log", "A_log"),
            ("dt_bias", "dt_bias"),
            ("D", "D"),
            ("norm_weight", "norm_w"),
        ):
            getattr(mixer, name).copy_(z[array])
    return mixer


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@torch.no_grad()
def test_released_vectors(form):
    z, index = released("mamba_in_llama_mixer")
    assert index["tolerance"] == "2e-5"
    mixer, u = of_released(z), z["u"]
    near(run(mixer, u, form=form)[0], z["y"], atol=2e-5)
    near(run(mixer, u, [8, 1], form)[0], z["y_prefill8_decode4"], atol=2e-5)
    state = run(mixer, u[:, :8], form=form)[1]
    near(state["S"].mT, z["ssm_state8"], atol=2e-5)
    near(state["conv"].mT, z["conv_state8"][..., 1:], atol=2e-5)
    handed = {"S": z["ssm_state8"].mT, "conv": z["conv_state8"][..., 1:].mT}
    near(mixer.mix(u[:, 8:], tokens(2, 8, 12), handed, form)[0], z["y"][:, 8:], atol=2e-5)
    # A documented difference: the oldest input that released code keeps is read by no tap.
    oldest = torch.cat([p(u[:, 4]) for p in (mixer.v_proj, mixer.k_proj, mixer.q_proj)], dim=-1)
    near(z["conv_state8"][..., 0], oldest, atol=2e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "phi3", "gemma3"])
@torch.no_grad()
def test_init_from(family):
    attention = tiny(family).model.layers[1].self_attn
    mixer, source = MambaInLlama.init_from(attention, layer=1), projections(attention)
    assert (mixer.config, mixer.sizes.layer) == (MambaInLlamaConfig(), 1)
    assert not {p.data_ptr() for p in mixer.parameters()} & {p.data_ptr() for p in attention.parameters()}
    for part in "qkvo":
        expected, got = getattr(source, part), getattr(mixer, f"{part}_proj")
        assert torch.equal(got.weight, expected.weight)
        assert (got.bias is None) == (expected.bias is None)
        assert got.bias is None or torch.equal(got.bias, expected.bias)
    assert hasattr(mixer, "q_norm") == hasattr(mixer, "k_norm") == (source.q_norm is not None)
    assert torch.equal(mixer.D, torch.ones(4))
    assert torch.equal(mixer.norm_weight, torch.ones(40))
    check_forms_and_splits(mixer.double(), t=7)


@torch.no_grad()
def test_new_weights_start_in_the_released_ranges():
    mixer = MambaInLlama(MambaInLlamaConfig(), Sizes(8, 2000, 1, 2))
    dt, a = F.softplus(mixer.dt_bias), mixer.A_log.exp()
    assert 0.999e-3 < float(dt.min()) < 1.1e-3
    assert 0.09 < float(dt.max()) < 0.1001
    assert float(dt.median()) == pytest.approx(1e-2, rel=0.2)
    assert 1 <= float(a.min()) < 1.1
    assert 15.9 < float(a.max()) <= 16.0001
    assert float(a.mean()) == pytest.approx(8.5, rel=0.05)
    bound = 4**-0.5  # of a convolution of four taps a channel
    assert 0.95 * bound < float(mixer.conv1d.weight.abs().max()) <= bound


def test_what_it_refuses():
    with pytest.raises(ValueError, match="norm must be one of"):
        MambaInLlamaConfig(norm="rms")
