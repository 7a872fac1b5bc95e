"""SUPRA against a double loop, and the released code's numbers."""

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

from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes, projections
from swalib.linear.supra import SUPRA, SUPRAConfig
from swalib.models import tiny

ALIKE = Sizes(hidden_size=20, heads=3, kv_heads=3, head_dim=6)  # as many kv heads as heads, no power of 2
DECAYS = ("slopes", "retnet", "none")


def gamma(decay, h, heads):
    return {"slopes": math.exp(-(2 ** (-8 * (h + 1) / heads))), "retnet": 1 - 2 ** (-5 - h), "none": 1.0}[
        decay
    ]


def literal(mixer, x, S=None):  # noqa: N803
    """y [t, hidden] of one row x [t, hidden], pair by pair, after a prior state S [h, d, d]."""
    sizes, t = mixer.sizes, x.shape[0]
    d, groups, turn = sizes.head_dim, sizes.heads // sizes.kv_heads, rope(torch.arange(t)[None])

    def phi(projection, linear, heads):
        rows = [torch.relu(linear.weight @ (projection.weight @ token) + linear.bias) for token in x]
        return turn(torch.stack(rows).view(1, t, heads, d).transpose(1, 2))[0]

    q = phi(mixer.q_proj, mixer.phi_q.linear, sizes.heads)
    k = phi(mixer.k_proj, mixer.phi_k.linear, sizes.kv_heads)
    v = (x @ mixer.v_proj.weight.T).view(t, sizes.kv_heads, d).transpose(0, 1)
    rows = []
    for i in range(t):
        heads = []
        for h in range(sizes.heads):
            g, fade = h // groups, gamma(mixer.config.decay, h, sizes.heads)
            o = sum(fade ** (i - j) * (q[h, i] @ k[g, j]) / d**0.5 * v[g, j] for j in range(i + 1))
            o = o if S is None else o + fade ** (i + 1) * (q[h, i] @ S[h])
            heads.append((o - o.mean()) / (o.var(correction=0) + 1e-5).sqrt())
        rows.append(mixer.o_proj.weight @ torch.cat(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("sizes", [SIZES, ALIKE], ids=["grouped", "alike"])
@pytest.mark.parametrize("decay", DECAYS)
@torch.no_grad()
def test_as_its_formula_written_out(decay, sizes):
    mixer, x = made(SUPRA, SUPRAConfig(decay), sizes), noise(2, 11, sizes.hidden_size)
    near(run(mixer, x)[0], torch.stack([literal(mixer, row) for row in x]))


@pytest.mark.parametrize("decay", DECAYS)
@torch.no_grad()
def test_a_prior_state_fades_into_every_row(decay):
    mixer, x = made(SUPRA, SUPRAConfig(decay)), noise(1, 7, SIZES.hidden_size)
    before = {"S": noise(1, 4, 6, 6, seed=1)}
    near(mixer.mix(x, tokens(1, 0, 7), before)[0][0], literal(mixer, x[0], before["S"][0]))


@pytest.mark.parametrize("decay", ["slopes", "retnet"])
def test_contract(decay):
    mixer = made(SUPRA, SUPRAConfig(decay))
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer, factor=16)  # the norm amplifies the first rows, where few keys are summed


def test_one_map_serves_as_many_kv_heads_as_heads():
    grouped, alike = made(SUPRA), made(SUPRA, sizes=ALIKE)
    assert grouped.phi_q is not grouped.phi_k
    assert grouped.phi_k.linear.weight.shape == (12, 12)
    assert alike.phi_q is alike.phi_k
    assert sum("phi" in name for name, _ in alike.named_parameters()) == 2
    check_gradients(alike)


@torch.no_grad()
def loaded(z, decay):
    """The mixer of a file that names its weights as supra_gqa_slopes does."""
    (heads, d), width = z["state_final"].shape[1:3], z["x"].shape[-1]
    kv_heads = (z["in_proj"].shape[0] // d - heads) // 2
    mixer = SUPRA(SUPRAConfig(decay), Sizes(width, heads, kv_heads, d))
    parts = z["in_proj"].split([heads * d, kv_heads * d, kv_heads * d])
    for name, weight in zip(("q_proj", "k_proj", "v_proj", "o_proj"), (*parts, z["out_proj"]), strict=True):
        getattr(mixer, name).weight.copy_(weight)
    mixer.phi_q.linear.weight.copy_(z["embed_w"])
    mixer.phi_q.linear.bias.copy_(z["embed_b"])
    if kv_heads != heads:
        mixer.phi_k.linear.weight.copy_(z["embed_kv_w"])
        mixer.phi_k.linear.bias.copy_(z["embed_kv_b"])
    return mixer


@torch.no_grad()
def test_released_numbers():
    z, index = released("supra_gqa_slopes")
    mixer, (b, t, _) = loaded(z, "slopes"), z["x"].shape
    for form in ("parallel", "recurrent"):
        position = torch.arange(t).expand(b, -1)
        y, last = mixer.mix(z["x"], Tokens(position, rope(position, 10_000.0)), form=form)
        near(y, z["y"], 2e-5)
        # The released state has faded once more than the last output.
        near(z["gamma"][:, None, None].float() * last["S"], z["state_final"], 2e-5)
    rows, state = [], None
    for start, stop in ((0, 9), (9, t)):
        position = torch.arange(start, stop).expand(b, -1)
        turned = Tokens(position, rope(position, 10_000.0))
        y, state = mixer.mix(z["x"][:, start:stop], turned, state, "recurrent")
        rows.append(y)
    near(torch.cat(rows, dim=1), z["y_recurrent_9_4"], 2e-5)
    near(torch.tensor([gamma("slopes", h, 4) for h in range(4)], dtype=torch.float64), z["gamma"], 1e-9)
    assert index["tolerance"].startswith("2e-5")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "gemma3"])
def test_starts_from_copies(family):
    attention = tiny(family).model.layers[0].self_attn
    source, mixer = projections(attention), SUPRA.init_from(attention)
    for name in "qkvo":
        mine, theirs = getattr(mixer, f"{name}_proj"), getattr(source, name)
        assert torch.equal(mine.weight, theirs.weight)
        assert mine.weight is not theirs.weight
        assert (mine.bias is None) == (theirs.bias is None)
        assert mine.bias is None or torch.equal(mine.bias, theirs.bias)
    if source.q_norm is not None:
        assert torch.equal(mixer.k_norm.weight, source.k_norm.weight)
        assert mixer.k_norm is not source.k_norm
    assert not {id(p) for p in mixer.parameters()} & {id(p) for p in attention.parameters()}
    heads, d = mixer.sizes.heads, mixer.sizes.head_dim
    weight = mixer.phi_q.linear.weight.detach()
    assert weight.shape == (heads * d, heads * d)
    assert 0.9 * (heads * d) ** -0.5 < float(weight.abs().max()) <= (heads * d) ** -0.5  # as nn.Linear starts


def test_a_decay_without_a_name_is_refused():
    with pytest.raises(ValueError, match="decay must be one of"):
        SUPRAConfig(decay="linear")
