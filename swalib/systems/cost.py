"""What does a token cost on paper? State, bytes moved and FLOPs of a decoder, for any kind of attention.

All follows from two descriptions: `Shape`, the decoder's sizes, and `Attention`, what a kind of attention
keeps and reads. FLOPs are those of matrix products, 2·m·n·k each, as torch's FlopCounterMode counts them.
Bytes moved are the least that a step can move: each weight, visible key and value, and state once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from swalib.linear import mixer_class
from swalib.linear.mixer import Tokens
from swalib.linear.projections import Sizes
from swalib.spec import MixerConfig

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
POSITION_BYTES = 8  # of a key in a hybrid's window: it is told from pads and from sinks by its position


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number.

    Raises:
        ValueError: a dtype of another name.
    """
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {dtype!r}")
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-like decoder: RMSNorm, attention with bias-free projections, a gated MLP of three
    matrices, untied embeddings. The defaults are the paper's 4-layer model, D = 1024, 16 heads of 64; it does
    not print the MLP's width, 2816 is Llama's 8/3·D, and the small vocabulary is ours.

    Raises:
        ValueError: a size below 1, or heads that are no multiple of kv_heads.
    """

    layers: int = 4
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 16
    head_dim: int = 64
    intermediate: int = 2816
    vocab: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1, got {getattr(self, field.name)}")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads must be a multiple of kv_heads, got {self.heads} heads and {self.kv_heads} kv heads"
            )

    @classmethod
    def wide(cls, hidden: int, heads: int = 16, layers: int = 4) -> Shape:
        """A model of another width D = `hidden`: heads of D / heads, its MLP in the same proportion.

        Raises:
            ValueError: a width that the heads do not divide into even sizes.
        """
        if hidden % (2 * heads):
            raise ValueError(f"{heads} heads can't share {hidden} dimensions in even parts")
        return cls(layers, hidden, heads, heads, hidden // heads, 11 * hidden // 4)

    @property
    def matrices(self) -> int:
        """Weights that multiply every token: projections and MLP of all layers."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def norms(self) -> int:
        """Weights of all norms."""
        return (2 * self.layers + 1) * self.hidden


@dataclass(frozen=True)
class Attention:
    """What one kind of attention keeps and computes in each layer.

    Args:
        window: keys that its softmax sees, sinks and the own one counted; None: all, 0: it has no softmax.
        held: keys it keeps between tokens beyond those (-1: the own one is not kept, as in the hybrids).
        features: F of a state [heads, F, head_dim], 0 for none; it holds what the softmax does not see.
        normaliser: whether a sum of the keys' features [heads, F] goes with it.
        map_columns: columns of the feature map's W [heads, head_dim, columns]; q and k have one each.
        mixed: whether each head also has a learned share of its softmax part (LoLCATs).
        positions: whether the position of each key that is kept is kept too.

    Raises:
        ValueError: nothing is seen at all, or a number is negative.
    """

    window: int | None
    held: int = 0
    features: int = 0
    normaliser: bool = False
    map_columns: int = 0
    mixed: bool = False
    positions: bool = False

    def __post_init__(self) -> None:
        if (self.window is not None and self.window < 0) or min(self.features, self.map_columns) < 0:
            raise ValueError(f"window, features and map_columns can't be negative: {self}")
        if self.window == 0 and not self.features:
            raise ValueError("an attention sees a window, has features, or both; got neither")

    def keys(self, context_tokens: int) -> int:
        """Keys that the softmax of the last of `context_tokens` tokens sees, its own counted."""
        return context_tokens if self.window is None else min(context_tokens, self.window)

    def slots(self, context_tokens: int) -> int:
        """Keys kept after `context_tokens` tokens."""
        if self.window is None:
            return context_tokens
        return min(context_tokens, max(self.window + self.held, 0))


class Traffic(NamedTuple):
    """Bytes of one step: weights read, keys, values and states read, and those written."""

    weights: int
    read: int
    written: int

    @property
    def total(self) -> int:
        return sum(self)


class Flops(NamedTuple):
    """Of matrix products: the decoder's own, feature maps, the softmax part, the linear part."""

    decoder: int
    maps: int
    softmax: int
    linear: int

    @property
    def total(self) -> int:
        return sum(self)


def weight_bytes(attention: Attention, shape: Shape, dtype: str) -> int:
    """Of all parameters, embeddings included."""
    count = shape.matrices + shape.norms + 2 * shape.vocab * shape.hidden + _own_weights(attention, shape)
    return count * dtype_bytes(dtype)


def _own_weights(attention: Attention, shape: Shape) -> int:
    maps = 2 * shape.head_dim * attention.map_columns + attention.mixed
    return shape.layers * shape.heads * maps


def state_bytes(
    attention: Attention,
    shape: Shape,
    context_tokens: int,
    batch: int = 1,
    dtype: str = "float32",
    state_dtype: str = "float32",
) -> int:
    """Bytes kept after `context_tokens` tokens: keys and values in `dtype`, S and z in `state_dtype`.

    A cache that allocates its slots at once holds the bytes of a context of w from the first token on:
    `state_bytes(attention, shape, attention.window)`.
    """
    slots = attention.slots(context_tokens)
    keys_and_values = 2 * shape.kv_heads * slots * shape.head_dim * dtype_bytes(dtype)
    positions = POSITION_BYTES * slots * attention.positions
    return shape.layers * batch * (keys_and_values + positions + _state(attention, shape, state_dtype))


def _state(attention: Attention, shape: Shape, state_dtype: str) -> int:
    columns = shape.head_dim + attention.normaliser
    return shape.heads * attention.features * columns * dtype_bytes(state_dtype)


def equal_window(
    shape: Shape,
    features: int,
    dtype: str = "float16",
    state_dtype: str = "float16",
    states: int | None = None,
) -> float:
    """w*, the window whose keys and values take the bytes of the states S (its normaliser left out):
    states·F·d·b_state / (2·kv_heads·d·b_kv), with one state for each query head unless `states` says else."""
    states = shape.heads if states is None else states
    return states * features * dtype_bytes(state_dtype) / (2 * shape.kv_heads * dtype_bytes(dtype))


def decode_traffic(
    attention: Attention,
    shape: Shape,
    context_tokens: int,
    batch: int = 1,
    dtype: str = "float32",
    state_dtype: str = "float32",
) -> Traffic:
    """Bytes that decoding one token in each of `batch` rows must move; `context_tokens` counts the new token.

    Weights: every matrix once, and of the embeddings one row each. Read: each visible key and value and the
    states. Written: one key and value, and the states. Activations stay in a cache and are not counted.
    """
    token = 2 * shape.kv_heads * shape.head_dim * dtype_bytes(dtype)
    unused = (shape.vocab - min(batch, shape.vocab)) * shape.hidden * dtype_bytes(dtype)
    weights = weight_bytes(attention, shape, dtype) - unused
    rows, state = shape.layers * batch, _state(attention, shape, state_dtype)
    keys = attention.keys(context_tokens)
    return Traffic(weights, rows * (keys * token + state), rows * ((keys > 0) * token + state))


def decode_flops(attention: Attention, shape: Shape, context_tokens: int, batch: int = 1) -> Flops:
    """FLOPs of decoding one token in each of `batch` rows; `context_tokens` counts the new token.

    A hybrid's key is written into its state when it leaves the window, and until then its state is not read.
    """
    decoder = 2 * batch * (shape.matrices + shape.vocab * shape.hidden)
    heads, keys = shape.layers * batch * shape.heads, attention.keys(context_tokens)
    linear = heads if attention.features and context_tokens > keys else 0
    state = attention.features * (shape.head_dim + attention.normaliser)
    maps = 2 * 2 * shape.head_dim * attention.map_columns
    return Flops(decoder, linear * maps, heads * 4 * keys * shape.head_dim, linear * 4 * state)


def prefill_flops(attention: Attention, shape: Shape, tokens: int, batch: int = 1) -> Flops:
    """FLOPs of reading `tokens` tokens, with logits of the last one alone: the sum of their decode steps, but
    for the head. Only what the mask shows is counted, so full attention costs half of its square."""
    last = decode_flops(attention, shape, tokens, batch)
    decoder = 2 * batch * (tokens * shape.matrices + shape.vocab * shape.hidden)
    window = tokens if attention.window is None else min(attention.window, tokens)
    pairs = window * (window + 1) // 2 + (tokens - window) * window
    heads, beyond = shape.layers * batch * shape.heads, tokens - window
    return Flops(decoder, beyond * last.maps, heads * 4 * pairs * shape.head_dim, beyond * last.linear)


def floor_seconds(traffic: int, flops: int, bytes_per_second: float, flops_per_second: float) -> float:
    """The roofline: the least time in which a machine moves `traffic` bytes and computes `flops`."""
    return max(traffic / bytes_per_second, flops / flops_per_second)


def mixer_state_bytes(
    config: MixerConfig, shape: Shape, batch: int = 1, dtype: str = "float32"
) -> dict[str, int]:
    """Bytes of each tensor of a mixer's state, by name, in all layers; nothing is allocated or computed.

    Raises:
        ValueError: sizes that the method can't take.
    """
    sizes = Sizes(shape.hidden, shape.heads, shape.kv_heads, shape.head_dim)
    with FakeTensorMode(), torch.no_grad():
        mixer = _cast(mixer_class(config.method)(config, sizes), getattr(torch, dtype))
        x = torch.empty(batch, 1, shape.hidden, dtype=getattr(torch, dtype))
        _, state = mixer.mix(x, Tokens(torch.zeros(batch, 1, dtype=torch.long), shared={}))
    return {name: shape.layers * x.numel() * x.element_size() for name, x in state.items()}


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """As `module.to(dtype)`, which can't be had of tensors that are only described."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(parameter.to(dtype)))
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, buffer.to(dtype) if buffer.is_floating_point() else buffer)
    return module
