"""FlashAttention with sinks: the calls and their merging, with a plain stand-in for the package; on a GPU,
the package itself."""

import sys
import types

import pytest
import torch
from attention_cases import DTYPES, Case, covering, failures, problem

from swalib.attention import attend, flash
from swalib.spec import SWA, Full

HALF = DTYPES[1:]
CASES = covering(dtypes=HALF, padded=(False,))
KEYS_READ = []


def flash_attn_func(
    q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, return_attn_probs=False
):
    """flash-attn 2's function as documented: [b, t, h, d]; queries align with the *last* keys; a window of
    `left` shows left + 1 keys; gives (o, log-sum-exp [b, h, t] fp32, None)."""
    assert return_attn_probs
    assert q.dtype == k.dtype == v.dtype
    KEYS_READ.append(k.shape[1])
    dtype = q.dtype
    assert dtype in HALF
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    left, right = window_size
    behind = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
    seen = torch.ones_like(behind, dtype=torch.bool)
    if left >= 0:
        seen = seen & (behind <= left)
    if causal or right >= 0:
        seen = seen & (behind >= (0 if causal else -right))
    scores = q @ k.mT * softmax_scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores.masked_fill(~seen, -torch.inf)
    o = scores.softmax(-1).nan_to_num(0) @ v  # a query that sees none of the keys: zeros, -inf
    return o.transpose(1, 2).to(dtype), scores.logsumexp(-1), None


@pytest.fixture
def stand_in(monkeypatch):
    package = types.ModuleType("flash_attn")
    package.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    implementation = flash_implementation()._replace(missing=lambda device: None)
    monkeypatch.setitem(attend.__globals__["IMPLEMENTATIONS"], "flash", implementation)
    KEYS_READ.clear()


def flash_implementation():
    return attend.__globals__["IMPLEMENTATIONS"]["flash"]


def attention_of(case: Case):
    return lambda q, k, v, q_pos, k_pos: attend(q, k, v, case.spec, "flash", q_pos=q_pos, k_pos=k_pos)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_merged_calls_are_the_whole(dtype):
    assert not failures([case for case in CASES if case.dtype == dtype], attention_of, learns=False)


@pytest.mark.gpu
@pytest.mark.skipif(flash.missing("cuda") is not None, reason="needs flash-attn")
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_package_itself(dtype):
    cases = [case for case in CASES if case.dtype == dtype]
    assert not failures(cases, attention_of, learns=False, device="cuda", d=64, d_v=64)


@pytest.mark.usefixtures("stand_in")
def test_no_key_is_read_twice_but_by_tiles_of_the_text():
    q, k, v = (torch.randn(1, 2, 50, 8).half() for _ in range(3))
    attend(q, k, v, SWA(9, 4), "flash")
    assert KEYS_READ == [4, 46, 4]  # the first four causally; then what is no sink, and the sinks
    KEYS_READ.clear()
    attend(q[:, :, -1:], k, v, SWA(9, 4), "flash")
    assert KEYS_READ == [9]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("t", [2, 4, 5])
def test_texts_as_short_as_the_sinks(t):
    q, k, v = (torch.randn(1, 2, t, 8).half() for _ in range(3))
    whole = attend(q, k, v, SWA(9, 4), "flash")
    torch.testing.assert_close(whole, attend(q, k, v, Full(), "reference"), rtol=0, atol=2e-3)


@pytest.mark.usefixtures("stand_in")
def test_a_chunk_after_a_ring_of_slots():
    """Keys as a cache hands them over: slots out of order, then the chunk's own."""
    given = problem(Case(torch.float16, "63", 16, "4", (4, 2), False, 0))
    text = attend(given.q, given.k, given.v, SWA(9, 2), "flash")
    k_pos = torch.tensor([0, 1, 58, 52, 53, 54, 55, 56, 57, 59, 60, 61, 62])
    k, v = given.k[:, :, k_pos], given.v[:, :, k_pos]
    chunk = attend(given.q[:, :, 59:], k, v, SWA(9, 2), "flash", q_pos=torch.arange(59, 63), k_pos=k_pos)
    torch.testing.assert_close(chunk, text[:, :, 59:], rtol=0, atol=2e-3)


@pytest.mark.usefixtures("stand_in")
def test_softcap_and_sink_logits_are_those_of_the_reference():
    given = problem(Case(torch.float16, "63", 16, "4", (4, 2), False, 0))
    options = {"softcap": 1.5, "sink_logits": torch.tensor([-1.0, 0.0, 1.0, 2.0])}
    got = attend(given.q, given.k, given.v, SWA(16, 4), "flash", **options)
    exact = [x.double() for x in (given.q, given.k, given.v)]
    expected = attend(*exact, SWA(16, 4), "reference", **options)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-3)


# ------------------------------------------------------------------------------------------------ refused


def half(t=20, t_k=20, dtype=torch.float16, d_v=8):
    return torch.zeros(2, 2, t, 8, dtype=dtype), torch.zeros(2, 2, t_k, 8, dtype=dtype), torch.zeros(
        2, 2, t_k, d_v, dtype=dtype
    )  # fmt: skip


def rope(x, positions):
    return x


PADDED = torch.arange(20) - torch.tensor([[0], [3]])
REFUSED = {
    "fp32": (half(dtype=torch.float32), SWA(5, 1), {}, "one dtype of float16, bfloat16, not float32"),
    "padding": (half(), SWA(5, 1), {"q_pos": PADDED, "k_pos": PADDED}, "without padding"),
    "reach": (half(), SWA(5, 1, reach=7), {}, "reach"),
    "sink_positions": (half(), SWA(5, 1, sink_positions=(2,)), {}, "sink_positions"),
    "order": (half(), SWA(5, 1), {"q_pos": torch.arange(20).flip(0)}, "in order"),
    "evicted": (half(), SWA(5, 1), {"q_pos": torch.arange(20) + 30, "k_pos": torch.arange(20) + 30}, "keys"),
    "values": (half(d_v=16), SWA(5, 1), {}, "values as long as keys"),
    "cache": (half(), SWA(5, 1, "cache"), {"rope": rope}, "anew for each query"),
}


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_take_is_refused(name):
    tensors, spec, options, words = REFUSED[name]
    with pytest.raises(ValueError, match=rf'^impl="flash" .*{words}.*use impl="sdpa"$'):
        attend(*tensors, spec, "flash", **options)


@pytest.mark.usefixtures("stand_in")
def test_gradients_through_a_merge_are_refused_and_without_one_are_right():
    q, k, v = (x.requires_grad_() for x in half())
    with pytest.raises(ValueError, match=r"computes no gradients where there are sinks: use torch\.no_grad"):
        attend(q, k, v, SWA(5, 1), "flash")
    for spec in (SWA(5, 0), Full()):
        assert attend(q, k, v, spec, "flash").requires_grad
