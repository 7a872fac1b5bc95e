"""A student on disk: its teacher's weights, and a config that says under which spec they run.

The config's model type is "swa", so that nothing loads the folder as its teacher, under full attention: where
swalib has been imported, `AutoModelForCausalLM.from_pretrained` gives the student back; elsewhere it raises.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from swalib.families import decoder
from swalib.spec import from_dict

SINK_LOGITS = "sink_logits"
_SINK_FILE = "sink_logits.safetensors"


class SWAConfig(PreTrainedConfig):
    """What `config.json` of a student holds.

    Args:
        spec: `to_dict` of the spec.
        impl: how attention is computed, see `swalib.attention.attend`.
        teacher: the config of the model it runs on, its model_type included.
    """

    model_type = "swa"

    def __init__(
        self, spec: dict | None = None, impl: str = "sdpa", teacher: dict | None = None, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.spec, self.impl, self.teacher = spec, impl, teacher


class SWAForCausalLM:
    """What `AutoModelForCausalLM` makes of an `SWAConfig`: a student of the teacher in the same folder."""

    config_class = SWAConfig

    @staticmethod
    def from_pretrained(name: str | Path, *args: Any, config: SWAConfig, **kwargs: Any) -> PreTrainedModel:
        """As `swalib.from_pretrained`."""
        from swalib.hf import under

        inner = AutoConfig.for_model(**config.teacher)
        teacher = AutoModelForCausalLM.from_pretrained(name, *args, config=inner, **kwargs)
        student = under(teacher, from_dict(config.spec), config.impl)
        logits = {key: p for key, p in student.named_parameters() if key.endswith(f".{SINK_LOGITS}")}
        if logits:
            saved = load_file(cached_file(name, _SINK_FILE))
            with torch.no_grad():
                for key, parameter in logits.items():
                    parameter.copy_(saved[key])
        return student


AutoConfig.register("swa", SWAConfig)
AutoModelForCausalLM.register(SWAConfig, SWAForCausalLM)


def from_pretrained(name: str | Path, **kwargs: Any) -> PreTrainedModel:
    """The student that `student.save_pretrained(name)` saved, under the same spec and impl.

    Args:
        name: its folder, or a hub id.
        kwargs: as for `AutoModelForCausalLM.from_pretrained` (dtype, device_map, ...).

    Raises:
        ValueError: what was saved there is no student.
    """
    config = AutoConfig.from_pretrained(name)
    if not isinstance(config, SWAConfig):
        raise ValueError(
            f"{name} holds a model of type {config.model_type!r} and no student: load it with transformers, "
            "and put a spec on it with swalib.applied or swalib.under"
        )
    return SWAForCausalLM.from_pretrained(name, config=config, **kwargs)


def save_pretrained(
    student: PreTrainedModel, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any
) -> None:
    """A student's own `save_pretrained`: weights as its teacher's, learned sink logits beside them.

    Raises:
        ValueError: `push_to_hub`.
    """
    if push_to_hub:
        raise ValueError("save the student to a folder first, then upload the folder to the hub")
    state = kwargs.pop("state_dict", None) or student.state_dict()
    logits = {key: state.pop(key).contiguous() for key in list(state) if key.endswith(f".{SINK_LOGITS}")}
    type(student).save_pretrained(student, save_directory, state_dict=state, **kwargs)
    folder = Path(save_directory)
    if logits:
        save_file(logits, folder / _SINK_FILE, metadata={"format": "pt"})
    impl = student.config._attn_implementation.removeprefix("swa_")
    teacher = json.loads((folder / "config.json").read_text())
    config = SWAConfig(decoder(student)._swa.spec.to_dict(), impl, teacher, architectures=["SWAForCausalLM"])
    config.save_pretrained(folder)
