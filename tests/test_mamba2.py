"""MOHAWK's and Llamba's mixer against a double loop, phi-mamba's released code and linear attention; the
short convolution that other methods have too."""

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
from torch import nn

from swalib.linear._conv import CausalConv
from swalib.linear.mamba2 import Llamba, LlambaConfig, Mohawk, MohawkConfig
from swalib.linear.projections import Sizes, projections
from swalib.linear.recurrences import linear_attention
from swalib.models import tiny

CONFIGS = (
    MohawkConfig(),
    MohawkConfig(state_size=5, qk_heads=2, conv_taps=3),
    MohawkConfig(state_size=12, qk_heads=1, activation="silu"),
    MohawkConfig(conv_taps=1),
    LlambaConfig(state_size=7),
)


def mixer_of(config):
    return made(Llamba if isinstance(config, LlambaConfig) else Mohawk, config)


class Constant(nn.Module):
    """Stands in for a projection: the same number for every token."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.width, self.value = width, value

    def forward(self, x):
        return x.new_full((*x.shape[:-1], self.width), self.value)


def convolved(rows, conv):
    """The convolution of rows [t, channels], term by term."""
    taps, out = conv.weight.shape[-1], []
    for i in range(len(rows)):
        y = torch.zeros_like(rows[0]) if conv.bias is None else conv.bias.clone()
        for back in range(min(i + 1, taps)):
            y = y + conv.weight[:, 0, taps - 1 - back] * rows[i - back]
        out.append(y)
    return torch.stack(out)


def written_out(mixer, u, heads=4, d=6):
    """(y, M) of u [t, hidden], by the formula: no state, every pair of tokens."""
    active = F.silu if mixer.config.activation == "silu" else lambda x: x
    xbc = torch.cat([u @ mixer.v_proj.weight.T, u @ mixer.k_proj.weight.T, u @ mixer.q_proj.weight.T], dim=1)
    xbc = active(convolved(xbc, mixer.conv1d))
    width = (xbc.shape[1] - heads * d) // 2
    x, b, c = xbc.split([heads * d, width, width], dim=1)
    share = 1 if mixer.config.qk_heads is None else heads // mixer.config.qk_heads
    n = width * share // heads
    keep = torch.sigmoid(-(u @ mixer.a_proj.weight.T))
    outputs, t = [], len(u)
    matrix = torch.zeros(heads, t, t, dtype=u.dtype)
    for i in range(t):
        row = []
        for h in range(heads):
            own = slice(h * d, h * d + d)
            y = torch.zeros(d, dtype=u.dtype)
            for j in range(i + 1):
                shared = slice(h // share * n, h // share * n + n)
                m = (c[i, shared] @ b[j, shared]) * keep[j + 1 : i + 1, h].prod()
                m = m + (mixer.D[h] if i == j else 0)
                matrix[h, i, j] = m
                y = y + m * x[j, own]
            row.append(y)
        gate = F.silu(u[i] @ mixer.z_proj.weight.T + mixer.z_bias)
        outputs.append((torch.cat(row) * gate) @ mixer.o_proj.weight.T)
    return torch.stack(outputs), matrix


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@torch.no_grad()
def test_as_its_formula_written_out(config):
    mixer, u = mixer_of(config), noise(1, 11, SIZES.hidden_size)
    y, matrix = written_out(mixer, u[0])
    near(run(mixer, u)[0][0], y)
    near(mixer.materialised(u)[0], matrix)


@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_contract(config):
    mixer = mixer_of(config)
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


@torch.no_grad()
def test_the_matrix_times_the_values_is_the_recurrence():
    mixer, u = mixer_of(CONFIGS[1]), noise(2, 13, SIZES.hidden_size)
    mixer.z_proj, mixer.z_bias = Constant(24, 0.0), nn.Parameter(torch.full((24,), 1e4, dtype=torch.float64))
    mixer.o_proj = nn.Identity()
    told = tokens(2, 0, 13)
    values = mixer.heads_of(mixer.convolved(u, told, None)[0][2])
    expected = mixer.merged(mixer.materialised(u) @ values)
    near(mixer.mix(u, told)[0] / 1e4, expected)


@torch.no_grad()
def test_the_matrix_of_padded_rows():
    mixer, u = mixer_of(CONFIGS[0]), noise(2, 9, SIZES.hidden_size)
    told = tokens(2, 0, 9, left=torch.tensor([3, 0]), right=torch.tensor([9, 7]))
    matrix = mixer.materialised(u, told)
    near(matrix[0, :, 3:, 3:], mixer.materialised(u[:1, 3:])[0])
    near(matrix[1, :, :7, :7], mixer.materialised(u[1:, :7])[0])
    assert not matrix[0, :, :3].any()
    assert not matrix[0, :, :, :3].any()
    assert not matrix[1, :, 7:].any()


@torch.no_grad()
def test_without_decay_and_skip_its_start_is_linear_attention():
    """It starts with the identity for a convolution and a gate of 1; what is left are D and the decay."""
    attention = tiny("llama").double().model.layers[0].self_attn
    mixer, u = Mohawk.init_from(attention), noise(2, 13, 36)
    mixer.D.zero_()
    mixer.a_proj = Constant(4, -1e4)
    q, k, v = (mixer.heads_of(p(u)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    o, state = linear_attention(q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1))
    y, last = run(mixer, u)
    near(y, attention.o_proj(o.transpose(1, 2).flatten(2)), atol=1e-5)  # z_bias, fp32, in sums near 100
    near(last["S"], state.S)


def of_released(z) -> Mohawk:
    """The mixer with the parameters of phi-mamba's: in_proj holds x, B, C, z and a, in this order."""
    hidden, heads, inner = z["in_proj"].shape[1], z["D"].numel(), z["z_bias"].numel()
    width = (z["conv_w"].shape[0] - inner) // 2
    config = MohawkConfig(state_size=width // heads, conv_taps=z["conv_w"].shape[-1])
    mixer = Mohawk(config, Sizes(hidden, heads, heads, inner // heads)).eval()
    parts = z["in_proj"].split([inner, width, width, inner, heads])
    with torch.no_grad():
        for name, weight in zip("vkqza", parts, strict=True):
            getattr(mixer, f"{name}_proj").weight.copy_(weight)
        mixer.o_proj.weight.copy_(z["out_proj"])
        mixer.z_bias.copy_(z["z_bias"])
        mixer.D.copy_(z["D"])
        mixer.conv1d.weight.copy_(z["conv_w"])
        mixer.conv1d.bias.copy_(z["conv_b"])
    return mixer


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@torch.no_grad()
def test_released_vectors(form):
    z, index = released("phi_mamba_mixer")
    assert index["tolerance"] == "2e-5"
    mixer, u = of_released(z), z["u"]
    near(run(mixer, u, form=form)[0], z["y"], atol=2e-5)
    near(mixer.materialised(u), z["mixer_matrix"], atol=2e-5)
    near(run(mixer, u, [8, 1], form)[0], z["y_prefill8_decode4"], atol=2e-5)
    state = run(mixer, u[:, :8], form=form)[1]
    near(state["S"].mT, z["ssm_state8"], atol=2e-5)
    near(state["conv"].mT, z["conv_state8"][..., 1:], atol=2e-5)
    handed = {"S": z["ssm_state8"].mT, "conv": z["conv_state8"][..., 1:].mT}
    near(mixer.mix(u[:, 8:], tokens(2, 8, 12), handed, form)[0], z["y"][:, 8:], atol=2e-5)
    # A documented difference: the oldest input that released code keeps is read by no tap.
    oldest = torch.cat([p(u[:, 4]) for p in (mixer.v_proj, mixer.k_proj, mixer.q_proj)], dim=-1)
    near(z["conv_state8"][..., 0], oldest, atol=2e-5)


@torch.no_grad()
def test_a_decay_of_one_is_exact_where_released_code_divides_by_zero():
    mixer, u = Mohawk(MohawkConfig(), SIZES), noise(1, 5, SIZES.hidden_size, dtype=torch.float32)
    mixer.a_proj = Constant(4, -200.0)
    y, state = run(mixer, u)
    step = F.softplus(torch.tensor(-200.0))
    assert bool(torch.isnan(u / step * step).all())
    assert bool(torch.isfinite(y).all())
    b, v = (mixer.heads_of(project(u)) for project in (mixer.k_proj, mixer.v_proj))
    near(state["S"], b.mT @ v, atol=1e-5)


def by_query_head(rows, heads=4, kv_heads=2):
    return rows.unflatten(0, (kv_heads, -1)).repeat_interleave(heads // kv_heads, dim=0).flatten(0, 1)


@pytest.mark.parametrize(
    ("family", "config"),
    [(family, MohawkConfig()) for family in ("llama", "qwen2", "qwen3", "phi", "phi3", "gemma3")]
    + [("qwen2", LlambaConfig()), ("qwen3", LlambaConfig()), ("qwen3", LlambaConfig(state_size=10))],
)
@torch.no_grad()
def test_init_from(family, config):
    attention, cls = (
        tiny(family).model.layers[1].self_attn,
        Llamba if isinstance(config, LlambaConfig) else Mohawk,
    )
    mixer, source = cls.init_from(attention, config, layer=1), projections(attention)
    assert (type(mixer), mixer.sizes.layer) == (cls, 1)
    assert not {p.data_ptr() for p in mixer.parameters()} & {p.data_ptr() for p in attention.parameters()}
    alike = config.state_size in (None, 10)
    for part in "qkvo" if alike else "vo":
        expected, got = getattr(source, part), getattr(mixer, f"{part}_proj")
        for name, parameter in expected.named_parameters():
            parameter = by_query_head(parameter) if part in "kv" else parameter
            assert torch.equal(getattr(got, name), parameter), (part, name)
        assert (got.bias is None) == (expected.bias is None)
    assert alike or mixer.q_proj.weight.shape == mixer.k_proj.weight.shape == (4 * 64, source.q.in_features)
    assert hasattr(mixer, "q_norm") == hasattr(mixer, "k_norm") == (alike and source.q_norm is not None)
    starts_as_documented(mixer)
    check_forms_and_splits(mixer.double(), t=7, atol=1e-8)


def starts_as_documented(mixer):
    u, rows = noise(1, 5, mixer.sizes.hidden_size).float(), noise(1, 5, mixer.conv1d.in_channels).float()
    near(F.silu(mixer.z_proj(u) + mixer.z_bias), torch.ones(1, 5, 40), atol=1e-6)
    assert torch.equal(mixer.conv1d(rows, torch.ones(1, 5, dtype=torch.bool))[0], rows)
    assert torch.equal(mixer.D, torch.ones(4))
    assert 0 < float(mixer.a_proj.weight.abs().max()) <= mixer.sizes.hidden_size**-0.5


def test_what_it_refuses():
    with pytest.raises(ValueError, match="3 heads of B and C do not divide 4"):
        Mohawk(MohawkConfig(qk_heads=3), SIZES)
    with pytest.raises(ValueError, match="activation must be one of"):
        MohawkConfig(activation="gelu")
    with pytest.raises(ValueError, match="at least one tap"):
        Mohawk(MohawkConfig(conv_taps=0), SIZES)


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_the_convolution_skips_pads_wherever_they_stand(taps, bias):
    conv = CausalConv(3, taps, bias=bias).double()
    x = noise(4, 12, 3)
    real = torch.tensor([[1] * 12, [0, 0, 0, 1] * 3, [1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1], [0] * 12]).bool()
    x[~real] = 1e6
    whole, last = conv(x, real)
    assert bool(torch.isfinite(whole).all())
    for row in range(4):
        own = x[row, real[row]]
        if len(own):
            near(whole[row, real[row]], convolved(own, conv))
        near(last[row], torch.cat([torch.zeros(taps - 1, 3), own])[len(own) :])
    for split in ([5, 7], [1] * 12, [2, 1, 9]):
        parts, state = [], None
        for rows, here in zip(x.split(split, dim=1), real.split(split, dim=1), strict=True):
            y, state = conv(rows, here, state)
            parts.append(y)
        near(torch.cat(parts, dim=1)[real], whole[real])
        near(state, last)


@torch.no_grad()
def test_under_autocast_the_state_stays_in_fp32():
    mixer, x = made(Mohawk).float(), noise(2, 12, SIZES.hidden_size).float()
    exact = run(mixer, x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        y, state = run(mixer, x, [7, 1])
    assert state["S"].dtype == torch.float32
    near(y.float(), exact, atol=0.05 * float(exact.abs().max()))
