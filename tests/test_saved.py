"""A saved student comes back as that student, and never as its teacher."""

import json

import oracle
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from swalib import SWA, Full, PerHead, PerLayer, assert_applied, from_pretrained, under

IDS = oracle.ids(2, 31)

SPECS = {
    "swa": SWA(9, 2),
    "in cache": SWA(9, 2, positions="cache"),
    "heads": SWA([9, 5, 7, 7], [2, 0, 1, 1]),
    "layers": PerLayer((Full(), SWA(9, 2), PerHead((Full(), SWA(5, 1), SWA(5, 1), SWA(5, 1))))),
    "chosen sinks": SWA(9, 2, sink_positions=(3, 5)),
    "learned": SWA(9, 2, sink_logit="learned"),
}


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def a_student(spec, impl="sdpa", name="llama"):
    student = under(oracle.model(name), spec, impl)
    with torch.no_grad():
        for key, parameter in student.named_parameters():
            if key.endswith("sink_logits"):
                parameter.normal_(generator=torch.Generator().manual_seed(len(key)))
    return student


@pytest.mark.parametrize("load", [from_pretrained, AutoModelForCausalLM.from_pretrained])
@pytest.mark.parametrize("kind", SPECS)
def test_it_comes_back_as_it_was(tmp_path, kind, load):
    student = a_student(SPECS[kind])
    student.save_pretrained(tmp_path)
    back = load(tmp_path)
    assert torch.equal(logits(back), logits(student))
    assert not torch.allclose(logits(back), logits(oracle.model("llama")))
    assert_applied(back, SPECS[kind])
    kept = dict(back.named_parameters())
    assert all(torch.equal(kept[key], parameter) for key, parameter in student.named_parameters())


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "mistral-local"])
def test_so_it_does_in_other_families_and_under_another_impl(tmp_path, name):
    student = a_student(SWA(9, 2), "reference", name)
    student.save_pretrained(tmp_path)
    back = from_pretrained(tmp_path)
    assert torch.equal(logits(back), logits(student))
    assert back.config._attn_implementation == "swa_reference"


def test_it_can_be_saved_again_cast_and_put_under_another_spec(tmp_path):
    a_student(SPECS["learned"]).save_pretrained(tmp_path / "one")
    again = from_pretrained(tmp_path / "one", dtype=torch.bfloat16)
    assert again.dtype == torch.bfloat16
    under(again, SWA(5, 1)).save_pretrained(tmp_path / "two")
    back = from_pretrained(tmp_path / "two")
    assert_applied(back, SWA(5, 1))
    assert not any(key.endswith("sink_logits") for key, _ in back.named_parameters())


def test_the_folder_holds_safetensors_the_spec_and_the_teachers_config(tmp_path):
    a_student(SPECS["learned"]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "swa"
    assert config["spec"] == SPECS["learned"].to_dict()
    assert config["teacher"]["model_type"] == "llama"
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        teacher = oracle.model("llama").state_dict()
        assert set(weights.keys()) == set(teacher)
        assert all(torch.equal(weights.get_tensor(key), teacher[key]) for key in teacher)


def test_the_teacher_saves_as_before(tmp_path):
    a_student(SWA(9, 2))
    oracle.model("llama").save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    with pytest.raises(ValueError, match="a model of type 'llama' and no student"):
        from_pretrained(tmp_path)


def test_pushing_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="then upload the folder"):
        a_student(SWA(9, 2)).save_pretrained(tmp_path / "new", push_to_hub=True)
    assert not (tmp_path / "new").exists()
