"""Published checkpoints: state dicts of the shapes in the released sources, each tensor of which must land
where the released module uses it. What they should give is put together by hand beside them."""

import json
import re

import pytest
import torch
from oracle import ids
from published_checkpoints import (
    CONFIGS,
    HEADS,
    HIDDEN,
    KV,
    TEACHERS,
    D,
    by_hand,
    checkpoint,
    lolcats_maps,
    lolcats_updates,
)
from safetensors.torch import save_file

from swalib import Full, PerLayer
from swalib.linear import METHODS, config_class
from swalib.models import tiny
from swalib.published import LAYOUTS, load_published


@pytest.fixture(params=LAYOUTS)
def method(request):
    return request.param


def loaded(method, theirs=None):
    teacher = tiny(TEACHERS[method])
    return load_published(teacher, CONFIGS[method], checkpoint(method, teacher) if theirs is None else theirs)


@torch.no_grad()
def test_each_tensor_lands_where_the_released_module_uses_it(method):
    teacher, rows = tiny(TEACHERS[method]), ids(2, 13)
    before = teacher(rows).logits
    theirs = checkpoint(method, teacher)
    student, expected = load_published(teacher, CONFIGS[method], theirs), by_hand(method, teacher, theirs)
    wanted = dict(expected.named_parameters())
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(parameter, wanted[name], rtol=1e-6, atol=1e-7, msg=name)
    torch.testing.assert_close(student(rows).logits, expected(rows).logits, rtol=0, atol=1e-5)
    assert float((student(rows).logits - before).abs().max()) > 0.01
    assert torch.equal(teacher(rows).logits, before)


def test_nothing_is_the_teachers_own(method):
    teacher = tiny(TEACHERS[method])
    theirs = {p.data_ptr() for p in teacher.parameters()}
    student = load_published(teacher, CONFIGS[method], checkpoint(method, teacher))
    assert not [name for name, p in student.named_parameters() if p.data_ptr() in theirs]


def same(one, other):
    other = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, other[name]), name


def test_files_folders_and_wrapped_names_give_the_same(method, tmp_path):
    expected, theirs = loaded(method), checkpoint(method, tiny(TEACHERS[method]))
    save_file(theirs, tmp_path / "model.safetensors")
    for source in (tmp_path, str(tmp_path), tmp_path / "model.safetensors"):
        same(loaded(method, source), expected)
    if method != "llamba":  # as a trainer or peft would save it
        same(loaded(method, {f"module.{name}": x for name, x in theirs.items()}), expected)
        wrapped = {re.sub(r"_proj\.(weight|bias)", r"_proj.base_layer.\1", k): x for k, x in theirs.items()}
        same(loaded(method, wrapped), expected)


def test_shards_are_put_together(method, tmp_path):
    theirs = checkpoint(method, tiny(TEACHERS[method]))
    names = sorted(theirs)
    where = {name: f"part{n % 2}.safetensors" for n, name in enumerate(names)}
    for part in set(where.values()):
        save_file({name: theirs[name] for name in names if where[name] == part}, tmp_path / part)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    same(loaded(method, tmp_path), loaded(method))
    (tmp_path / "part1.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"lacks part1\.safetensors: weights are read from safetensors alone"
    ):
        loaded(method, tmp_path)


def test_a_trainers_wrapping_is_said_to_be_unexpected():
    with pytest.raises(ValueError, match=r"lacks .*; it has unexpected model_state_dict, epoch$"):
        loaded("lolcats", {"model_state_dict": lolcats_maps(), "epoch": 2})


@torch.no_grad()
def test_lolcats_comes_in_two_files_the_second_of_which_may_be_left_out():
    teacher = tiny("llama")
    both = load_published(teacher, CONFIGS["lolcats"], lolcats_maps(), lolcats_updates())
    same(both, loaded("lolcats"))
    first = load_published(teacher, CONFIGS["lolcats"], lolcats_maps())
    mixer, attention = first.model.layers[1].self_attn, teacher.model.layers[1].self_attn
    assert torch.equal(mixer.q_proj.weight, attention.q_proj.weight)
    assert torch.equal(mixer.phi_k.weight, both.model.layers[1].self_attn.phi_k.weight)
    stronger = load_published(teacher, CONFIGS["lolcats"], lolcats_maps(), lolcats_updates(), lora_alpha=32)
    updates = (s.model.layers[1].self_attn.o_proj.weight - attention.o_proj.weight for s in (both, stronger))
    once, twice = updates
    torch.testing.assert_close(twice, 2 * once, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_updates_go_on_the_weights_of_the_same_checkpoint():
    """Liger's adapters beside full weights, in peft's own names: alpha 8."""
    theirs = checkpoint("liger", tiny("llama"))
    at = "model.layers.2.self_attn.v_proj"
    a, b = torch.ones(1, HIDDEN), torch.arange(KV * D, dtype=torch.float32)[:, None] / 9
    updates = {f"base_model.model.{at}.lora_A.weight": a, f"base_model.model.{at}.lora_B.weight": b}
    student = load_published(tiny("llama"), CONFIGS["liger"], theirs, updates)
    torch.testing.assert_close(
        student.model.layers[2].self_attn.v_proj.weight, theirs[f"{at}.weight"] + 8 * b @ a
    )


def test_a_hybrid_takes_its_mixers_weights():
    """As LoLCATs' largest model, which leaves some layers their attention."""
    theirs = {k: x for k, x in lolcats_maps().items() if ".layers.1." not in k}
    hybrid = PerLayer((CONFIGS["lolcats"], Full(), CONFIGS["lolcats"]))
    student = load_published(tiny("llama"), hybrid, theirs)
    at = "model.layers.2.self_attn.feature_map_q.mlp.layer"
    assert torch.equal(student.model.layers[2].self_attn.phi_q.weight, theirs[at])


AT = "model.layers.1.self_attn."


def without(key):
    return lambda state: state.pop(key)


SPOILT = {
    "a map is gone": ("lolcats", without(AT + "feature_map_k.mlp.layer"), rf"lacks {AT}phi_k\.weight$"),
    "a factor is gone": ("lolcats", without(AT + "window_factors"), rf"lacks {AT}window_logit$"),
    "half an update": (
        "lolcats",
        without(f"base_model.model.{AT}q_proj.lora_A.default.weight"),
        rf"low-rank update of {AT}q_proj\.weight is half there",
    ),
    "all of a norm": ("liger", without("model.norm.weight"), r"lacks model\.norm\.weight$"),
    "head": ("qrwkv6", without("lm_head.weight"), r"lacks lm_head\.weight$"),
    "what a later layer reads": ("qrwkv7", without(AT + "v0"), rf"lacks {AT}v0$"),
    "unknown": ("qrwkv6", lambda s: s.update({AT + "gate_w1": torch.ones(1)}), rf"unexpected {AT}gate_w1$"),
    "attention": (
        "llamba",
        lambda s: s.update({f"backbone.layers.0.mixer.q{n}": torch.ones(1) for n in range(5)}),
        r"unexpected model\.layers\.0\.self_attn\.q0, .*q1, .*q2 and 2 more$",
    ),
    "rows": (
        "llamba",
        lambda s: s.update({"backbone.layers.1.mixer.in_proj.weight": torch.ones(3, HIDDEN)}),
        r"lacks .*self_attn\.q_proj\.weight, .* and 2 more; it has unexpected .*self_attn\.in_proj\.weight$",
    ),
    "shape": (
        "lolcats",
        lambda s: s.update({AT + "feature_map_q.mlp.layer": torch.ones(HEADS, D, 4)}),
        rf"has other shapes at {AT}phi_q\.weight \(\[4, 10, 4\] for \[4, 10, 3\]\)$",
    ),
    "rank": ("qrwkv7", lambda s: s.update({AT + "w1": torch.ones(HIDDEN, 4)}), rf"other shapes at {AT}w1 "),
    "twice": (
        "liger",
        lambda s: s.update({f"module.{AT}o_proj.weight": torch.ones(1)}),
        rf"has {AT}o_proj\.weight twice, as {AT}o_proj\.weight and as module\.",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_sentence(case):
    name, change, message = SPOILT[case]
    theirs = checkpoint(name, tiny(TEACHERS[name]))
    change(theirs)
    with pytest.raises(ValueError, match=message) as caught:
        loaded(name, theirs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["model.pt", "pytorch_model.bin", "x.pth", "lolcats.ckpt"])
def test_a_pickle_is_never_opened(file, tmp_path):
    torch.save(lolcats_maps(), tmp_path / file)
    with pytest.raises(ValueError, match=r"is a pickle, which can run code and is never opened"):
        loaded("lolcats", tmp_path / file)
    with pytest.raises(ValueError, match=r"lacks model.safetensors: .* a pickle .* is never opened"):
        loaded("lolcats", tmp_path)


def test_two_tensors_for_one_are_refused():
    """A tied teacher, and a checkpoint whose training untied it."""
    teacher = tiny("qwen2")
    teacher.config.tie_word_embeddings = True
    teacher.tie_weights()
    theirs = checkpoint("qrwkv6", teacher)
    with pytest.raises(ValueError, match=r"one tensor in this teacher and two in the checkpoint"):
        load_published(teacher, CONFIGS["qrwkv6"], theirs)
    del theirs["lm_head.weight"]
    student = load_published(teacher, CONFIGS["qrwkv6"], theirs)
    assert torch.equal(student.lm_head.weight, theirs["model.embed_tokens.weight"])


@pytest.mark.parametrize("method", sorted(METHODS.keys() - LAYOUTS.keys()))
def test_methods_without_a_public_layout_are_refused(method):
    with pytest.raises(ValueError, match=rf"known here for one of lolcats, .*, got {method}: train"):
        load_published(tiny("llama"), config_class(method)(), {})
