"""Checkpoints that a method's authors published, in a student: what do their tensors correspond to here?

A layout is data: renamings, tensors that come apart, tensors that nothing reads. Names and shapes were read
off the released modules' sources, named at each layout; no published weights were at hand to try them on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from swalib.convert import convert
from swalib.saved import check_fits, copy_weights, read_safetensors
from swalib.spec import MixerConfig, PerLayer

# A wrapper (peft, a trainer) puts its own names before those of the model.
_UNWRAPPED = (
    (r"^.*\bmodel\.(?=(layers|embed_tokens|norm)\.)", "model."),
    (r"^.*\b(?=lm_head\.)", ""),
    (r"\.base_layer\.", "."),
)
_LOW_RANK = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Layout:
    """How a method's published checkpoints name what a student has.

    Args:
        names: (pattern, replacement), put to every name in this order.
        split: end of a name after that -> ends of the names whose rows, in this order, it stacks.
        flat: ends of the names of what has one axis here, and others of size 1 beside it there.
        unused: pattern of names that the released function never reads; let go where the student has none.
        required: pattern of what must be there, where the rest may be left to the teacher.
        lora_alpha: alpha of low-rank updates, of which a checkpoint only says the rank.
    """

    names: tuple[tuple[str, str], ...] = _UNWRAPPED
    split: Mapping[str, tuple[str, ...]] | None = None
    flat: tuple[str, ...] = ()
    unused: str = r"\.rotary(_emb)?\.inv_freq$"
    required: str = ""
    lora_alpha: float = 16.0


LAYOUTS = {
    # HazyResearch/lolcats: src/model/{linear_attention/,feature_map.py,peft.py}; adapters alone, in two files
    "lolcats": Layout(
        names=(
            *_UNWRAPPED,
            (r"\.feature_map_([qk])\.mlp\.layer$", r".phi_\1.weight"),
            (r"\.window_factors$", ".window_logit"),
        ),
        flat=("window_logit",),
        required=r"\.(phi_[qk]\.weight|window_logit)$",
    ),
    # OpenSparseLLMs/Linearization: liger/models/liger_gla/modeling_liger_gla.py; a Llama's names
    "liger": Layout(lora_alpha=8.0),
    # RADLADS (recursal/RADLADS-paper): models/qwen2.py, TMix_qwen2rwkv6; a Qwen2's names beside its own
    "qrwkv6": Layout(),
    # RADLADS: rwkv7qwen2/modeling_rwkv7qwen2.py, RWKV7Attention; holds parameters that its forward leaves out
    "qrwkv7": Layout(
        unused=r"\.rotary(_emb)?\.inv_freq$|\.layers\.0\.self_attn\.v[012]$|\.self_attn\.(r_k|k_k|k_a)$"
    ),
    # cartesia-ai/edge: cartesia-pytorch/cartesia_pytorch/Llamba/{llamba.py,mixers/discrete_mamba2.py}
    "llamba": Layout(
        names=(
            (r"^backbone\.embedding\.", "model.embed_tokens."),
            (r"^backbone\.final_layernorm\.", "model.norm."),
            (r"^backbone\.layers\.", "model.layers."),
            (r"\.mixer\.out_proj\.", ".mixer.o_proj."),
            (r"\.mixer\.", ".self_attn."),
        ),
        split={
            "self_attn.in_proj.weight": tuple(f"self_attn.{name}_proj.weight" for name in "vkqza"),
        },
    ),
}


def load_published(
    teacher: PreTrainedModel,
    method: MixerConfig | PerLayer,
    *sources: Mapping[str, Tensor] | str | Path,
    impl: str = "sdpa",
    lora_alpha: float | None = None,
) -> PreTrainedModel:
    """A student of `teacher` with the weights that a method's authors published.

    | method | published by | config of their checkpoints |
    |---|---|---|
    | lolcats | HazyResearch/lolcats | `LoLCATsConfig(terraced=True)`: width 64 at head size 128 |
    | liger | OpenSparseLLMs/Linearization, linear-moe-hub | `LigerConfig()`; window=65 as older code ran it |
    | qrwkv6, qrwkv7 | RADLADS: recursal, featherless-ai | `QRWKV6Config()`, `QRWKV7Config()` |
    | llamba | cartesia-ai/edge | `LlambaConfig()` |

    Tried on state dicts of the shapes in the released sources, never on published weights. Not read in any
    public source: RADLADS' port of QRWKV6 to transformers (the names here are its training code's, which the
    port of QRWKV7 keeps), and what the files on the hub hold, whose names may differ by a prefix. Not known
    here, and so refused as unexpected: the low-rank gate with tanh (`gate_w1`, `gate_w2`) of an earlier
    QRWKV6, Llamba's quantised MLX files, LoLCATs with several feature maps to a head.

    LoLCATs publishes two files, feature maps with window factors, and low-rank updates. Both are pickles
    (`model.pt`; in some the tensors lie under "model_state_dict"): save their tensors as safetensors, and
    pass both. Without the second you get the student of stage 1. Updates are merged: W + alpha/r·B A.

    Args:
        teacher: the model that was linearised. It gives the shapes, and where the method's checkpoints are
            adapters (lolcats) whatever `sources` leave out. It stays as it is; the student shares nothing.
        method: the config that the checkpoint was trained with.
        sources: state dicts, safetensors files, or folders and hub ids that hold some; of two tensors of the
            same name the later source's counts.
        impl: as for `convert`.
        lora_alpha: of low-rank updates, 16 for lolcats and 8 for liger unless given (their papers').

    Raises:
        ValueError: a method without a known layout, a pickle, tensors that are missing, unexpected or of
            other shapes (the first few are named), or two tensors for what is one in the teacher (tied).
    """
    layout = _layout(method)
    given: dict[str, Tensor] = {}
    for source in sources:
        given |= _renamed(_read(source), layout)
    student = convert(teacher, method, impl, share=False)
    own = student.state_dict()
    given = {key: x for key, x in given.items() if key in own or not re.search(layout.unused, key)}
    state = _merged(_fitted(given, own, layout), own, layout.lora_alpha if lora_alpha is None else lora_alpha)
    check_fits(own, state, [key for key in own if re.search(layout.required, key)])
    _check_tied(own, state)
    copy_weights(own, state)
    return student


def _layout(method: MixerConfig | PerLayer) -> Layout:
    layers = getattr(method, "layers", (method,))
    names = sorted({layer.method for layer in layers if isinstance(layer, MixerConfig)})
    if len(names) != 1 or names[0] not in LAYOUTS:
        raise ValueError(
            f"the layout of published checkpoints is known here for one of {', '.join(LAYOUTS)}, got "
            f"{', '.join(names) or method}: train the student, or load one that save_pretrained saved"
        )
    return LAYOUTS[names[0]]


def _read(source: Mapping[str, Tensor] | str | Path) -> Mapping[str, Tensor]:
    if isinstance(source, Mapping):
        return source
    if Path(source).suffix in _PICKLES:
        raise ValueError(
            f"{source} is a pickle, which can run code and is never opened: save its tensors with "
            "safetensors.torch.save_file first"
        )
    return load_file(source) if Path(source).suffix == ".safetensors" else read_safetensors(source)


def _renamed(theirs: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    ours, origin = {}, {}
    for key, tensor in theirs.items():
        name = key
        for pattern, replacement in layout.names:
            name = re.sub(pattern, replacement, name)
        if name in ours:
            raise ValueError(f"this checkpoint has {name} twice, as {origin[name]} and as {key}")
        ours[name], origin[name] = tensor, key
    return ours


def _fitted(given: dict[str, Tensor], own: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Stacked rows apart, axes of size 1 gone. What does not fit stays as it is, to be complained of."""
    fitted = {}
    for key, tensor in given.items():
        stem, parts = key, ()
        for stacked, names in (layout.split or {}).items():
            if key.endswith(f".{stacked}"):
                stem, parts = key.removesuffix(stacked), names
        rows = [own[stem + part].shape[0] for part in parts if stem + part in own]
        if parts and len(rows) == len(parts) and sum(rows) == tensor.shape[0]:
            fitted |= {stem + part: piece for part, piece in zip(parts, tensor.split(rows), strict=True)}
        elif key.endswith(layout.flat) and layout.flat and tensor.numel() == max(tensor.shape, default=1):
            fitted[key] = tensor.flatten()
        else:
            fitted[key] = tensor
    return fitted


def _merged(given: dict[str, Tensor], own: dict[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Low-rank updates added to the weights they are for: the checkpoint's, else the teacher's."""
    state = {key: tensor for key, tensor in given.items() if not _LOW_RANK.fullmatch(key)}
    updates: dict[str, dict[str, Tensor]] = {}
    for key in given.keys() - state.keys():
        target, side = _LOW_RANK.fullmatch(key).groups()
        updates.setdefault(f"{target}.weight", {})[side] = given[key]
    for target, sides in updates.items():
        base = state.get(target, own.get(target))
        fits = base is not None and sides.keys() == {"A", "B"} and sides["B"].shape[1] == len(sides["A"])
        if not fits or (len(sides["B"]), sides["A"].shape[1]) != base.shape:
            raise ValueError(f"this checkpoint's low-rank update of {target} is half there or fits no weight")
        change = sides["B"].double() @ sides["A"].double() * (alpha / len(sides["A"]))
        state[target] = (base.double() + change.to(base.device)).to(base.dtype)
    return state


def _check_tied(own: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Raise ValueError if one parameter of the student would have to be two."""
    first: dict[int, str] = {}
    for key in state:
        other = first.setdefault(own[key].data_ptr(), key) if own[key].numel() else key
        if other != key and not torch.equal(state[other], state[key].to(state[other].dtype)):
            raise ValueError(
                f"{other} and {key} are one tensor in this teacher and two in the checkpoint: load the "
                "teacher with tie_word_embeddings=False"
            )
