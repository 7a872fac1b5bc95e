"""SWA on every architecture, used in every way, against the model itself in fp64 under masks of our own."""

from dataclasses import replace

import pytest
import torch
from architectures import ARCHITECTURES, L, attentions, check, check_rows, compute, model, truth
from oracle import error, ids
from transformers import AutoConfig, AutoModelForCausalLM

from swalib import SWA, Full, applied, assert_applied, under
from swalib.canary import NotApplied

A, NO_SINKS, ALL_SINKS = SWA(8, 2), SWA(9, 0), SWA(5, 4)
IN_CACHE = SWA(8, 2, positions="cache")
EVERY = list(ARCHITECTURES)
ROTARY = [name for name in EVERY if ARCHITECTURES[name].pairs]
LOCAL = [name for name in EVERY if any(ARCHITECTURES[name].native)]

every = pytest.mark.parametrize("name", EVERY)
rotary = pytest.mark.parametrize("name", ROTARY)
local = pytest.mark.parametrize("name", LOCAL)


# ----------------------------------------------------------------------------------------- can the oracle be


@every
def test_the_oracle_is_the_model_when_nothing_is_hidden(name):
    exact = truth(name, Full())
    assert exact.bound < 1e-4 * float(exact.logits.abs().max())
    with torch.no_grad():
        assert error(model(name)(ids(1, L)).logits, exact.logits) <= exact.bound


@rotary
def test_its_own_rotation_is_the_models(name):
    table = 1e-6 if name == "gptj" else 1e-12  # GPT-J's table of sines is rounded to fp32
    text, in_cache = SWA(L, 0), SWA(L, 0, positions="cache")
    assert error(compute(name, in_cache, ids(1, L)), compute(name, text, ids(1, L))) < table


# ------------------------------------------------------------------------------------------------ SWA(w, s)


@every
@pytest.mark.parametrize(
    ("spec", "impl"), [(A, "reference"), (NO_SINKS, "sdpa"), (ALL_SINKS, "sdpa"), (Full(), "sdpa")], ids=str
)
def test_one_forward(name, spec, impl):
    check(name, spec, [L], impl=impl)


@every
@pytest.mark.parametrize(("spec", "sizes"), [(A, [7]), (NO_SINKS, [13, 1, 5]), (ALL_SINKS, [3])], ids=str)
def test_chunks(name, spec, sizes):
    check(name, spec, sizes)


@every
def test_one_by_one(name):
    check(name, A, [1])


@every
def test_generate_is_greedy_on_masked_forwards(name):
    """Each token against the masked forward over all before it: one forward, since what follows is unseen."""
    prompt = ids(1, 17)
    with applied(model(name), A) as student:
        out = student.generate(prompt, max_new_tokens=9, do_sample=False)
    assert out.shape == (1, 26)
    exact = compute(name, A, out[:, :-1])[0, 16:]
    behind = exact.amax(-1) - exact.gather(1, out[0, 17:, None])[:, 0]
    assert behind.max() <= truth(name, A).bound


@every
def test_another_window_would_be_seen(name):
    with applied(model(name), A) as student, torch.no_grad():
        got = student(ids(1, L)).logits
    for wrong in (SWA(9, 2), SWA(7, 2), SWA(8, 3), SWA(8, 1), Full()):
        assert error(got, compute(name, wrong, ids(1, L))) > 100 * truth(name, A).bound, wrong


def _no_cap(attention):
    attention.attn_logit_softcapping = None


def _no_sink_logit(attention):
    attention.sinks.fill_(-1000)


def _usual_scale(attention):
    attention.scaling = attention.head_dim**-0.5


def _rotated_everywhere(attention):
    attention.use_rope = True


PARTS = [
    ("gemma2", _no_cap),
    ("gpt_oss", _no_sink_logit),
    ("granite", _usual_scale),
    ("gemma3", lambda attention: setattr(attention, "scaling", 1.0)),
    ("smollm3", _rotated_everywhere),
]


@pytest.mark.parametrize(("name", "change"), PARTS, ids=[name for name, _ in PARTS])
def test_a_part_of_the_architecture_left_out_would_be_seen(name, change):
    def without(plain):
        for attention in attentions(plain):
            change(attention)

    with applied(model(name), A) as student, torch.no_grad():
        got = student(ids(1, L)).logits
    other = compute(name, A, ids(1, L), change=without)
    assert error(got, other) > 100 * truth(name, A).bound


# --------------------------------------------------------------------------------------------- local layers


@local
@pytest.mark.parametrize(("spec", "sizes"), [(A, [L]), (ALL_SINKS, [7, 1, 4]), (SWA(8, 6), [1])], ids=str)
def test_local_layers_see_the_intersection(name, spec, sizes):
    check(name, replace(spec, local="intersect"), sizes)


@local
def test_keeping_and_intersecting_are_different_functions(name):
    kept, both = (truth(name, replace(SWA(8, 6), local=how)) for how in ("keep", "intersect"))
    assert error(kept.logits, both.logits) > 100 * kept.bound


# ------------------------------------------------------------------------------------ padding, canary, others


@pytest.mark.parametrize(
    ("name", "spec"), [*((name, A) for name in EVERY), *((name, IN_CACHE) for name in ROTARY)], ids=str
)
def test_left_padding_each_row_is_that_row_alone(name, spec):
    check_rows(name, spec, [0, 3, 13])


@pytest.mark.parametrize(
    ("name", "spec"), [*((name, A) for name in EVERY), *((name, IN_CACHE) for name in ROTARY)], ids=str
)
def test_the_canary_passes(name, spec):
    with applied(model(name), spec) as student:
        assert_applied(student, spec)


@every
def test_the_canary_fails_on_the_teacher_and_on_another_window(name):
    for other in (model(name), under(model(name), SWA(9, 2))):
        with pytest.raises(NotApplied):
            assert_applied(other, A)


@pytest.mark.parametrize("kind", ["falcon", "bloom", "mpt"])
def test_another_family_is_refused_in_a_sentence(kind):
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "mpt":
        sizes = {"vocab_size": 11, "d_model": 8, "n_layers": 1, "n_heads": 2}
    config = AutoConfig.for_model(kind, bos_token_id=None, eos_token_id=None, **sizes)
    with pytest.raises(ValueError, match=rf"^SWA is proven here on gemma, .*, stablelm; .*'{kind}'$"):
        under(AutoModelForCausalLM.from_config(config), A)
