"""Conversion: what a student shares with its teacher, and that it is a student in every use. On QLinAtt, the
plainest mixer; each method's own test file proves the method."""

import oracle
import pytest
import torch
from oracle import ids, in_chunks
from safetensors.torch import load_file, save_file

from swalib import SWA, Full, PerLayer, SinkCache, applied, assert_applied, convert, from_pretrained, under
from swalib.linear import METHODS, config_class, mixer_class
from swalib.linear.qlinatt import QLinAttConfig
from swalib.models import tiny
from swalib.spec import from_dict

METHOD = QLinAttConfig()
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi", "phi3", "gemma", "gemma2", "gemma3")


def logits(model, rows, **kwargs):
    with torch.no_grad():
        return model(rows, **kwargs).logits


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_any_use_gives_what_one_forward_gives(family):
    teacher, rows = tiny(family), ids(2, 30)
    before = logits(teacher, rows)
    student = convert(teacher, METHOD)
    whole = logits(student, rows)
    assert float((whole - before).abs().max()) > 0.1
    for sizes in ([1], [9, 1, 1, 19], [29, 1]):
        close(in_chunks(student, rows, sizes), whole)
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[0, :7], mask[1, 26:] = 0, 0
    for padded in (logits(student, rows, attention_mask=mask), in_chunks(student, rows, [5, 1], mask=mask)):
        close(padded[0, 7:], logits(student, rows[:1, 7:])[0])
        close(padded[1, :26], logits(student, rows[1:, :26])[0])
    assert torch.equal(logits(teacher, rows), before)


@torch.no_grad()
def test_beams_follow_the_state():
    student, rows = convert(tiny("llama"), METHOD), ids(2, 12)
    options = {
        "attention_mask": torch.ones_like(rows),
        "max_new_tokens": 8,
        "num_beams": 3,
        "do_sample": False,
    }
    expected = student.generate(rows, use_cache=False, **options)
    assert torch.equal(student.generate(rows, **options), expected)


def test_what_is_shared_and_what_is_copied():
    teacher = tiny("qwen2")
    theirs = {id(p) for p in teacher.parameters()}
    copied, shared = convert(teacher, METHOD), convert(teacher, METHOD, share=True)
    assert not [name for name, p in copied.named_parameters() if id(p) in theirs]
    own = [name for name, p in shared.named_parameters() if id(p) not in theirs]
    assert own
    assert all(".self_attn." in name for name in own)
    attention, mixer = teacher.model.layers[1].self_attn, copied.model.layers[1].self_attn
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        assert torch.equal(getattr(mixer, part).weight, getattr(attention, part).weight)
    assert torch.equal(mixer.k_proj.bias, attention.k_proj.bias)


def test_the_state_is_constant_and_a_hybrid_keeps_its_windows():
    student, rows = convert(tiny("llama"), METHOD), ids(2, 200)
    sizes = {len(x[0]): SinkCache((METHOD,) * 3) for x in (rows, rows[:, :20])}
    for length, cache in sizes.items():
        logits(student, rows[:, :length], cache=cache)
    assert len({cache.allocated_bytes for cache in sizes.values()}) == 1
    hybrid = convert(tiny("llama"), PerLayer((Full(), METHOD, SWA(9, 2))))
    assert_applied(hybrid, PerLayer((Full(), METHOD, SWA(9, 2))))
    close(in_chunks(hybrid, rows[:, :40], [7, 1, 3]), logits(hybrid, rows[:, :40]))


@pytest.mark.parametrize("spec", [METHOD, PerLayer((Full(), METHOD, SWA(9, 2)))], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_it_comes_back_from_disk(tmp_path, family, spec):
    student = convert(tiny(family), spec)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.mul_(1.01)
    student.save_pretrained(tmp_path)
    back = from_pretrained(tmp_path)
    assert torch.equal(logits(back, ids(1, 30)), logits(student, ids(1, 30)))


def spoilt(folder, change):
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    path.unlink()
    save_file(state, path, metadata={"format": "pt"})


KEY = "model.layers.0.self_attn.norm.weight"
SPOILT = {
    "missing": (lambda state: state.pop(KEY), f"lacks {KEY}"),
    "unexpected": (lambda state: state.update(extra=torch.zeros(1)), "has unexpected extra"),
    "shape": (lambda state: state.update({KEY: torch.zeros(3)}), f"has other shapes at {KEY}"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, case):
    change, message = SPOILT[case]
    convert(tiny("llama"), METHOD).save_pretrained(tmp_path)
    spoilt(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


def test_an_output_matrix_of_its_own_is_not_taken_for_a_tied_one(tmp_path):
    student = convert(tiny("llama"), METHOD)
    student.save_pretrained(tmp_path)
    spoilt(tmp_path, lambda state: state.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"lacks lm_head\.weight$"):
        from_pretrained(tmp_path)


def test_what_is_missing_unexpected_and_misshapen_is_said_at_once(tmp_path):
    convert(tiny("llama"), METHOD).save_pretrained(tmp_path)
    for change, _ in SPOILT.values():
        spoilt(tmp_path, change if change is not SPOILT["missing"][0] else lambda s: s.pop("lm_head.weight"))
    shapes = rf"has other shapes at {KEY} \(\[3\] for \[10\]\)"
    with pytest.raises(ValueError, match=rf"lacks lm_head.weight; it has unexpected extra; it {shapes}$"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("method", ["supra", "qlinatt"])
def test_one_parameter_under_two_names_comes_back(tmp_path, method):
    """SUPRA's map, one for q and k where they have as many heads; a tied output matrix."""
    teacher = tiny("llama", num_key_value_heads=4, tie_word_embeddings=True)
    student = convert(teacher, config_class(method)())
    student.save_pretrained(tmp_path)
    back = from_pretrained(tmp_path)
    assert torch.equal(logits(back, ids(1, 12)), logits(student, ids(1, 12)))
    assert back.lm_head.weight is back.model.embed_tokens.weight


def test_a_pickle_is_never_opened(tmp_path):
    convert(tiny("llama"), METHOD).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"lacks model.safetensors: .* a pickle .* is never opened"):
        from_pretrained(tmp_path)


WRONG = {
    "a window": (lambda: convert(tiny("llama"), SWA(9, 2)), TypeError, "takes a linear mixer's config"),
    "no mixer": (lambda: convert(tiny("llama"), PerLayer((Full(),) * 3)), ValueError, "has no linear mixer"),
    "layers": (lambda: convert(tiny("llama"), PerLayer((METHOD,))), ValueError, "has 1 specs, but .* 3"),
    "no layout": (lambda: convert(tiny("gpt_neox"), METHOD), ValueError, "no attention of a known layout"),
    "family": (lambda: convert(oracle.bloom(), METHOD), ValueError, "this model's type is 'bloom'"),
    "under": (lambda: under(tiny("llama"), METHOD), TypeError, "use swalib.convert"),
    "spec on top": (lambda: under(convert(tiny("llama"), METHOD), SWA(9, 2)), ValueError, "linear mixers"),
    "crop": (lambda: SinkCache((METHOD,)).crop(1), RuntimeError, "can't be rolled back"),
    "no method": (lambda: config_class("flash"), ValueError, "a linear method is one of"),
    "impl": (lambda: convert(tiny("llama"), METHOD, impl="fla"), ValueError, "impl must be one of"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_misuse_is_one_clear_sentence(case):
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_block_and_its_witness_know_converted_students():
    teacher = tiny("llama")
    with applied(teacher, SWA(9, 2)) as student:
        student(ids(1, 4))
        converted = convert(teacher, METHOD)
        converted(ids(1, 4))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_config_that_survives_json(method):
    config = config_class(method)()
    assert config.method == method
    assert from_dict(config.to_dict()) == config
    assert mixer_class(method).Config is type(config)
    assert mixer_class(method).__doc__
