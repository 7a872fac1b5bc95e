"""The recurrences by double loops in fp64, written from each formula, and inputs to try them on."""

from functools import cache

import torch
from torch.nn.functional import normalize

from swalib.linear import recurrences as r
from swalib.linear.recurrences import State

B, H, F, D_V = 2, 3, 5, 7

# How each recurrence is called, from the inputs below by name.
CALLS = {
    "plain": lambda x, **o: r.linear_attention(x["q"], x["k"], x["v"], **o),
    "normalised": lambda x, **o: r.linear_attention(
        x["q"].abs(), x["k"].abs(), x["v"], normalised=True, eps=1e-3, **o
    ),
    "scalar": lambda x, **o: r.scalar_decay(x["q"], x["k"], x["v"], x["g"], **o),
    "gla": lambda x, **o: r.diagonal_decay(x["q"], x["k"], x["v"], x["gates"], **o),
    "rwkv6": lambda x, **o: r.diagonal_decay(
        x["q"], x["k"], x["v"], x["gates"], bonus=x["u"], output="before", **o
    ),
    "delta": lambda x, **o: r.delta_rule(x["q"], x["unit"], x["v"], x["beta"], **o),
    "gated delta": lambda x, **o: r.delta_rule(x["q"], x["unit"], x["v"], x["beta"], x["g"], **o),
    "rwkv7": lambda x, **o: r.rwkv7(x["q"], x["gates"], x["k"], x["v"], x["unit"], x["a"], **o),
}
NAMES = list(CALLS)


def inputs(t, seed=0, dtype=torch.float64):
    """Everything that some recurrence takes, [b, h, t, ...]; s and z are a state from before."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = {"q": noise(B, H, t, F), "k": noise(B, H, t, F), "v": noise(B, H, t, D_V)}
    x |= {"g": -(noise(B, H, t) ** 2) / 4, "gates": -(noise(B, H, t, F) ** 2) / 4, "u": noise(H, F)}
    x |= {"beta": noise(B, H, t).sigmoid(), "a": noise(B, H, t, F).sigmoid()}
    x |= {"unit": normalize(noise(B, H, t, F), dim=-1), "s": noise(B, H, F, D_V), "z": noise(B, H, F) ** 2}
    return {name: tensor.to(dtype) for name, tensor in x.items()}


def call(name, x, **options):
    state = State(x["s"], x["z"] if name == "normalised" else None)
    return CALLS[name](x, **{"state": state} | options)


def outer(row, column):
    return row[..., :, None] * column[..., None, :]


def moves(name, x):
    """M_t [b, h, t, f, f] and W_t [b, h, t, f, d_v] of S_t = M_t S_{t-1} + W_t, from the formula."""
    eye, k = torch.eye(F, dtype=x["q"].dtype), x["k"]
    if name in ("plain", "normalised"):
        k = k.abs() if name == "normalised" else k
        return eye.expand(*k.shape, F), outer(k, x["v"])
    if name == "scalar":
        return x["g"].exp()[..., None, None] * eye, outer(k, x["v"])
    if name in ("gla", "rwkv6"):
        return x["gates"].exp()[..., None] * eye, outer(k, x["v"])
    if name == "rwkv7":
        moved = x["gates"].exp()[..., None] * eye - outer(x["a"] * x["unit"], x["unit"])
        return moved, outer(k, x["v"])
    decay = x["g"].exp() if name == "gated delta" else torch.ones_like(x["g"])
    beta, k = x["beta"][..., None, None], x["unit"]
    return decay[..., None, None] * (eye - beta * outer(k, k)), beta * outer(k, x["v"])


def states(name, x):
    """S_0 .. S_t, each as its own sum: S_i = M_i..M_1 S_0 + sum over j of M_i..M_{j+1} W_j."""
    moved, written = moves(name, x)
    found = [x["s"]]
    for i in range(x["q"].shape[2]):
        later, total = torch.eye(F, dtype=x["q"].dtype), 0
        for j in range(i, -1, -1):
            total = total + later @ written[:, :, j]
            later = later @ moved[:, :, j]
        found.append(total + later @ x["s"])
    return found


def literal(name, x, scale=1.0):
    """(o, S) by the double loop."""
    s, o = states(name, x), []
    for i in range(x["q"].shape[2]):
        q, k, v = (x[n][:, :, i] for n in "qkv")
        read = s[i] + x["u"][..., None] * outer(k, v) if name == "rwkv6" else s[i + 1]
        q = scale * (q.abs() if name == "normalised" else q)
        o.append((q[..., None] * read).sum(-2))
        if name == "normalised":
            z = x["z"] + x["k"][:, :, : i + 1].abs().sum(2)
            o[-1] = o[-1] / ((q * z).sum(-1, keepdim=True) + 1e-3)
    return torch.stack(o, dim=2), s[-1]


@cache
def expected(name, t):
    return literal(name, inputs(t), scale=0.3)


def near(got, wanted, eps=1e-12):
    torch.testing.assert_close(got, wanted, rtol=0, atol=eps * max(1.0, float(wanted.abs().max())))


def error(got, wanted):
    assert bool(torch.isfinite(got).all())
    return float((got.double() - wanted).abs().max())
