"""`attend` against loops over single queries in fp64: odd sizes, grouped heads, any order, gradients."""

import subprocess
import sys

import pytest
import torch
from oracle import double_loop

from swalib.attention import attend, available, reference, sdpa
from swalib.attention.scoring import Scoring
from swalib.spec import SWA, Full

IMPLS = ["sdpa", "reference"]
B, H, H_KV, D, D_V = 2, 6, 2, 5, 3


def tensors(t_q, t_k, dtype=torch.float64, h_kv=H_KV, seed=0):
    """q, k, v; logits spread over several units, so that a key too many or too few shows."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, H, t_q, D), (B, h_kv, t_k, D), (B, h_kv, t_k, D_V)]
    q, k, v = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (2 * q).to(dtype), k.to(dtype), v.to(dtype)


def by_hand(q, k, v, seen, scale=D**-0.5):
    """One query at a time over its own keys, seen [b, t_q, t_k]; one that sees nothing gives zeros."""
    o = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    group = q.shape[1] // k.shape[1]
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        keys = seen[b, i].nonzero()[:, 0]
        if len(keys):
            weights = (k[b, h // group, keys] @ q[b, h, i] * scale).softmax(0)
            o[b, h, i] = weights @ v[b, h // group, keys]
    return o


def rows(t, window=None, sinks=0):
    return double_loop(t, window, sinks).expand(B, t, t)


def near(got, expected, eps=1e-13):
    torch.testing.assert_close(got, expected, rtol=0, atol=eps)


# Lengths around the window, around the tile of 64 queries, and prime; pairwise.
CASES = [
    (1, SWA(1, 0)), (2, SWA(1, 0)), (3, SWA(7, 2)), (6, SWA(7, 0)), (7, SWA(7, 2)), (8, SWA(7, 6)),
    (23, SWA(7, 2)), (23, SWA(23, 5)), (23, SWA(97, 96)), (63, SWA(11, 0)), (64, SWA(11, 10)),
    (65, SWA(11, 3)), (131, SWA(67, 3)), (131, SWA(5, 1)), (67, Full()),
]  # fmt: skip


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("t", "spec"), CASES, ids=str)
def test_a_whole_text(impl, t, spec):
    q, k, v = tensors(t, t)
    seen = rows(t) if isinstance(spec, Full) else rows(t, spec.window, spec.sinks)
    near(attend(q, k, v, spec, impl), by_hand(q, k, v, seen))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("wrong", [SWA(8, 2), SWA(6, 2), SWA(7, 1), SWA(7, 3), SWA(8, 3), SWA(6, 1)], ids=str)
def test_one_key_off_is_far_off(impl, wrong):
    q, k, v = tensors(23, 23)
    apart = (attend(q, k, v, wrong, impl) - by_hand(q, k, v, rows(23, 7, 2))).abs().amax((0, 1, 3))
    assert apart.max() > 1e-2


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("h_kv", [1, 2, 3, 6])
def test_grouped_heads(impl, h_kv):
    q, k, v = tensors(17, 17, h_kv=h_kv)
    near(attend(q, k, v, SWA(5, 2), impl), by_hand(q, k, v, rows(17, 5, 2)))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("t_q", [1, 3, 70])
def test_the_last_queries_of_a_text_by_default(impl, t_q):
    q, k, v = tensors(t_q, 83)
    near(attend(q, k, v, SWA(11, 3), impl), by_hand(q, k, v, rows(83, 11, 3)[:, -t_q:]))


@pytest.mark.parametrize("impl", IMPLS)
def test_queries_and_keys_in_any_order(impl):
    generator = torch.Generator().manual_seed(3)
    q, k, v = tensors(29, 31)
    q_pos = torch.stack([torch.randperm(31, generator=generator)[:29] for _ in range(B)])
    k_pos = torch.stack([torch.randperm(31, generator=generator) for _ in range(B)])
    whole = double_loop(31, 7, 2)
    seen = torch.stack([whole[q_pos[b]][:, k_pos[b]] for b in range(B)])
    near(attend(q, k, v, SWA(7, 2), impl, q_pos=q_pos, k_pos=k_pos), by_hand(q, k, v, seen))


@pytest.mark.parametrize("impl", IMPLS)
def test_a_chunk_after_a_ring_of_slots(impl):
    """Keys as a sink cache hands them over: slots out of order, one of them empty, then the chunk's own."""
    q, k, v = tensors(3, 10)
    k_pos = torch.tensor([0, 1, 14, 15, -1, 12, 13, 16, 17, 18])
    q_pos = torch.tensor([16, 17, 18])
    whole = double_loop(19, 7, 2)
    seen = (whole[q_pos][:, k_pos.clamp(min=0)] & (k_pos >= 0)).expand(B, 3, 10)
    near(attend(q, k, v, SWA(7, 2), impl, q_pos=q_pos, k_pos=k_pos), by_hand(q, k, v, seen))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("spec", [SWA(5, 2), SWA(3, 0), Full()], ids=str)
def test_left_and_right_padding(impl, spec):
    """Row 0 has 4 pads before, row 1 has 3 after; outputs of the tokens are those of the token alone."""
    q, k, v = tensors(13, 13)
    position = torch.arange(13)
    q_pos = torch.stack([position - 4, position])
    k_pos = torch.stack([position - 4, position.where(position < 10, -1)])
    padded = attend(q, k, v, spec, impl, q_pos=q_pos, k_pos=k_pos)
    assert bool(torch.isfinite(padded).all())
    for row, tokens in ((0, slice(4, 13)), (1, slice(0, 10))):
        alone = attend(*(x[row : row + 1, :, tokens] for x in (q, k, v)), spec, impl)
        near(padded[row, :, tokens], alone[0])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("spec", [SWA(5, 2), SWA(5, 2, "cache"), Full()], ids=str)
def test_what_no_token_wrote_never_enters(impl, spec):
    """Case 10: empty slots and pads hold NaN; a row of nothing but pads is finite too."""
    q, k, v = tensors(7, 11, torch.float32)
    k_pos = torch.stack([torch.arange(11) - 4, torch.full((11,), -1)])
    q_pos = torch.stack([torch.arange(7), torch.arange(-7, 0)])
    dead = (k_pos < 0)[:, None, :, None]
    rope = (lambda x, positions: x) if spec != Full() else None
    k, v = k.masked_fill(dead, torch.nan), v.masked_fill(dead, torch.nan)
    assert bool(torch.isfinite(attend(q, k, v, spec, impl, q_pos=q_pos, k_pos=k_pos, rope=rope)).all())


def test_sdpa_never_touches_a_key_that_no_query_sees():
    q, k, v = tensors(3, 101)
    gone = torch.zeros(101, dtype=torch.bool)
    gone[2 : 98 - 4] = True
    expected = attend(q, k, v, SWA(7, 2), "sdpa")
    for x in (k, v):
        x[:, :, gone] = torch.nan
    assert torch.equal(attend(q, k, v, SWA(7, 2), "sdpa"), expected)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_that_of_plain_softmax_attention_in_the_same_dtype(impl, dtype):
    exact, rough = tensors(67, 67), tensors(67, 67, dtype)
    expected = by_hand(*(x.double() for x in rough), rows(67, 11, 3))
    bias = torch.zeros(67, 67, dtype=dtype).masked_fill(~double_loop(67, 11, 3), -torch.inf)
    q, k, v = rough[0], *(x.repeat_interleave(H // H_KV, 1) for x in rough[1:])
    plain = (q @ k.mT * D**-0.5 + bias).softmax(-1) @ v
    got = attend(*rough, SWA(11, 3), impl)
    assert got.dtype == dtype
    assert (got.double() - expected).abs().max() <= 2 * (plain.double() - expected).abs().max()
    assert attend(*exact, SWA(11, 3), impl).dtype == torch.float64


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("spec", [SWA(7, 2), SWA(7, 0), Full()], ids=str)
def test_gradients(impl, spec):
    leaves = [x.requires_grad_() for x in tensors(19, 23)]
    seen = (rows(23) if spec == Full() else rows(23, spec.window, spec.sinks))[:, -19:]
    weight = tensors(19, 23, seed=5)[0][..., :D_V]
    got = torch.autograd.grad((attend(*leaves, spec, impl) * weight).sum(), leaves)
    expected = torch.autograd.grad((by_hand(*leaves, seen) * weight).sum(), leaves)
    for ours, theirs in zip(got, expected, strict=True):
        near(ours, theirs, 1e-12)


@pytest.mark.parametrize("impl", IMPLS)
def test_the_scale_is_the_callers(impl):
    q, k, v = tensors(11, 11)
    near(attend(q, k, v, SWA(5, 1), impl, scale=0.7), by_hand(q, k, v, rows(11, 5, 1), scale=0.7))


def test_the_weights_of_the_reference_are_zero_outside_and_sum_to_one():
    q, k, v = tensors(17, 17)
    at = torch.arange(17)
    attended = reference.attend_with_weights(q, k, v, SWA(5, 2), at, at, Scoring(D**-0.5))
    assert not attended.weights[:, :, ~double_loop(17, 5, 2)].any()
    near(attended.weights.sum(-1), torch.ones(B, H, 17, dtype=torch.float64))
    near(attended.weights @ v.repeat_interleave(H // H_KV, 1), attended.o)
    scores = q @ k.repeat_interleave(H // H_KV, 1).mT * D**-0.5
    near(attended.log_sum_exp, scores.masked_fill(~double_loop(17, 5, 2), -torch.inf).logsumexp(-1))


@pytest.mark.parametrize("t", [1000, 2000])
def test_work_grows_with_the_window_and_not_with_the_text(t):
    at = torch.arange(t)
    for tile in sdpa.plan(SWA(96, 4), at, at):
        keys = tile.keys.stop - tile.keys.start if isinstance(tile.keys, slice) else len(tile.keys)
        assert keys <= 96 + sdpa.tile_length(SWA(96, 4))


# ------------------------------------------------------------------------------------------------ bad input


def test_an_unknown_impl_is_refused_and_nothing_else_tried():
    known = r"\['flash', 'flex', 'reference', 'sdpa', 'triton'\]"
    with pytest.raises(ValueError, match=rf"impl must be one of {known}, got 'eager'"):
        attend(*tensors(3, 3), SWA(2, 1), "eager")


@pytest.mark.parametrize("impl", ["flash", "triton"])
def test_an_impl_that_is_not_here_is_refused_with_what_is_missing(impl, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    reason = available("cpu")[impl]
    with pytest.raises(RuntimeError) as refused:
        attend(*tensors(3, 3), SWA(2, 1), impl)
    assert str(refused.value) == f'impl="{impl}" does not run here: {reason}'


def test_available_names_every_impl_and_says_one_sentence_where_one_does_not_run(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    reasons = available("cpu")
    assert reasons["reference"] is reasons["sdpa"] is None
    assert "pip install triton" in reasons["triton"]
    assert "install g++" in reasons["flex"] or "AVX2" in reasons["flex"]
    assert "CUDA" in reasons["flash"]
    assert all("\n" not in reason for reason in reasons.values() if reason)


def test_swalib_imports_neither_triton_nor_flash_attn():
    """In a fresh Python where both are blocked, everything but them works."""
    code = """
import sys
for name in ("triton", "flash_attn"):
    sys.modules[name] = None
import torch, swalib
from swalib import figures  # and all that reads stored rows: no modeling code, which takes seconds
assert "transformers.modeling_utils" not in sys.modules
from swalib.attention import attend, available
x = torch.ones(1, 1, 3, 8)
assert torch.equal(attend(x, x, x, swalib.SWA(2, 1)), x)
assert attend(x, x, x, swalib.SWA(2, 1), "reference").shape == x.shape
assert sys.modules["triton"] is sys.modules["flash_attn"] is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("impl", IMPLS)
def test_cache_positions_need_the_rotation(impl):
    with pytest.raises(ValueError, match=r'positions="cache" turns keys anew.*pass unrotated q, k and rope='):
        attend(*tensors(3, 3), SWA(2, 1, "cache"), impl)


@pytest.mark.parametrize(
    "wrong",
    [
        ((2, 6, 3, 5), (2, 4, 3, 5), (2, 4, 3, 3)),  # 4 kv heads don't divide 6
        ((2, 6, 3, 5), (2, 2, 3, 7), (2, 2, 3, 3)),  # other head size
        ((2, 6, 3, 5), (2, 2, 3, 5), (2, 2, 4, 3)),  # more values than keys
        ((2, 6, 3, 5), (3, 2, 3, 5), (3, 2, 3, 3)),  # other batch
    ],
)
def test_shapes_that_do_not_fit_are_named(wrong):
    with pytest.raises(ValueError, match=r"attend takes q \[b, h, t_q, d\].*got"):
        attend(*(torch.zeros(*shape) for shape in wrong), SWA(2, 1))


@pytest.mark.parametrize("name", ["q_pos", "k_pos"])
def test_positions_of_another_length_are_refused(name):
    with pytest.raises(ValueError, match=name):
        attend(*tensors(3, 3), SWA(2, 1), **{name: torch.arange(4)})
