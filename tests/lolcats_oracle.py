"""LoLCATs and Hedgehog's feature map written out pair by pair, and a teacher to hold them to."""

import torch
from mixer_contract import rope

from swalib.models import tiny


def windowed(config, i, j, prompt):
    """Whether query i meets key j <= i by softmax; `prompt` is the length of a terraced first call."""
    if config.terraced and i < prompt:
        offset = -prompt % config.window
        return (i + offset) // config.window - (j + offset) // config.window <= 1
    return j < config.sinks or i - j < config.window - config.sinks


def phi(x, weight, activation):
    y = x @ weight
    if activation == "softmax":
        both = [y.exp() / y.exp().sum(), (-y).exp() / (-y).exp().sum()]
    else:
        both = [(y - y.max()).exp(), (y.min() - y).exp()]
    return torch.cat(both).clamp(min=1e-12)


def literal(mixer, q, k, v, prompt=0, S=None, z=None):  # noqa: N803
    """o [h, t, d_v] of one row's rotated q [h, t, d], k, v [h_kv, t, ...], pair by pair."""
    config, (heads, t, d) = mixer.config, q.shape
    groups, rows = heads // k.shape[0], []
    for h in range(heads):
        a = 1 / (1 + (-mixer.window_logit[h]).exp())
        linear = 1 - a if config.affine else 1
        for i in range(t):
            fq = phi(q[h, i], mixer.phi_q.weight[h], config.activation)
            score = [q[h, i] @ k[h // groups, j] / d**0.5 for j in range(i + 1)]
            c = max(score[j] for j in range(i + 1) if windowed(config, i, j, prompt))
            top = q.new_zeros(v.shape[-1]) if S is None else linear * (fq @ S[h])
            below = 0.0 if z is None else linear * (fq @ z[h])
            for j in range(i + 1):
                if windowed(config, i, j, prompt):
                    weight = a * (score[j] - c).exp()
                else:
                    fk = phi(k[h // groups, j], mixer.phi_k.weight[h], config.activation)
                    weight = linear * (fq @ fk)
                top, below = top + weight * v[h // groups, j], below + weight
            rows.append(top / below)
    return torch.stack(rows).view(heads, t, -1)


def projected(mixer, x):
    turn = rope(torch.arange(x.shape[1]).expand(x.shape[0], -1))
    q, k, v = mixer.qkv(x)
    return turn(q), turn(k), v


def weights(mixer, q, k, position):
    """The mixing matrix [b, h, t, t]: what comes out where values are one-hot."""
    b, _, t, _ = q.shape
    one_hot = torch.eye(t, dtype=q.dtype).expand(b, k.shape[1], t, t)
    return mixer.attend(q, k, one_hot, position)[0]


def attended(family, layer):
    """A tiny teacher's attention, and what it was given and gave: (module, x, (cos, sin), y), in fp64."""
    model, seen = tiny(family).double(), {}
    attention = model.model.layers[layer].self_attn

    def look(module, args, kwargs, out):
        seen.update(kwargs, x=kwargs.get("hidden_states", args[0] if args else None), y=out[0])

    handle = attention.register_forward_hook(look, with_kwargs=True)
    with torch.no_grad():
        model(torch.randint(0, 97, (2, 11), generator=torch.Generator().manual_seed(0)))
    handle.remove()
    return attention, seen["x"], seen["position_embeddings"], seen["y"]
