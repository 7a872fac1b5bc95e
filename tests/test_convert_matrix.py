"""Every method on every family: whatever a student is used for gives what one forward gives. The methods' own
test files prove their mathematics; here their mixers meet the models."""

import pytest
import torch
from oracle import ids, in_chunks

from swalib import convert, from_pretrained
from swalib.linear import METHODS, config_class
from swalib.models import tiny

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi", "phi3", "gemma", "gemma2", "gemma3")
SHORT = {"lolcats": {"window": 6}, "liger": {"window": 6}}  # so that texts outgrow it


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * max(1.0, float(expected.abs().max())))


@torch.no_grad()
def logits(model, rows, **kwargs):
    return model(rows, **kwargs).logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_a_student_in_every_use(method, family, tmp_path):
    teacher, rows = tiny(family, num_hidden_layers=2), ids(2, 21)
    before, weights = logits(teacher, rows), {n: p.clone() for n, p in teacher.state_dict().items()}
    torch.manual_seed(0)
    student = convert(teacher, config_class(method)(**SHORT.get(method, {})))
    whole = logits(student, rows)
    assert bool(torch.isfinite(whole).all())
    assert float((whole - before).abs().max()) > 1e-3
    with torch.no_grad():
        close(in_chunks(student, rows, [13, 1]), whole)
        padded_is_alone(student, rows)
    student.save_pretrained(tmp_path)
    assert torch.equal(logits(from_pretrained(tmp_path), rows), whole)
    assert torch.equal(logits(teacher, rows), before)
    assert all(torch.equal(p, weights[n]) for n, p in teacher.state_dict().items())


def padded_is_alone(student, rows):
    """Row 0 after five pads, row 1 before four, in one call and in two."""
    mask = torch.ones_like(rows)
    mask[0, :5], mask[1, 17:] = 0, 0
    alone = logits(student, rows[:1, 5:])[0], logits(student, rows[1:, :17])[0]
    for got in (logits(student, rows, attention_mask=mask), in_chunks(student, rows, [8, 13], mask=mask)):
        close(got[0, 5:], alone[0])
        close(got[1, :17], alone[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_window_that_holds_the_text_is_the_teacher(family):
    """LoLCATs, and Liger without its gated half; Gemma 2's capped scores and a teacher's own scale too. Seven
    tokens are what a local layer of the tiny models sees."""
    teacher, rows = tiny(family, num_hidden_layers=2), ids(2, 7)
    for method, options in (("lolcats", {}), ("liger", {"linear_share": 0.0})):
        close(logits(convert(teacher, config_class(method)(**options)), rows), logits(teacher, rows))
