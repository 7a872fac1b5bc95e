"""The figures that the page computes: what Python hands over is small, complete and true to its sources."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from swalib.figures import method
from swalib.figures.show import Figure

FIGURES = [
    method.mask_explorer,
    method.reach,
    method.conventions,
    method.cache_slots,
    method.kv_calculator,
]


@pytest.mark.parametrize("build", FIGURES)
def test_a_figure_is_numbers_and_words_only(build: Callable[[], Figure]) -> None:
    figure = build()
    assert len(json.dumps(figure.data)) < 4000, "the page computes the picture; nothing drawn is shipped"
    assert figure.title.endswith("?")
    assert len(figure.alt) > 80
    assert len(figure.caption) > 80


def test_ids_are_unique() -> None:
    assert len({build().id for build in FIGURES}) == len(FIGURES)


@pytest.mark.parametrize("build", FIGURES)
def test_every_first_value_is_one_the_controls_offer(build: Callable[[], Figure]) -> None:
    data, first = build().data, build().data["initial"]
    for name, values in {
        "window": "windows",
        "sinks": "sinks",
        "length": "lengths",
        "batch": "batches",
    }.items():
        if name in first:
            assert first[name] in data[values]
    if "sinks" in first:
        assert first["sinks"] < first["window"]
        assert 0 in data["sinks"], "every window, w = 1 too, needs an s below it"


@pytest.mark.parametrize(("length", "largest"), [(2, 2), (5, 8), (64, 64), (65, 128)])
def test_windows_double_until_one_covers_the_text(length: int, largest: int) -> None:
    windows = method.mask_explorer(length).data["windows"]
    assert windows[0] == 1
    assert windows[-1] == largest
    assert all(after == 2 * before for before, after in pairwise(windows))


def test_too_short_a_text_or_no_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="length must be at least 2, got 1"):
        method.mask_explorer(1)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        method.reach(layers=0)
    with pytest.raises(ValueError, match="length must be at least 2, got 0"):
        method.reach(length=0)


def test_every_slot_pair_is_a_spec_and_the_text_outlives_the_ring() -> None:
    data = method.cache_slots().data
    assert max(data["sinks"]) < min(data["windows"])
    assert len(data["words"]) > 2 * max(data["windows"])
    assert data["initial"]["token"] < len(data["words"])


# Bytes a token and sequence in bf16, as the models' publishers' numbers give them.
@pytest.mark.parametrize(
    ("name", "layers", "per_token"),
    [
        ("SmolLM2-135M", 30, 23_040),
        ("Gemma3-270M", 18, 18_432),
        ("Qwen2.5-Coder-0.5B", 24, 12_288),
        ("Llama-3.1-8B", 32, 131_072),
        ("Llama-3.1-70B", 80, 327_680),
        ("Qwen2.5-72B", 80, 327_680),
    ],
)
def test_model_shapes(name: str, layers: int, per_token: int) -> None:
    model = method.KV_MODELS[name]
    assert sum(group["count"] for group in model["layers"]) == layers
    assert layers * 2 * model["kv_heads"] * model["head_dim"] * method.KV_BYTES["bf16"] == per_token
