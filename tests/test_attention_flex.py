"""FlexAttention, compiled, against fp64. A kernel takes seconds to compile: few dtypes and numbers of heads,
and all lengths of one test go through one kernel."""

import pytest
import torch
from attention_cases import DTYPES, Case, check_student, covering, failures, grid, problem

from swalib.attention import attend, flex
from swalib.spec import SWA, Full

pytestmark = pytest.mark.skipif(flex.missing("cpu") is not None, reason=f"flex: {flex.missing('cpu')}")
CASES = covering()


def attention_of(case: Case):
    return lambda q, k, v, q_pos, k_pos: attend(q, k, v, case.spec, "flex", q_pos=q_pos, k_pos=k_pos)


def chosen(dtype, heads, cases=CASES):
    return [case for case in cases if case.dtype == dtype and case.heads == heads]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_outputs(dtype):
    cases = chosen(dtype, (4, 2), covering(heads=((4, 2),), dtypes=(dtype,)))
    assert not failures(cases, attention_of, learns=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
def test_outputs_of_the_full_grid(dtype, heads):
    assert not failures(chosen(dtype, heads, grid()), attention_of, learns=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_and_gradients_on_a_gpu(dtype):
    cases = [case for heads in ((4, 4), (4, 2)) for case in chosen(dtype, heads)]
    assert not failures(cases, attention_of, learns=True, device="cuda", d=64, d_v=64)


def test_a_soft_cap_is_no_part_of_the_kernel_and_other_specs_need_none_of_their_own():
    given = problem(Case(torch.float32, "63", 16, "4", (4, 2), False, 29))
    qkv = given.q, given.k, given.v
    for options in ({"softcap": 1.5}, {"softcap": 4.0}):
        expected = attend(*(x.double() for x in qkv), SWA(16, 4), "reference", **options)
        got = attend(*qkv, SWA(16, 4), "flex", **options)
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5)
    for spec in (Full(), SWA(16, 3, reach=9), SWA(16, 2, sink_positions=(1, 9))):
        expected = attend(*(x.double() for x in qkv), spec, "reference")
        torch.testing.assert_close(attend(*qkv, spec, "flex").double(), expected, rtol=0, atol=1e-5)


def test_a_student_reads_a_padded_batch_and_decodes():
    check_student("flex")


X = torch.zeros(1, 1, 6, 8)
REFUSED = {
    "fp64": (X.double(), SWA(5, 1), {}, "one dtype of float32, float16, bfloat16, not float64"),
    "sink logits": (X, SWA(5, 1), {"sink_logits": torch.zeros(1)}, "no sink logits"),
    "cache": (X, SWA(5, 1, "cache"), {"rope": lambda x, at: x}, "anew for each query"),
    "gradients": (X.clone().requires_grad_(), SWA(5, 1), {}, r"no gradients on a CPU: use torch.no_grad\(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_take_is_refused(name):
    x, spec, options, words = REFUSED[name]
    with pytest.raises(ValueError, match=rf'^impl="flex" .*{words}.*use impl="sdpa"$'):
        attend(x, x, x, spec, "flex", **options)
