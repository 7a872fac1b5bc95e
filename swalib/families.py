"""Which model families is SWA proven on, and where do they keep their layers, rotations and local windows?"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from torch import nn

from swalib.positions import HALVES, Rotation

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Family:
    """What differs between families, as far as attention is concerned.

    Args:
        decoder: path from the base model to the module that a causal LM runs, "" for the base model itself.
        layers: path from there to its decoder layers.
        attention: path from a layer to its self-attention.
        rotation: how keys and queries are rotated, or None where positions are learned embeddings.
        finite: whether positions come from a table of `max_position_embeddings` rows.
    """

    decoder: str = ""
    layers: str = "layers"
    attention: str = "self_attn"
    rotation: Rotation | None = HALVES
    finite: bool = False


_LIKE_LLAMA = (
    "gemma",
    "gemma2",
    "gemma3_text",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "stablelm",
)

FAMILIES = dict.fromkeys(_LIKE_LLAMA, Family()) | {
    "gpt2": Family(layers="h", attention="attn", rotation=None, finite=True),
    "gpt_neox": Family(attention="attention"),
    "gpt_oss": Family(rotation=Rotation(duplicated=False)),
    "gptj": Family(
        "", "h", "attn", Rotation(duplicated=False, interleaved=True, sin_first=True), finite=True
    ),
    "opt": Family("decoder", rotation=None, finite=True),
}


def family(model: PreTrainedModel) -> Family:
    """The family of a supported model."""
    return FAMILIES[model.config.model_type]


def decoder(model: PreTrainedModel) -> nn.Module:
    """The module that embeds tokens, makes the mask and runs the decoder layers."""
    path = family(model).decoder
    return attrgetter(path)(model.base_model) if path else model.base_model


def is_student(model: PreTrainedModel) -> bool:
    """Whether `swalib.under` or `swalib.convert` made this model."""
    return model.config.model_type in FAMILIES and hasattr(decoder(model), "_swa")


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The self-attention module of each decoder layer, first layer first."""
    kind = family(model)
    return [attrgetter(kind.attention)(layer) for layer in attrgetter(kind.layers)(decoder(model))]


def local_windows(config) -> list[int | None]:
    """Each layer's native window in tokens (its own key counted), None for a global layer."""
    window = getattr(config, "sliding_window", None) or None
    types = getattr(config, "layer_types", None)
    if types is None:  # Mistral, Mixtral, Phi-3: one window for all
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in types]


def longest_text(model: PreTrainedModel) -> int | None:
    """Tokens for which the model has positions, or None where any number will do."""
    return model.config.max_position_embeddings if family(model).finite else None


@dataclass(frozen=True)
class RopeSwitch:
    """Where a model's RoPE changes all its angles: beyond `tokens`, once ("longrope") or ever again."""

    tokens: int
    once: bool

    def crossed(self, start: int, total: int) -> bool:
        """Whether keys cached over the first `start` tokens are turned otherwise than a text of `total`."""
        return 0 < start < total and total > self.tokens and (start <= self.tokens or not self.once)


def rope_switch(model: PreTrainedModel) -> RopeSwitch | None:
    """The length at which this model's RoPE depends on the length of the text, or None."""
    parameters = getattr(model.config, "rope_parameters", None) or {}
    for rope in [parameters, *(p for p in parameters.values() if isinstance(p, dict))]:
        kind = rope.get("rope_type", "default")
        if kind == "longrope":
            return RopeSwitch(rope["original_max_position_embeddings"], once=True)
        if "dynamic" in kind:
            return RopeSwitch(model.config.max_position_embeddings, once=False)
    return None
