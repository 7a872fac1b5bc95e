"""DiJiang against a double loop, and the released code's numbers."""

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
    released,
    rope,
    run,
    tokens,
)

from swalib.linear.dijiang import DiJiang, DiJiangConfig
from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes, projections
from swalib.models import tiny

PAPER, RELEASED = DiJiangConfig(), DiJiangConfig(version="released")
FACTORS = DiJiangConfig(version="released", factor_positions=450)


def built(config, sizes=SIZES):
    """Frequencies small enough that the paper's exponentials stay near 1."""
    mixer = made(DiJiang, config, sizes)
    mixer.phi.projection.mul_(0.3)
    return mixer


def gamma(h, heads):
    first, last = math.log(1 / 32), math.log(1 / 512)
    return 1 - math.exp(first + (last - first) * h / max(heads - 1, 1))


def literal(mixer, x, S=None):  # noqa: N803
    """y [t, hidden] of one row x [t, hidden], pair by pair, after a prior state S [h, f, d]."""
    sizes, t, factors = mixer.sizes, x.shape[0], mixer.config.factor_positions
    d, heads, turn = sizes.head_dim, sizes.heads, rope(torch.arange(t)[None])
    q, k, v = (z[0] for z in mixer.qkv(x[None]))
    q, k = turn(q[None])[0], turn(k[None])[0]

    def phi(token):
        y = (token @ mixer.phi.projection).exp()
        return y / y.sum() if mixer.config.version == "released" else mixer.phi.weight * y

    rows = []
    for i in range(t):
        merged = torch.zeros(heads * d, dtype=x.dtype)
        for h in range(heads):
            g = h // (heads // sizes.kv_heads)
            for j in range(i + 1):
                fade = mixer.row[h, i] * mixer.column[h, j] if factors else gamma(h, heads) ** (i - j)
                merged[h * d : (h + 1) * d] += fade * (phi(q[h, i]) @ phi(k[g, j])) * v[g, j]
            if S is not None:
                fade = mixer.row[h, i] if factors else gamma(h, heads) ** (i + 1)
                merged[h * d : (h + 1) * d] += fade * (phi(q[h, i]) @ S[h])
        for group in range(d):  # of `heads` neighbours, whichever head they come from
            part = merged[group * heads : (group + 1) * heads].clone()
            part = (part - part.mean()) / (part.var(correction=0) + 1e-5).sqrt()
            merged[group * heads : (group + 1) * heads] = part
        gate = mixer.gate_proj.weight @ x[i]
        merged = (merged * mixer.norm.weight + mixer.norm.bias) * gate / (1 + (-gate).exp())
        rows.append(mixer.o_proj.weight @ merged)
    return torch.stack(rows)


@pytest.mark.parametrize("config", [PAPER, RELEASED, FACTORS], ids=repr)
@torch.no_grad()
def test_as_its_formula_written_out(config):
    mixer, x = built(config), noise(2, 10, SIZES.hidden_size)
    near(run(mixer, x)[0], torch.stack([literal(mixer, row) for row in x]))


@pytest.mark.parametrize("config", [RELEASED, FACTORS], ids=repr)
@torch.no_grad()
def test_a_prior_state_is_read_by_every_row(config):
    mixer, x = built(config), noise(1, 7, SIZES.hidden_size)
    before = {"S": noise(1, 4, 6, 6, seed=1)}
    near(mixer.mix(x, tokens(1, 0, 7), before)[0][0], literal(mixer, x[0], before["S"][0]))


@pytest.mark.parametrize("config", [PAPER, RELEASED, FACTORS], ids=repr)
def test_contract(config):
    mixer = built(config)
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


@torch.no_grad()
def test_factors_start_as_the_closed_form():
    """To rounding even at the end of the released 2048 positions, where gamma^-j is 10^28."""
    x, sizes = noise(1, 2048, SIZES.hidden_size, dtype=torch.float32), SIZES
    long = DiJiang(DiJiangConfig(version="released", factor_positions=2048), sizes)
    closed = DiJiang(RELEASED, sizes)
    closed.load_state_dict({n: p for n, p in long.state_dict().items() if n not in ("row", "column")})
    assert float(long.column.detach().max()) > 1e28
    near(run(long, x)[0], run(closed, x)[0], 1e-4)


@torch.no_grad()
def test_factors_end_where_they_end():
    mixer, x = built(DiJiangConfig("released", factor_positions=8)), noise(2, 9, SIZES.hidden_size)
    left = torch.tensor([1, 2])
    y, _ = run(mixer, x, [4], left=left)  # pads take no place
    near(y[1, 2:], run(mixer, x[1:, 2:])[0][0])
    for sizes in ([9], [8, 1]):
        with pytest.raises(ValueError, match="factors for 8 tokens, and this text reaches 9"):
            run(mixer, x, sizes)


@torch.no_grad()
def loaded(z, factors):
    """The mixer of a file that names its weights as dijiang_layer does: q, k, v lie head by head."""
    (_, heads, positions, _), d, hidden = z["D1"].shape, z["proj"].shape[0], z["x"].shape[-1]
    config = DiJiangConfig("released", positions if factors else None)
    mixer = DiJiang(config, Sizes(hidden, heads, heads, d, qkv_bias=True, o_bias=True))
    for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
        linear = getattr(mixer, name)
        linear.weight.copy_(z["Wqkv"].view(heads, 3, d, hidden)[:, part].flatten(0, 1))
        linear.bias.copy_(z["bqkv"].view(heads, 3, d)[:, part].flatten())
    mixer.phi.projection.copy_(z["proj"])
    mixer.gate_proj.weight.copy_(z["W_G"].T)
    for module, name in ((mixer.norm, "gn"), (mixer.o_proj, "dense")):
        module.weight.copy_(z[f"{name}_w"])
        module.bias.copy_(z[f"{name}_b"])
    return mixer


def partial_rope(position, share=0.25):
    def turn(x):
        width = int(share * x.shape[-1])
        return torch.cat([rope(position, 10_000.0)(x[..., :width]), x[..., width:]], dim=-1)

    return turn


@pytest.mark.parametrize("factors", [True, False])
@torch.no_grad()
def test_released_numbers(factors):
    z, index = released("dijiang_layer")
    mixer, (b, t, _) = loaded(z, factors), z["x"].shape
    if factors:
        near(mixer.row, z["D1"][0, :, :, 0], 1e-6)
        near(mixer.column, z["D2"][0, :, :, 0], 1e-5)
        mixer.row.copy_(z["D1"][0, :, :, 0])
        mixer.column.copy_(z["D2"][0, :, :, 0])
    for form in ("parallel", "recurrent"):
        position = torch.arange(t).expand(b, -1)
        y, _ = mixer.mix(z["x"], Tokens(position, partial_rope(position)), form=form)
        near(y, z["y"], 1e-4)
    assert index["tolerance"].startswith("1e-4")


@torch.no_grad()
def test_decoding_sees_more_than_the_first_key():
    """As released, a token decoded with a cache takes row 0 of mask and factors: all it sees is key 0."""
    z, _ = released("dijiang_layer")
    mixer, t = loaded(z, True), z["x"].shape[1]
    rows, state = [], None
    for i in range(t):
        position = torch.full((2, 1), i)
        y, state = mixer.mix(z["x"][:, i : i + 1], Tokens(position, partial_rope(position)), state)
        rows.append(y)
    near(torch.cat(rows, dim=1), z["y"], 1e-4)
    position = torch.arange(t).expand(2, -1)
    q, k, v = mixer.qkv(z["x"])
    q, k = (mixer.phi(partial_rope(position)(y)) for y in (q, k))
    o = mixer.merged((q[:, :, -1:] * k[:, :, :1]).sum(-1, keepdim=True) * v[:, :, :1])
    gate = torch.nn.functional.silu(mixer.gate_proj(z["x"][:, -1:]))
    blind = mixer.o_proj(gate * mixer.norm(o.flatten(0, 1)).unflatten(0, (2, 1)))
    assert float((blind - rows[-1]).abs().max()) > 1e-2


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi"])
def test_starts_from_copies(family):
    attention = tiny(family).model.layers[0].self_attn
    source, mixer = projections(attention), DiJiang.init_from(attention, FACTORS)
    for name in "qkvo":
        mine, theirs = getattr(mixer, f"{name}_proj"), getattr(source, name)
        assert torch.equal(mine.weight, theirs.weight)
        assert (mine.bias is None) == (theirs.bias is None)
        assert mine.bias is None or torch.equal(mine.bias, theirs.bias)
    assert not {id(p) for p in mixer.parameters()} & {id(p) for p in attention.parameters()}
    gate, (width, hidden) = mixer.gate_proj.weight.detach(), mixer.gate_proj.weight.shape
    bound = 2**-2.5 * (6 / (width + hidden)) ** 0.5
    assert 0.95 * bound < float(gate.abs().max()) <= bound
    assert bool((mixer.norm.weight == 1).all() and (mixer.norm.bias == 0).all())
    for h in range(4):
        near(mixer.row[h], gamma(h, 4) ** torch.arange(450.0), 1e-5)
    near(mixer.row * mixer.column, torch.ones(4, 450), 1e-5)
    paper = DiJiang.init_from(attention, PAPER)
    assert bool((paper.phi.weight == 1).all())
    assert not hasattr(paper, "row")


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="factor_positions must be at least 1"):
        DiJiangConfig(factor_positions=0)
    with pytest.raises(ValueError, match='version must be "released" or "paper"'):
        made(DiJiang, DiJiangConfig(version="new"))
