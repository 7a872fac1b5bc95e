"""Triton's kernels against fp64, run by test_attention_triton.py in a Python of their own: interpreted on the
CPU, where TRITON_INTERPRET must be set before triton is imported; compiled where there is a GPU."""

import pytest
import torch
from attention_cases import DTYPES, Case, check_student, covering, failures, problem

from swalib.attention import attend, triton
from swalib.spec import SWA, Full, PerHead

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HEADS = ((2, 2), (2, 1))
# The interpreter takes milliseconds for an instruction: short texts, small tiles.
SMALL = {} if GPU else {"lengths": ("1", "7", "w-1", "w", "w+1", "37"), "windows": (1, 16), "heads": HEADS}
SIZES = {"d": 64, "d_v": 64} if GPU else {"d": 5, "d_v": 3}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch, request):
    if not GPU and "own_tiles" not in request.fixturenames:
        for name in ("forward_tiles", "backward_tiles"):
            monkeypatch.setattr(triton, name, lambda dtype, d: triton.Tiles(16, 16, 4, 1))
        monkeypatch.setattr(triton, "LONGEST", 2)  # so that sinks' tiles are shared among programs


@pytest.fixture
def own_tiles():
    """The tiles that GPUs get."""


def attention_of(case: Case):
    return lambda q, k, v, q_pos, k_pos: attend(q, k, v, case.spec, "triton", q_pos=q_pos, k_pos=k_pos)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward(dtype):
    cases = [case for case in covering(**SMALL) if case.dtype == dtype]
    assert not failures(cases, attention_of, learns=False, device=DEVICE, **SIZES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients(dtype):
    cases = [case for case in covering(**SMALL) if case.dtype == dtype]
    if not GPU:
        cases = [
            Case(dtype, "37", 16, "4", HEADS[1], False, 0),
            Case(dtype, "w+1", 16, "0", HEADS[0], True, 7),
        ]
    assert not failures(cases, attention_of, learns=True, device=DEVICE, **SIZES)


@pytest.mark.parametrize("d", [16, 72, 256])
def test_sizes_of_heads(d, own_tiles):
    cases = [Case(torch.float16, "7", 16, "4", HEADS[1], True, 29)]
    assert not failures(cases, attention_of, learns=d == 72, device=DEVICE, d=d, d_v=d)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("padded", "offset"), [(False, 3), (True, 150)])
def test_decoding(dtype, padded, offset):
    cases = [Case(dtype, "1", window, "4", (6, 2), padded, offset) for window in (16, 140)]
    assert not failures(cases, attention_of, learns=False, device=DEVICE, **SIZES)


def test_a_key_that_is_not_seen_is_not_read():
    q, k, v = (torch.randn(1, 2, t, 8, device=DEVICE) for t in (3, 150, 150))
    expected = attend(q, k, v, SWA(9, 2), "triton"), attend(q[:, :, 2:], k, v, SWA(9, 2), "triton")
    for x in (k, v):
        x[:, :, 2 : 148 - 7] = torch.nan
    assert torch.equal(attend(q, k, v, SWA(9, 2), "triton"), expected[0])
    assert torch.equal(attend(q[:, :, 2:], k, v, SWA(9, 2), "triton"), expected[1])


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("t", [1, 37])
def test_softcap_and_sink_logits(learns, t):
    """With gradients, those of the sink logits too; a row whose queries see nothing gives zeros."""
    given = problem(Case(torch.float32, "37", 16, "4", HEADS[1], False, 0), d=5, d_v=3)
    leaves = [given.q[:, :, -t:], given.k, given.v, torch.tensor([-1.0, 2.0])]

    def outcome(impl, dtype, device):
        *qkv, logits = (x.detach().to(device, dtype).requires_grad_(learns) for x in leaves)
        o = attend(*qkv, SWA(16, 4), impl, softcap=1.5, sink_logits=logits)
        slope = given.slope[:, :, -t:].to(device, dtype)
        return [o, *(torch.autograd.grad(o, [*qkv, logits], slope) if learns else [])]

    expected = outcome("reference", torch.float64, "cpu")
    for ours, right in zip(outcome("triton", torch.float32, DEVICE), expected, strict=True):
        torch.testing.assert_close(ours.cpu().double(), right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spec", [Full(), SWA(16, 3, reach=9), SWA(16, 2, sink_positions=(1, 9))], ids=str)
def test_other_kinds_of_spec(spec):
    given = problem(Case(torch.float32, "37", 16, "4", HEADS[1], False, 0), d=5, d_v=3)
    qkv = given.q, given.k, given.v
    expected = attend(*(x.double() for x in qkv), spec, "reference")
    got = attend(*(x.to(DEVICE) for x in qkv), spec, "triton").cpu()
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5)


def test_heads_that_differ():
    given = problem(Case(torch.float32, "37", 16, "4", (4, 2), False, 0), d=5, d_v=3)
    spec = PerHead((SWA(5, 1), SWA(9, 2), SWA(5, 1), Full()))
    expected = attend(*(x.double() for x in (given.q, given.k, given.v)), spec, "reference")
    got = attend(*(x.to(DEVICE) for x in (given.q, given.k, given.v)), spec, "triton").cpu()
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5)


def test_a_student_reads_a_padded_batch_and_decodes(own_tiles):
    """Prefill, then one token at a time through its cache."""
    check_student("triton", DEVICE)


REFUSED = {
    "fp64": (torch.float64, SWA(5, 1), {}, 8, "one dtype of float32, float16, bfloat16, not float64"),
    "size": (torch.float32, SWA(5, 1), {}, 300, "at most 256 dimensions, not 300"),
    "cache": (torch.float32, SWA(5, 1, "cache"), {"rope": lambda x, at: x}, 8, "anew for each query"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_take_is_refused(name):
    dtype, spec, options, d, words = REFUSED[name]
    x = torch.zeros(1, 1, 6, d, dtype=dtype, device=DEVICE)
    with pytest.raises(ValueError, match=rf'^impl="triton" .*{words}.*use impl="sdpa"$'):
        attend(x, x, x, spec, "triton", **options)
