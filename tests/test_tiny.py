"""Tiny models: the same for the same seed, others for another, and sensitive to what they attend to."""

import pytest
import torch

from swalib.tiny import FAMILIES, VOCABULARY, character_tokenizer, seeded_id, tiny

IDS = torch.randint(0, len(VOCABULARY), (1, 31), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_fixes_the_weights_and_nothing_else_moves(family):
    state = torch.get_rng_state()
    first, again, other = tiny(family, 1), tiny(family, 1), tiny(family, 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.get_input_embeddings().weight, other.get_input_embeddings().weight)
    assert not first.training
    assert first.dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hidden_key_changes_the_logits_clearly(family):
    model = tiny(family)
    mask = torch.ones(IDS.shape, dtype=torch.int64)
    mask[0, 0] = 0
    positions = torch.arange(IDS.shape[1])[None]
    with torch.no_grad():
        seen = model(IDS, position_ids=positions).logits[0, -1]
        hidden = model(IDS, attention_mask=mask, position_ids=positions).logits[0, -1]
    assert (seen - hidden).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_far_from_uniform(family):
    model = tiny(family)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = torch.stack(model(IDS, output_attentions=True).attentions)
    assert attentions[..., -1, :].amax(-1).mean() > 0.2  # a uniform row of 31 has 0.03


def test_overrides_reach_the_config():
    assert tiny("mistral").config.sliding_window is None
    assert tiny("mistral", sliding_window=5).config.sliding_window == 5
    assert tiny("gemma3").config.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
    assert len(tiny("gemma3", num_hidden_layers=4).config.layer_types) == 4


def test_ids_differ_by_everything_that_changes_the_weights():
    ids = {seeded_id(), seeded_id("qwen2"), seeded_id(seed=1), seeded_id(hidden_size=40)}
    assert len(ids) == 4
    assert seeded_id("llama", 0) == seeded_id()


def test_an_unknown_family_lists_the_known():
    with pytest.raises(ValueError, match="'gpt2': choose from llama, qwen2, mistral, gemma3"):
        tiny("gpt2")


def test_characters_round_trip():
    tokenizer = character_tokenizer()
    text = "A line,  and\nanother ~ {1}!"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer("é")["input_ids"] == [len(VOCABULARY) - 1]
