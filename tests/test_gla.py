"""GLA against a double loop, its released layer, and linear attention."""

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

from swalib.linear.gla import GLA, GLAConfig
from swalib.linear.projections import Sizes, projections
from swalib.linear.recurrences import linear_attention
from swalib.models import tiny

CONFIGS = {
    "default": GLAConfig(gate_rank=3),
    "conv": GLAConfig(gate_rank=3, gate_divisor=2.0, expand_v=1.5, conv_taps=3),
    "no_gate": GLAConfig(gate_divisor=1.0, min_log_decay=-0.5, output_gate=False, eps=1e-3),
}

RELEASED = {"gla_layer": {}, "gla_layer_grouped": {"min_log_decay": -0.05}}


def written_out(mixer, x, heads=4, d=6, share=2):
    """y of x [t, hidden], by the formula: no state, every pair of tokens."""
    config, d_v = mixer.config, round(d * mixer.config.expand_v)
    q, k, v = (x @ project.weight.T for project in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    if config.conv_taps:
        rows, taps = torch.cat([v, k, q], dim=1), config.conv_taps
        past = torch.cat([torch.zeros(taps - 1, rows.shape[1]), rows])
        y = sum(mixer.conv1d.weight[:, 0, tap] * past[tap : tap + len(x)] for tap in range(taps))
        v, k, q = F.silu(y).split([v.shape[1], k.shape[1], q.shape[1]], dim=1)
    low, high = mixer.gate
    alpha = torch.sigmoid((x @ low.weight.T) @ high.weight.T + high.bias) ** (1 / config.gate_divisor)
    if config.min_log_decay is not None:
        alpha = alpha.clamp(min=torch.tensor(config.min_log_decay).exp())
    outputs = []
    for i in range(len(x)):
        row = []
        for h in range(heads):
            own, theirs = slice(h * d, h * d + d), slice(h // share * d, h // share * d + d)
            values = slice(h // share * d_v, h // share * d_v + d_v)
            o = torch.zeros(d_v, dtype=x.dtype)
            for j in range(i + 1):
                kept = alpha[j + 1 : i + 1, theirs].prod(dim=0)
                o = o + (q[i, own] * kept * k[j, theirs]).sum() * d**-0.5 * v[j, values]
            o = o / (o.square().mean() + config.eps).sqrt() * mixer.norm.weight
            if config.output_gate:
                o = o * F.silu(mixer.g_proj.weight[h * d_v : h * d_v + d_v] @ x[i])
            row.append(o)
        outputs.append(torch.cat(row) @ mixer.o_proj.weight.T)
    return torch.stack(outputs)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_as_its_formula_written_out(name):
    mixer, x = made(GLA, CONFIGS[name]), noise(1, 11, SIZES.hidden_size)
    near(run(mixer, x)[0][0], written_out(mixer, x[0]), atol=1e-7 if name == "no_gate" else 1e-9)


@pytest.mark.parametrize("name", ["default", "conv"])
def test_contract(name):
    mixer = made(GLA, CONFIGS[name])
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


@torch.no_grad()
def test_under_autocast_the_state_stays_in_fp32():
    mixer, x = made(GLA).float(), noise(2, 12, SIZES.hidden_size).float()
    exact = run(mixer, x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        y, state = run(mixer, x, [7, 1])
    assert state["S"].dtype == torch.float32
    near(y.float(), exact, atol=0.05 * float(exact.abs().max()))


@torch.no_grad()
def test_with_open_forget_gates_it_is_linear_attention():
    mixer, x = made(GLA), noise(2, 13, SIZES.hidden_size)
    mixer.gate[1].weight.zero_()
    mixer.gate[1].bias.fill_(1e4)
    q, k, v = mixer.qkv(x)
    o, state = linear_attention(q, mixer.per_query_head(k), mixer.per_query_head(v), scale=6**-0.5)
    y, last = run(mixer, x)
    near(y, mixer.o_proj(mixer.merged(mixer.norm(o)) * F.silu(mixer.g_proj(x))))
    near(last["S"], state.S)


def of_released(z, **options) -> GLA:
    """The mixer with a released layer's parameters; what it lacks it was made without."""
    (width, hidden), d_v, rank = (
        z["q_proj_weight"].shape,
        z["g_norm_swish_gate_weight"].numel(),
        z["gk_proj_0_weight"],
    )
    heads, kv_heads = z["g_proj_weight"].shape[0] // d_v, z["v_proj_weight"].shape[0] // d_v
    taps = z["q_conv1d_weight"].shape[-1] if "q_conv1d_weight" in z else 0
    d = width // heads
    config = GLAConfig(gate_rank=len(rank), expand_v=d_v / d, conv_taps=taps, **options)
    mixer = GLA(config, Sizes(hidden, heads, kv_heads, d)).eval()
    with torch.no_grad():
        for part in "qkvog":
            getattr(mixer, f"{part}_proj").weight.copy_(z[f"{part}_proj_weight"])
        for index, linear in enumerate(mixer.gate):
            linear.weight.copy_(z[f"gk_proj_{index}_weight"])
        mixer.gate[1].bias.copy_(z["gk_proj_1_bias"])
        mixer.norm.weight.copy_(z["g_norm_swish_gate_weight"])
        if taps:
            mixer.conv1d.weight.copy_(torch.cat([z[f"{part}_conv1d_weight"] for part in "vkq"]))
    return mixer


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@pytest.mark.parametrize(("name", "options"), RELEASED.items())
@torch.no_grad()
def test_released_vectors(name, options, form):
    z, index = released(name)
    tolerance = float(index["tolerance"])
    mixer, x = of_released(z, **options), z["x"]
    own = {n: a for n, a in z.items() if n.endswith(("weight", "bias"))}
    assert sum(p.numel() for p in mixer.parameters()) == sum(a.numel() for a in own.values())
    near(run(mixer, x, form=form)[0], z["y"], atol=tolerance)
    near(run(mixer, x, [8, 1], form)[0], z["y_prefill8_decode5"], atol=tolerance)
    state, handed = run(mixer, x[:, :8], form=form)[1], {"S": z["recurrent_state8"].mT}
    if mixer.conv1d is not None:  # released code keeps an input more, the oldest, which no tap reads
        handed["conv"] = torch.cat([z[f"conv_state8_{part}"] for part in "vkq"], dim=1)[..., 1:].mT
        oldest = {part: getattr(mixer, f"{part}_proj")(x[:, 4]) for part in "qkv"}
        for part, expected in oldest.items():
            near(z[f"conv_state8_{part}"][..., 0], expected, atol=tolerance)
    same_state(state, handed, atol=tolerance)
    near(mixer.mix(x[:, 8:], tokens(2, 8, 13), handed, form)[0], z["y"][:, 8:], atol=tolerance)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "phi3", "gemma3"])
@torch.no_grad()
def test_init_from(family):
    attention = tiny(family).model.layers[1].self_attn
    mixer, source = GLA.init_from(attention, layer=1), projections(attention)
    assert (mixer.config, mixer.sizes.layer) == (GLAConfig(), 1)
    for part in "qkvo":
        expected, got = getattr(source, part), getattr(mixer, f"{part}_proj")
        assert got is expected or (family == "phi3" and torch.equal(got.weight, expected.weight))
    assert mixer.o_proj is (attention.dense if family == "phi" else attention.o_proj)
    assert getattr(mixer, "q_norm", None) is source.q_norm
    assert getattr(mixer, "k_norm", None) is source.k_norm
    theirs = {id(p) for p in attention.parameters()}
    if family != "phi3":
        own = {name for name, p in mixer.named_parameters() if id(p) not in theirs}
        assert own == {"gate.0.weight", "gate.1.weight", "gate.1.bias", "g_proj.weight", "norm.weight"}
    assert mixer.gate[1].weight.shape == (20, 16)
    assert torch.equal(mixer.norm.weight, torch.ones(10))
    check_forms_and_splits(mixer.double(), t=7)


def test_values_of_another_size_are_new():
    attention = tiny("llama").model.layers[0].self_attn
    mixer = GLA.init_from(attention, GLAConfig(expand_v=1.5))
    assert mixer.q_proj is attention.q_proj
    assert mixer.k_proj is attention.k_proj
    assert (mixer.v_proj.out_features, mixer.o_proj.in_features) == (2 * 15, 4 * 15)
    with pytest.raises(ValueError, match="no whole size"):
        GLA(GLAConfig(expand_v=0.55), SIZES)
