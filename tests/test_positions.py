"""Rotation against complex numbers; in-cache positions against a simulation and StreamingLLM's own output."""

from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from swalib.attention import attend
from swalib.positions import Rope, key_position, query_position, rotate
from swalib.spec import SWA

VECTORS = Path(__file__).parent / "vectors" / "streaming_llm_cache_positions.npz"


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def llama_rope(head_dim=10, **rope):
    parameters = {"rope_type": "default", "rope_theta": 10000.0} | rope
    config = AutoConfig.for_model(
        "llama",
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=64,
        rope_parameters=parameters,
    )
    return LlamaRotaryEmbedding(config)


# ------------------------------------------------------------------------------------------------- rotation


def test_rotate_is_multiplication_by_a_complex_number():
    x, frequencies = noise(2, 3, 7, 10).double(), noise(5, seed=1).double()
    positions = [0, 1, 2, 5, 11, 3, 97]
    angles = torch.tensor(positions)[:, None] * frequencies
    turned = rotate(x, angles.cos()[None, None], angles.sin()[None, None])
    expected = torch.stack([oracle.turn(x[:, :, n], p, frequencies) for n, p in enumerate(positions)], 2)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-13)


def test_rotate_leaves_the_rest_of_a_partial_rope_alone():
    x, angles = noise(1, 2, 3, 11), noise(1, 1, 3, 3, seed=1)
    turned = rotate(x, angles.cos(), angles.sin())
    assert torch.equal(turned[..., 6:], x[..., 6:])
    assert torch.equal(turned[..., :6], rotate(x[..., :6], angles.cos(), angles.sin()))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    "rope", [{}, {"rope_theta": 1e6}, LLAMA3, YARN], ids=["plain", "1e6", "llama3", "yarn"]
)
def test_turning_what_the_model_left_at_zero_is_the_models_own_rotation(rope):
    embedding, x, at = llama_rope(**rope), noise(2, 3, 7, 10), torch.tensor([[0, 1, 2, 3, 5, 9, 40], [4] * 7])
    expected, _ = apply_rotary_pos_emb(x, x, *embedding(x, at))
    at_zero, _ = apply_rotary_pos_emb(x, x, *embedding(x, torch.zeros_like(at)))
    torch.testing.assert_close(Rope(embedding)(at_zero, at), expected, rtol=0, atol=2e-6)


def test_gemma3_has_a_rotation_per_kind_of_layer():
    rotary = oracle.model("gemma3").model.rotary_emb
    x, at = noise(1, 2, 5, 10), torch.tensor([3, 1, 4, 15, 92])
    turned = {kind: Rope(rotary, layer_type=kind)(x, at) for kind in ("full_attention", "sliding_attention")}
    for kind, got in turned.items():
        expected, _ = apply_rotary_pos_emb(x, x, *rotary(x, at[None], kind))
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
    assert not torch.allclose(turned["full_attention"], turned["sliding_attention"])


def test_only_distances_matter_so_negative_positions_are_fine():
    rope, q, k = Rope(llama_rope()), noise(1, 1, 1, 10), noise(1, 1, 1, 10, seed=1)
    at = lambda x, p: rope(x, torch.tensor([p]))  # noqa: E731
    torch.testing.assert_close((at(q, 3) * at(k, -4)).sum(), (at(q, 7) * at(k, 0)).sum())


def test_a_rotation_keeps_the_dtype_it_was_given():
    x = noise(1, 2, 3, 10).bfloat16()
    turned = Rope(llama_rope())(x, torch.arange(3))
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned[:, :, 0], x[:, :, 0])


# --------------------------------------------------------------------------------------- in-cache positions


@pytest.mark.parametrize("spec", [SWA(5, 2), SWA(7, 0), SWA(7, 6), SWA(1, 0), SWA(2, 1)], ids=str)
def test_in_cache_positions_are_places_in_a_list_that_evicts(spec):
    cached = []
    for i in range(19):
        cached.append(i)
        if len(cached) > spec.window:
            del cached[spec.sinks]
        query = torch.tensor(i)
        assert int(query_position(query, spec)) == len(cached) - 1
        assert key_position(torch.tensor(cached), query, spec).tolist() == list(range(len(cached)))


def test_by_hand_window_5_sinks_2():
    at = lambda i, keys: key_position(torch.tensor(keys), torch.tensor(i), SWA(5, 2)).tolist()  # noqa: E731
    assert at(4, [0, 1, 2, 3, 4]) == [0, 1, 2, 3, 4]
    assert at(5, [0, 1, 3, 4, 5]) == [0, 1, 2, 3, 4]
    assert at(9, [0, 1, 7, 8, 9]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rope_type", ["default", "dynamic"])
@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_a_query_a_million_tokens_on_stands_where_an_early_one_stood(impl, rope_type):
    """No large angle may enter: not as rounding, not through a rope that stretches with it."""
    spec, t = SWA(7, 2, "cache"), 11
    q, k = noise(1, 2, t, 10), noise(1, 2, 2 + 4 + t, 10, seed=1)

    def from_position(start):
        k_pos = torch.cat([torch.arange(2), torch.arange(start - 4, start + t)])
        rope = Rope(llama_rope(rope_type=rope_type, factor=4.0))
        return attend(q, k, k, spec, impl, q_pos=torch.arange(start, start + t), k_pos=k_pos, rope=rope)

    torch.testing.assert_close(from_position(1_000_003), from_position(13), rtol=0, atol=1e-6)


# -------------------------------------------------------------------------------- StreamingLLM's own output


@pytest.fixture(scope="module")
def released():
    return {name: torch.from_numpy(array) for name, array in np.load(VECTORS).items()}


def vector_output(z, impl, positions):
    q, k, v = ((z["x"] @ z[f"W{n}"].T).unflatten(-1, (-1, 8)).transpose(1, 2) for n in "qkv")
    window, sinks = int(z["start_size"] + z["recent_size"]) + 1, int(z["start_size"])
    o = attend(q, k, v, SWA(window, sinks, positions), impl, rope=Rope(llama_rope(head_dim=8)))
    return o.transpose(1, 2).flatten(2) @ z["Wo"].T


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
@pytest.mark.parametrize(
    ("positions", "name"), [("cache", "y"), ("cache", "y_attention_sinks"), ("text", "y_text_positions")]
)
def test_attend_gives_what_streaming_llm_gave(released, impl, positions, name):
    torch.testing.assert_close(vector_output(released, impl, positions), released[name], rtol=0, atol=1e-5)


def test_the_two_kinds_of_positions_differ_from_the_first_eviction_on(released):
    apart = (
        (vector_output(released, "sdpa", "cache") - vector_output(released, "sdpa", "text"))
        .abs()
        .amax((0, 2))
    )
    window = int(released["start_size"] + released["recent_size"]) + 1
    assert apart[:window].max() < 1e-5
    assert apart[window:].min() > 1e-3


def test_the_vectors_count_keys_as_this_project_does(released):
    ours = oracle.double_loop(14, 7, 2)
    assert torch.equal(ours, released["visible"].bool())
    assert torch.equal(ours.sum(1), released["keys_per_step"])
