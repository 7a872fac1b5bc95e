"""Recurrences against numbers that the methods' own released code gave."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from swalib.linear import recurrences as r
from swalib.linear.recurrences import FORMS, State

VECTORS = Path(__file__).parent / "vectors"
INDEX = json.loads((VECTORS / "INDEX.json").read_text())


def swap(x):
    """[b, t, h, ...] to [b, h, t, ...], or back."""
    return x.transpose(1, 2)


def both_starts(recurrence, x, names=("o", "S", "o_S0", "S_S0"), turned=False, swapped=True):
    """Outputs and states from zero and from S0, as the vectors name them."""
    found = {}
    for o_name, s_name, start in (*[(*names[:2], None)], (*names[2:], x["S0"])):
        start = start.mT if turned and start is not None else start
        o, state = recurrence(state=None if start is None else State(start))
        found[o_name] = swap(o) if swapped else o
        found[s_name] = state.S.mT if turned else state.S
    return found


def gla(x, form):
    q, k, v, gates = (swap(x[name]) for name in ("q", "k", "v", "gk"))
    return both_starts(lambda **o: r.diagonal_decay(q, k, v, gates, scale=8**-0.5, form=form, **o), x)


def gated_delta_rule(x, form):
    tokens = [swap(x[name]) for name in ("q", "k", "v", "beta", "g")]
    return both_starts(lambda **o: r.delta_rule(*tokens, scale=8**-0.5, form=form, **o), x)


def linear_attn(x, form):
    q, k, v = (swap(x[name]) for name in "qkv")
    o, state = r.linear_attention(q, k, v, form=form)
    scaled, _ = r.linear_attention(q, k, v, form=form, scale=8**-0.5)
    start = State(x["S0"], x["z0"][:, 0])
    normal, last = r.linear_attention(q, k, v, normalised=True, eps=1e-10, state=start, form=form)
    found = {"o": swap(o), "S": state.S, "o_default_scale": swap(scaled), "o_norm_S0": swap(normal)}
    return found | {"S_norm_S0": last.S, "z_norm_S0": last.z[:, None]}


def rwkv6(x, form):
    tokens, options = [x[n] for n in ("r", "k", "v", "w_log")], {"bonus": x["u"], "output": "before"}
    return both_starts(lambda **o: r.diagonal_decay(*tokens, **options, form=form, **o), x, swapped=False)


def rwkv7(x, form):
    tokens = [swap(y) for y in (x["r"], -x["w_raw"].exp(), x["k"], x["v"], x["kappa"], x["a"])]
    return both_starts(lambda **o: r.rwkv7(*tokens, form=form, **o), x, turned=True)


def simple_gla(x, form):
    tokens = [swap(x[name]) for name in ("q", "k", "v", "g")]
    return both_starts(lambda **o: r.scalar_decay(*tokens, scale=8**-0.5, form=form, **o), x)


def ssd_mamba2(x, form):
    dt = softplus(x["dt_raw"] + x["dt_bias"])
    tokens = [swap(y) for y in (x["C"], x["B"], dt[..., None] * x["X"], dt * x["A"])]
    names = ("Y", "S", "Y_S0", "S_S0")
    found = both_starts(lambda **o: r.scalar_decay(*tokens, form=form, **o), x, names, turned=True)
    skip = x["D"][:, None] * x["X"]
    found |= {"Y_with_D": found["Y"] + skip, "Y_step_with_D_S0": found["Y_S0"] + skip}
    return found | {"S_step": found["S_S0"]}


GIVEN = {
    gla: "q k v gk S0",
    gated_delta_rule: "q k v beta g S0",
    linear_attn: "q k v S0 z0",
    rwkv6: "r k v w_log u S0",
    rwkv7: "r w_raw k v kappa a S0",
    simple_gla: "q k v g S0",
    ssd_mamba2: "X dt_raw dt_bias A B C D S0",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", GIVEN, ids=lambda method: method.__name__)
def test_every_array_of_the_released_operations(method, form):
    file = f"{method.__name__}_op.npz"
    with np.load(VECTORS / file) as arrays:
        x = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    found = method(x, form)
    assert set(x) == set(INDEX[file]["arrays"]) == set(found) | set(GIVEN[method].split())
    for name, value in found.items():
        torch.testing.assert_close(value, x[name], rtol=0, atol=float(INDEX[file]["tolerance"]))
