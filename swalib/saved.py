"""A student on disk: its teacher's weights, and a config that says under which spec they run.

The config's model type is "swa", so that nothing loads the folder as its teacher, under full attention: where
swalib has been imported, `AutoModelForCausalLM.from_pretrained` gives the student back; elsewhere it raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from swalib.families import decoder
from swalib.spec import MixerConfig, Spec, from_dict

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
    """What `AutoModelForCausalLM` makes of an `SWAConfig`: the student in the same folder."""

    config_class = SWAConfig

    @staticmethod
    def from_pretrained(name: str | Path, *args: Any, config: SWAConfig, **kwargs: Any) -> PreTrainedModel:
        """As `swalib.from_pretrained`."""
        inner, spec = AutoConfig.for_model(**config.teacher), from_dict(config.spec)
        if _has_mixers(spec):
            return _load_converted(name, inner, spec, config.impl, **kwargs)
        from swalib.hf import under

        teacher = AutoModelForCausalLM.from_pretrained(name, *args, config=inner, **kwargs)
        student = under(teacher, spec, config.impl)
        logits = {key: p for key, p in student.named_parameters() if key.endswith(f".{SINK_LOGITS}")}
        if logits:
            saved = load_file(cached_file(name, _SINK_FILE))
            with torch.no_grad():
                for key, parameter in logits.items():
                    parameter.copy_(saved[key])
        return student


def _has_mixers(spec: Spec | MixerConfig) -> bool:
    return any(isinstance(layer, MixerConfig) for layer in getattr(spec, "layers", (spec,)))


def _load_converted(name: str | Path, inner, spec, impl: str, dtype=None, device_map=None) -> PreTrainedModel:
    """A student with linear mixers: the skeleton first, then every weight from safetensors."""
    from swalib.convert import convert

    dtype = inner.dtype or torch.float32 if dtype in (None, "auto") else dtype
    student = convert(AutoModelForCausalLM.from_config(inner, dtype=dtype), spec, impl)
    load_weights(student, read_safetensors(name))
    return student.eval() if device_map is None else student.eval().to(device_map)


def read_safetensors(name: str | Path) -> dict[str, Tensor]:
    """All tensors of a folder's or hub repository's safetensors, one file or many.

    Raises:
        ValueError: there are none; pickles, which can run code, are never opened.
    """
    index = cached_file(name, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False)
    if index:
        files = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    else:
        files = [SAFE_WEIGHTS_NAME]
    paths = [cached_file(name, file, _raise_exceptions_for_missing_entries=False) for file in files]
    if None in paths:
        raise ValueError(
            f"{name} lacks {files[paths.index(None)]}: weights are read from safetensors alone, and a pickle "
            "(.bin, .pt) is never opened; convert it first"
        )
    return {key: tensor for path in paths for key, tensor in load_file(path).items()}


def load_weights(student: PreTrainedModel, state: dict[str, Tensor]) -> None:
    """Copy a state dict into a student, all of it.

    Raises:
        ValueError: keys are missing or unexpected, or shapes differ; the first few are named.
    """
    own = student.state_dict()
    check_fits(own, state, own)
    copy_weights(own, state)


def check_fits(own: dict[str, Tensor], state: dict[str, Tensor], required: Iterable[str]) -> None:
    """
    Args:
        own: a student's state dict; state: what is to be copied into it.
        required: names that must be in `state`, under this name or another of the same parameter.

    Raises:
        ValueError: some are not, or `state` has others, or of other shapes; the first few are named.
    """
    there = {own[key].data_ptr() for key in state if key in own}
    missing = [key for key in required if key not in state and own[key].data_ptr() not in there]
    unexpected = [key for key in state if key not in own]
    shapes = [
        f"{key} ({list(state[key].shape)} for {list(own[key].shape)})"
        for key in state
        if key in own and state[key].shape != own[key].shape
    ]
    wrong = (("lacks", missing), ("has unexpected", unexpected), ("has other shapes at", shapes))
    found = [f"{kind} {_first_few(keys)}" for kind, keys in wrong if keys]
    if found:
        raise ValueError(f"this checkpoint {'; it '.join(found)}")


def _first_few(keys: list[str], few: int = 3) -> str:
    return ", ".join(keys[:few]) + (f" and {len(keys) - few} more" if len(keys) > few else "")


@torch.no_grad()
def copy_weights(own: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Copy tensors into those of the same name."""
    for key, tensor in state.items():
        own[key].copy_(tensor)


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


def _each_once(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the second name of what has two: one map for q and k, a tied output matrix."""
    first: dict[tuple, str] = {}
    for key, tensor in state.items():
        first.setdefault((tensor.data_ptr() or key, tensor.shape), key)
    return {key: state[key] for key in first.values()}


def save_pretrained(
    student: PreTrainedModel, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any
) -> None:
    """A student's own `save_pretrained`: weights as its teacher's, learned sink logits beside them.

    Raises:
        ValueError: `push_to_hub`.
    """
    if push_to_hub:
        raise ValueError("save the student to a folder first, then upload the folder to the hub")
    state = _each_once(kwargs.pop("state_dict", None) or student.state_dict())
    logits = {key: state.pop(key).contiguous() for key in list(state) if key.endswith(f".{SINK_LOGITS}")}
    type(student).save_pretrained(student, save_directory, state_dict=state, **kwargs)
    folder = Path(save_directory)
    if logits:
        save_file(logits, folder / _SINK_FILE, metadata={"format": "pt"})
    impl = student.config._attn_implementation.removeprefix("swa_")
    teacher = json.loads((folder / "config.json").read_text())
    config = SWAConfig(decoder(student)._swa.spec.to_dict(), impl, teacher, architectures=["SWAForCausalLM"])
    config.save_pretrained(folder)
