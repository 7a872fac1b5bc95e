"""Costs on paper against torch's FLOP counter, allocated tensors, and what a step reads and writes."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from swalib import SWA, masks
from swalib.linear import METHODS, config_class
from swalib.spec import Full
from swalib.systems import cost, toy
from swalib.systems.cost import Attention, Shape
from swalib.systems.kinds import Kind

SHAPE = Shape(layers=2, hidden=48, heads=6, kv_heads=3, head_dim=10, intermediate=52, vocab=97)
MHA = replace(SHAPE, kv_heads=6)
FULL, SWA_7, LINEAR, LOLCATS = (
    Kind("full"),
    Kind("swa", 7, 2),
    Kind("hedgehog", features=6),
    Kind("lolcats", 5, features=8),
)
KINDS = [FULL, SWA_7, LINEAR, LOLCATS]


def made(kind: Kind, shape: Shape, room: int = 20, dtype: str = "float32", impl: str = "sdpa"):
    return toy.student(toy.model(shape, dtype), kind, room, impl)


@torch.inference_mode()
def counted(student, cache, batch: int, tokens: int = 1) -> dict[str, int]:
    with FlopCounterMode(display=False) as counter:
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        student(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
    return {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}


def once_more(kind: Kind, shape: Shape) -> int:
    """FLOPs a head that the implementations spend beyond the recurrence: a token's own term is added as q·k
    times v to what the state before it gives; LoLCATs maps the key that leaves its window twice, and sums its
    window's weights as one more column of the values."""
    if not kind.features:
        return 0
    own = 2 * kind.features + 2 * (shape.head_dim + 1)
    return own + (kind.method == "lolcats") * (shape.head_dim * kind.features + 2 * (kind.window or 0))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("context", [6, 20])
@pytest.mark.parametrize("shape", [SHAPE, MHA], ids=["gqa", "mha"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.method)
def test_a_decode_step_s_flops_are_torch_s_count(kind, shape, context, batch):
    student = made(kind, shape, context, impl="reference")
    cache = toy.filled_cache(student, context - 1, batch)
    found, flops = counted(student, cache, batch), cost.decode_flops(kind.attention, shape, context, batch)
    assert found["aten.mm"] == flops.decoder
    beyond = shape.layers * batch * shape.heads * once_more(kind, shape)
    # What is written into a state is an outer product; as one of elements it is not in torch's count.
    assert flops.total + beyond - sum(found.values()) in (0, flops.linear // 2)
    assert flops.total - flops.decoder == flops.maps + flops.softmax + flops.linear > 0


def test_before_a_hybrid_s_window_is_full_it_is_its_window():
    assert cost.decode_flops(LOLCATS.attention, SHAPE, 4) == cost.decode_flops(Attention(5), SHAPE, 4)
    assert cost.decode_flops(LOLCATS.attention, SHAPE, 6).linear > 0


@pytest.mark.parametrize("tokens", [1, 4, 5, 23])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.method)
def test_a_prompt_costs_the_sum_of_its_tokens(kind, tokens):
    steps = [cost.decode_flops(kind.attention, SHAPE, n, batch=2) for n in range(1, tokens + 1)]
    heads_left_out = 2 * 2 * (tokens - 1) * SHAPE.vocab * SHAPE.hidden
    found = cost.prefill_flops(kind.attention, SHAPE, tokens, batch=2)
    assert found.total == sum(step.total for step in steps) - heads_left_out
    assert found.softmax == sum(step.softmax for step in steps)


@pytest.mark.parametrize("spec", [SWA(7, 2), SWA(1, 0), Full()], ids=str)
def test_a_prompt_s_scores_are_the_mask_s_cells(spec):
    attention = Attention(getattr(spec, "window", None))
    pairs = int(masks.mask(23, spec).sum())
    assert cost.prefill_flops(attention, SHAPE, 23).softmax == 2 * 6 * 4 * 10 * pairs


def test_a_prompt_s_decoder_is_torch_s_count_and_half_of_full_attention_s_square_is_seen():
    student = toy.model(SHAPE)
    student.set_attn_implementation("eager")
    found, flops = counted(student, None, 3, tokens=23), cost.prefill_flops(Attention(None), SHAPE, 23, 3)
    student.set_attn_implementation("sdpa")
    diagonal = 2 * 3 * 6 * 4 * 10 * 23  # all cells are twice the visible ones less these
    assert sum(found.values()) == flops.decoder + 2 * flops.softmax - diagonal


# ---- Memory.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [SHAPE, MHA], ids=["gqa", "mha"])
@pytest.mark.parametrize("context", [3, 7, 20])
@pytest.mark.parametrize("kind", [*KINDS, Kind("full_growing")], ids=lambda kind: kind.method)
def test_state_bytes_are_those_allocated(kind, context, shape, dtype):
    cache = toy.filled_cache(made(kind, shape, context, dtype), context, batch=3)
    longest = max(context, kind.window or 0)  # slots are allocated at once
    assert cache.allocated_bytes == cost.state_bytes(kind.attention, shape, longest, 3, dtype)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.method)
def test_weight_bytes_are_the_parameters(kind):
    student = made(kind, SHAPE, dtype="float16")
    held = sum(parameter.nbytes for parameter in student.parameters())
    assert cost.weight_bytes(kind.attention, SHAPE, "float16") == held


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_every_mixer_s_state_is_known_before_it_is_made(method, dtype):
    on_paper = cost.mixer_state_bytes(config_class(method)(), MHA, 3, dtype)
    cache = toy.filled_cache(made(Kind(method), MHA, dtype=dtype), 3, 3) if method not in EXPLICIT else None
    if cache is None:
        kind = EXPLICIT[method]
        described = cost.state_bytes(kind.attention, MHA, 1000, 3, dtype)
        assert sum(on_paper.values()) == described
    else:
        assert sum(on_paper.values()) == cache.allocated_bytes
        names = {name for layer in cache.layers for name in layer.state}
        assert names == set(on_paper)


# As their papers' defaults have them: F = d, LoLCATs with a window of 64.
EXPLICIT = {"hedgehog": Kind("hedgehog", features=10), "lolcats": Kind("lolcats", 64, features=10)}


# ---- Bytes moved.


class Seen(TorchDispatchMode):
    """Bytes of the watched tensors that operations read and write; of each storage, the largest part that
    any one operation touches. Views touch nothing, an embedding only the rows it looks up."""

    def __init__(self, watched) -> None:
        super().__init__()
        self.watched = {x.untyped_storage().data_ptr() for x in watched}
        self.read, self.written = {}, {}

    def note(self, where: dict, x: torch.Tensor, count: int) -> None:
        place = x.untyped_storage().data_ptr()
        if place in self.watched:
            where[place] = max(where.get(place, 0), count * x.element_size())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        written = {
            argument.name
            for argument in function._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        aliases = function._schema.returns and function._schema.returns[0].alias_info is not None
        if aliases and not written:
            return result  # a view
        for argument, value in zip(function._schema.arguments, args, strict=False):
            for x in value if isinstance(value, list | tuple) else [value]:
                if isinstance(x, torch.Tensor):
                    looked_up = function is torch.ops.aten.embedding.default and argument.name == "weight"
                    count = args[1].unique().numel() * x.shape[1] if looked_up else x.numel()
                    self.note(self.written if argument.name in written else self.read, x, count)
        return result


@pytest.mark.parametrize("shape", [SHAPE, MHA], ids=["gqa", "mha"])
@pytest.mark.parametrize(("kind", "context"), [(FULL, 20), (SWA_7, 5), (SWA_7, 20), (LINEAR, 20)], ids=str)
@torch.inference_mode()
def test_a_step_reads_each_weight_key_and_state_that_it_must(kind, context, shape):
    student = made(kind, shape, context)
    cache = toy.filled_cache(student, context - 1, 3)
    held = [x for layer in cache.layers for x in held_by(layer)]
    weights = list(student.parameters())
    with Seen([*held, *weights]) as seen:
        student(input_ids=torch.tensor([[1], [2], [3]]), cache=cache, use_cache=True)
    places = {x.untyped_storage().data_ptr() for x in weights}
    traffic = cost.decode_traffic(kind.attention, shape, context, batch=3)
    assert sum(count for place, count in seen.read.items() if place in places) == traffic.weights
    assert sum(count for place, count in seen.read.items() if place not in places) == traffic.read
    new = {x.untyped_storage().data_ptr(): x.nbytes for layer in cache.layers for x in held_by(layer)}
    made_anew = sum(count for place, count in new.items() if place not in seen.watched)
    assert sum(seen.written.values()) + made_anew == traffic.written


def held_by(layer) -> list[torch.Tensor]:
    state = getattr(layer, "state", None)
    return list(state.values()) if state is not None else [layer.keys, layer.values]


def test_a_hybrid_moves_its_window_and_its_state():
    traffic = cost.decode_traffic(LOLCATS.attention, SHAPE, 20, batch=3, dtype="float16")
    token, state = 2 * 3 * 10 * 2, 6 * 8 * 11 * 4
    assert (traffic.read, traffic.written) == (2 * 3 * (5 * token + state), 2 * 3 * (token + state))
    assert traffic.total == sum(traffic)


# ---- What follows.


def test_equal_windows_of_the_paper_s_definitions():
    toy_shape, llama = Shape(), Shape(32, 4096, 32, 8, 128, 14336, 128256)
    assert cost.equal_window(toy_shape, 64) == 32
    assert cost.equal_window(toy_shape, 128, state_dtype="float32") == 128
    assert cost.equal_window(llama, 128) == 256
    assert cost.equal_window(llama, 128, state_dtype="float32") == 512
    assert cost.equal_window(llama, 256, state_dtype="float32") == 1024
    assert cost.equal_window(llama, 128, states=8) == 64


def test_at_the_equal_window_the_bytes_are_equal():
    w = int(cost.equal_window(SHAPE, 12, "bfloat16", "float32"))
    linear = replace(Attention(0, features=12), normaliser=False)
    state = cost.state_bytes(linear, SHAPE, 1000, 5, "bfloat16", "float32")
    assert state == cost.state_bytes(Attention(w), SHAPE, 1000, 5, "bfloat16")


def test_the_roofline_is_the_slower_of_bytes_and_flops():
    assert cost.floor_seconds(100, 10, 20.0, 5.0) == 5
    assert cost.floor_seconds(100, 50, 20.0, 5.0) == 10


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Shape(layers=0), "layers must be at least 1, got 0"),
        (lambda: Shape(heads=16, kv_heads=3), "heads must be a multiple of kv_heads, got 16 heads and 3"),
        (lambda: Attention(0), "sees a window, has features, or both"),
        (lambda: Attention(-1), "can't be negative"),
        (lambda: cost.weight_bytes(Attention(4), SHAPE, "int4"), "dtype must be one of float64"),
        (lambda: Kind("swa", 64), "swa takes window, sinks; got window"),
        (lambda: Kind("full", 64), "full takes no settings; got window"),
        (lambda: Kind("retnet"), "no kind is called 'retnet': choose from full"),
        (lambda: Kind("hedgehog", features=3), "features come in pairs"),
        (lambda: Kind("swa", 4, 4), "sinks"),
    ],
)
def test_bad_sizes_are_refused_in_a_sentence(make, says):
    with pytest.raises(ValueError, match=says):
        make()
