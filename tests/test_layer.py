"""`SWAttention` against a double loop in fp64, whole and in pieces."""

import oracle
import pytest
import torch

from swalib import SWA, Full, PerHead, SWAttention

WIDTH, H, H_KV, D = 20, 4, 2, 6
SPEC = SWA(9, 2)


def noise(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def layer(spec=SPEC, seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    return SWAttention(spec, WIDTH, H, H_KV, D, **options).to(dtype)


def by_hand(made, x, window, sinks, theta=None, in_cache=False):
    """Hidden states [t, WIDTH] of one row, query by query, from the weights."""
    q, k, v = (
        (x @ p.weight.T + (0 if p.bias is None else p.bias)).unflatten(-1, (-1, D))
        for p in (made.q_proj, made.k_proj, made.v_proj)
    )
    frequencies = torch.tensor([theta ** (-2 * m / D) for m in range(D // 2)]).double() if theta else None
    rows, cached = [], []
    for i in range(len(x)):
        cached.append(i)
        if len(cached) > window:
            del cached[sinks]
        places = list(range(len(cached))) if in_cache else cached
        keys, query = k[cached], q[i]
        if theta:
            keys = oracle.turn(keys, torch.tensor(places)[:, None, None], frequencies)
            query = oracle.turn(query, places[-1], frequencies)
        keys, values = keys.repeat_interleave(H // H_KV, 1), v[cached].repeat_interleave(H // H_KV, 1)
        weights = (torch.einsum("hd,nhd->hn", query, keys) * D**-0.5).softmax(-1)
        rows.append(torch.einsum("hn,nhd->hd", weights, values).flatten())
    return torch.stack(rows) @ made.o_proj.weight.T + (0 if made.o_proj.bias is None else made.o_proj.bias)


def in_pieces(made, x, size, mask=None):
    cache, outputs, start = made.new_cache(), [], 0
    for piece in x.split(size, dim=1):
        start += piece.shape[1]
        outputs.append(made(piece, cache=cache, attention_mask=None if mask is None else mask[:, :start]))
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("theta", [None, 100.0])
@pytest.mark.parametrize("positions", ["text", "cache"])
@torch.no_grad()
def test_whole_and_in_pieces_as_by_hand(impl, bias, theta, positions):
    if theta is None and positions == "cache":
        with pytest.raises(ValueError, match="give the layer a rope_theta"):
            layer(SWA(9, 2, "cache"))
        return
    made, x = layer(SWA(9, 2, positions), bias=bias, rope_theta=theta, impl=impl), noise(2, 31, WIDTH)
    expected = torch.stack([by_hand(made, row, 9, 2, theta, positions == "cache") for row in x])
    atol = 2e-6 if theta else 1e-12  # angles are formed in fp32
    torch.testing.assert_close(made(x), expected, rtol=0, atol=atol)
    for size in (1, 4, 13):
        torch.testing.assert_close(in_pieces(made, x, size), expected, rtol=0, atol=atol)


@torch.no_grad()
def test_a_padded_row_is_the_row_alone():
    made, x = layer(rope_theta=100.0), noise(3, 23, WIDTH)
    mask = torch.ones(3, 23, dtype=torch.long)
    mask[0, :5], mask[1, 19:] = 0, 0
    for y in (made(x, attention_mask=mask), in_pieces(made, x, 4, mask), in_pieces(made, x, 1, mask)):
        torch.testing.assert_close(y[0, 5:], made(x[:1, 5:])[0], rtol=0, atol=2e-6)
        torch.testing.assert_close(y[1, :19], made(x[1:2, :19])[0], rtol=0, atol=2e-6)
        torch.testing.assert_close(y[2], made(x[2:])[0], rtol=0, atol=2e-6)


def test_without_projections_it_takes_q_k_and_v():
    q, k, v = noise(2, H, 17, D), noise(2, H_KV, 17, D, seed=1), noise(2, H_KV, 17, 5, seed=2)
    scores = q @ k.repeat_interleave(2, 1).mT * D**-0.5
    weights = scores.masked_fill(~oracle.double_loop(17, 9, 2), -torch.inf).softmax(-1)
    torch.testing.assert_close(SWAttention(SPEC)(q, k, v), weights @ v.repeat_interleave(2, 1))


def test_its_cache_has_w_slots_however_long_the_text():
    made = layer(dtype=torch.float32)
    cache = made.new_cache()
    made(noise(2, 50, WIDTH, dtype=torch.float32), cache=cache)
    assert cache.allocated_bytes == 2 * 2 * H_KV * 9 * D * 4


def test_gradients_pass_through_and_reach_learned_sink_logits():
    made, x = layer(SWA(9, 2, sink_logit="learned")), noise(1, 20, WIDTH).requires_grad_()
    made(x)[:, -1].sum().backward()
    assert made.sink_logits.shape == (H,)
    assert bool(made.sink_logits.grad.abs().min() > 0)
    torch.testing.assert_close(x.grad[:, 2:12], torch.zeros_like(x.grad[:, 2:12]), rtol=0, atol=0)
    assert bool((x.grad[0, [0, 1, 13, 19]].abs().sum(-1) > 0).all())


@torch.no_grad()
def test_heads_may_differ():
    spec = PerHead((SWA(9, 2), SWA(5, 0), Full(), SWA(5, 0)))
    made, x = SWAttention(spec), noise(1, H, 20, D)
    for head, (window, sinks) in enumerate([(9, 2), (5, 0), (None, 0), (5, 0)]):
        weights = (x[:, head] @ x[:, head].mT * D**-0.5).masked_fill(
            ~oracle.double_loop(20, window, sinks), -torch.inf
        )
        torch.testing.assert_close(made(x, x, x)[:, head], weights.softmax(-1) @ x[:, head])


WRONG = {
    "no spec": (lambda: SWAttention((9, 2)), TypeError, "a layer's spec is"),
    "heads": (lambda: SWAttention(SPEC, 20, 3), ValueError, "heads must be .* divide hidden_size"),
    "kv heads": (lambda: SWAttention(SPEC, 20, 4, 3), ValueError, "a multiple of kv_heads"),
    "no heads": (lambda: SWAttention(SPEC, 20), ValueError, "heads must be"),
    "odd": (lambda: SWAttention(SPEC, 20, 4, rope_theta=1e4), ValueError, "an even head_dim, not 5"),
    "no width": (lambda: SWAttention(SPEC, rope_theta=1e4), ValueError, "an even head_dim, not None"),
    "learned": (lambda: SWAttention(SWA(9, 2, sink_logit="learned")), ValueError, "give heads"),
    "impl": (lambda: SWAttention(SPEC, impl="eager"), ValueError, "impl must be one of"),
    "three": (lambda: layer()(*[noise(1, 3, WIDTH)] * 3), TypeError, "takes hidden states, got 3"),
    "one": (lambda: SWAttention(SPEC)(noise(1, 2, 3, 4)), TypeError, "takes q, k and v, got 1"),
    "another cache": (
        lambda: layer()(noise(1, 3, WIDTH), cache=layer(SWA(8, 2)).new_cache()), ValueError, "other specs"),
    "short mask": (
        lambda: layer()(noise(1, 3, WIDTH), attention_mask=torch.ones(1, 2)), ValueError, "covers 2 tokens"),
    "hole": (
        lambda: layer()(noise(1, 3, WIDTH), attention_mask=torch.tensor([[1, 0, 1]])), ValueError, "a hole"),
    "empty row": (
        lambda: layer()(noise(1, 3, WIDTH), attention_mask=torch.zeros(1, 3)), ValueError, "no token"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_misuse_is_one_clear_sentence(case):
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
