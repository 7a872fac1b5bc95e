"""Tiny models: the same for the same seed, others for another, and sensitive to what they attend to."""

import pytest
import torch
from transformers import AutoModelForCausalLM

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


NAMED_IN_RESULTS = {
    "llama": "seeded:llama:0:e0c3342f5a68f33f",
    "qwen2": "seeded:qwen2:0:9c1013fb6eba9d00",
    "mistral": "seeded:mistral:0:e71877fcd54e6be1",
    "gemma3": "seeded:gemma3:0:3d035fbe9660d77c",
}


@pytest.mark.parametrize("family", NAMED_IN_RESULTS)
def test_an_id_that_results_may_name_stays(family):
    assert seeded_id(family) == NAMED_IN_RESULTS[family]


def test_sizes_have_one_name_whatever_a_config_calls_them():
    gpt2 = tiny("gpt2", num_hidden_layers=2, max_position_embeddings=17, intermediate_size=13).config
    assert (gpt2.n_layer, gpt2.n_positions, gpt2.n_inner, gpt2.n_embd, gpt2.n_head) == (2, 17, 13, 36, 4)
    opt = tiny("opt", intermediate_size=13).config
    assert (opt.ffn_dim, opt.word_embed_proj_dim, opt.hidden_size) == (13, 28, 36)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_left_at_zero_or_one_where_it_could_hide_a_mistake(family):
    for name, parameter in tiny(family).named_parameters():
        if name.endswith(("bias", "sinks")):
            assert parameter.abs().min() > 0, name
        elif "norm" not in name and ".ln_" not in name:
            assert parameter.std() > 0.2, name


def test_what_an_architecture_is_named_for_is_in_its_tiny_model():
    rotated = {name: tiny(name).base_model.rotary_emb.inv_freq for name in ("llama", "llama3", "phi", "phi3")}
    assert [2 * len(frequencies) for frequencies in rotated.values()] == [10, 10, 4, 6]
    assert not torch.equal(rotated["llama"], rotated["llama3"])
    assert tiny("gemma2").config.attn_logit_softcapping == 5.0
    assert tiny("smollm3").config.no_rope_layers == [1, 0, 1]
    assert tiny("mixtral").config.num_local_experts == tiny("qwen3_moe").config.num_local_experts == 4
    assert tiny("phi3-longrope").config.rope_parameters["rope_type"] == "longrope"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_survives_being_saved(family, tmp_path):
    model = tiny(family)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, model(IDS).logits)


def test_an_unknown_family_lists_the_known():
    with pytest.raises(
        ValueError, match=r"'falcon': choose from llama, qwen2, mistral, gemma3, llama3, .*gpt_oss"
    ):
        tiny("falcon")


def test_characters_round_trip():
    tokenizer = character_tokenizer()
    text = "A line,  and\nanother ~ {1}!"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer("é")["input_ids"] == [len(VOCABULARY) - 1]
