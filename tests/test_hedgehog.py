"""Hedgehog against a double loop, and the numbers of the code that the same group released."""

import pytest
import torch
from lolcats_oracle import phi
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

from swalib.linear.hedgehog import Hedgehog, HedgehogConfig
from swalib.linear.projections import Sizes, projections
from swalib.models import tiny

CONFIGS = [HedgehogConfig(), HedgehogConfig(width=5), HedgehogConfig(activation="exp")]


def literal(mixer, x, S=None, z=None):  # noqa: N803
    """o [t, h, d] of one row x [t, hidden], pair by pair, after a prior state S [h, f, d], z [h, f]."""
    t, groups = x.shape[0], mixer.sizes.heads // mixer.sizes.kv_heads
    turn = rope(torch.arange(t)[None])
    q, k, v = (mixer.heads_of((x @ p.weight.T)[None])[0] for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    q, k = turn(q[None])[0], turn(k[None])[0]
    o = torch.zeros(t, mixer.sizes.heads, mixer.sizes.head_dim, dtype=x.dtype)
    for i in range(t):
        for h in range(mixer.sizes.heads):
            fq = phi(q[h, i], mixer.phi_q.weight[h], mixer.config.activation)
            top = torch.zeros(mixer.sizes.head_dim, dtype=x.dtype) if S is None else fq @ S[h]
            below = 0.0 if z is None else fq @ z[h]
            for j in range(i + 1):
                weight = fq @ phi(k[h // groups, j], mixer.phi_k.weight[h], mixer.config.activation)
                top, below = top + weight * v[h // groups, j], below + weight
            o[i, h] = top / (below + 1e-12)
    return o


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
@torch.no_grad()
def test_as_its_formula_written_out(config):
    mixer, x = made(Hedgehog, config), noise(2, 9, SIZES.hidden_size)
    for row in range(2):
        o = literal(mixer, x[row])
        near(run(mixer, x)[0][row], o.flatten(1) @ mixer.o_proj.weight.T)
        near(mixer.heads(x, tokens(2, 0, 9))[0][row], o.transpose(0, 1))


@torch.no_grad()
def test_a_prior_state_is_read_by_every_row():
    mixer, x = made(Hedgehog), noise(1, 7, SIZES.hidden_size)
    before = {"S": noise(1, 4, 6, 6, seed=1), "z": noise(1, 4, 6, seed=2).abs()}
    o, after = mixer.heads(x, tokens(1, 0, 7), before)
    near(o[0].transpose(0, 1), literal(mixer, x[0], before["S"][0], before["z"][0]))
    alone = mixer.heads(x, tokens(1, 0, 7))[1]
    near(after["S"], before["S"] + alone["S"])
    near(after["z"], before["z"] + alone["z"])
    assert all(s.untyped_storage().nbytes() == s.numel() * s.element_size() for s in after.values())


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_contract(config):
    mixer = made(Hedgehog, config)
    check_forms_and_splits(mixer)
    check_padding(mixer)
    check_pads_between(mixer)
    check_constant_memory(mixer)
    check_gradients(mixer)
    check_half_precision(mixer)


@torch.no_grad()
def loaded(z):
    """The mixer of a file that names its weights as hedgehog_layer_softmax does, and the file's tokens."""
    config, (heads, d, width) = Hedgehog.Config(width=z["fmap_q"].shape[-1]), z["fmap_q"].shape
    assert config.width == width
    mixer = Hedgehog(config, Sizes(z["x"].shape[-1], heads, z["Wk"].shape[0] // d, d))
    for name, array in (("q_proj", "Wq"), ("k_proj", "Wk"), ("v_proj", "Wv"), ("o_proj", "Wo")):
        getattr(mixer, name).weight.copy_(z[array])
    mixer.phi_q.weight.copy_(z["fmap_q"])
    mixer.phi_k.weight.copy_(z["fmap_k"])
    return mixer


def told(start, stop, batch):
    position = torch.arange(start, stop).expand(batch, -1)
    return type(tokens(1, 0, 1))(position, rope(position, 10_000.0))


@torch.no_grad()
def test_released_numbers():
    z, index = released("hedgehog_layer_softmax")
    mixer, (b, t, _) = loaded(z), z["x"].shape
    y, _ = mixer.mix(z["x"], told(0, t, b))
    near(y, z["y"], 2e-5)
    near(mixer.heads(z["x"], told(0, t, b))[0], z["y_student_heads"], 2e-5)
    rows, state = mixer.mix(z["x"][:, :9], told(0, 9, b))
    rows = [rows]
    for i in range(9, t):
        row, state = mixer.mix(z["x"][:, i : i + 1], told(i, i + 1, b), state)
        rows.append(row)
    near(torch.cat(rows, dim=1), z["y_prefill9_decode4"], 2e-5)
    assert index["tolerance"].startswith("2e-5")


@torch.no_grad()
def test_released_weights_of_student_and_teacher():
    """The matrices stage 1 compares: weights come out where values are one-hot."""
    z, _ = released("hedgehog_layer_softmax")
    mixer, (b, t, _) = loaded(z), z["x"].shape
    turn, (q, k, v) = told(0, t, b).rotate, mixer.qkv(z["x"])
    q, k, one_hot = turn(q), turn(k), torch.eye(t).expand(b, mixer.sizes.kv_heads, t, t)
    real = torch.ones(b, t, dtype=torch.bool)
    near(mixer.attend(q, k, one_hot, real)[0], z["attn_student"], 2e-5)
    k, v = mixer.per_query_head(k), mixer.per_query_head(v)
    scores = (q @ k.mT / mixer.sizes.head_dim**0.5).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
    near(scores.softmax(-1), z["attn_teacher"], 2e-5)
    near(scores.softmax(-1) @ v, z["y_teacher_heads"], 2e-5)


@torch.no_grad()
def test_a_second_call_does_not_forget_the_first():
    """As released, a prompt read in two calls of several tokens gives in the second what it gives alone."""
    mixer, x = made(Hedgehog), noise(1, 12, SIZES.hidden_size)
    forgetful, _ = mixer.mix(x[:, 5:], tokens(1, 5, 12))
    y, _ = run(mixer, x, [5, 7])
    near(y, run(mixer, x)[0])
    assert float((y[:, 5:] - forgetful).abs().max()) > 1e-2


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi", "phi3", "gemma3"])
def test_starts_from_the_teachers_own_projections(family):
    attention = tiny(family).model.layers[0].self_attn
    source, mixer = projections(attention), Hedgehog.init_from(attention)
    for name in "qkvo":
        mine, theirs = getattr(mixer, f"{name}_proj"), getattr(source, name)
        assert torch.equal(mine.weight, theirs.weight)
        assert hasattr(attention, "qkv_proj") or mine.weight is theirs.weight
        assert mine.bias is theirs.bias
    assert getattr(mixer, "q_norm", None) is source.q_norm
    assert getattr(mixer, "k_norm", None) is source.k_norm
    d = source.head_dim
    assert mixer.phi_q.weight.shape == (4, d, d // 2)
    assert float(mixer.phi_q.weight.detach().abs().max()) <= (6 / (d * (d // 2))) ** 0.5
    assert torch.equal(mixer.phi_q.weight, mixer.phi_k.weight)
    assert mixer.phi_q.weight is not mixer.phi_k.weight
