"""What is the smallest model with every part that matters here? Grouped queries, odd sizes, local layers."""

from __future__ import annotations

import copy
import hashlib
import json
import string
from typing import TYPE_CHECKING

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY = [*sorted(string.printable[:95]), "\n", "�"]

_SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

# Rotary dimensions must be even, so a family that takes head_dim from hidden_size / heads gets 40 / 4.
_EVEN_HEADS = {"hidden_size": 40}
# Grouped matrix products want rows of whole 16 bytes.
_EXPERTS = _EVEN_HEADS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LOCAL_EXPERTS = _EVEN_HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 56}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 51.2,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.3],
    "long_factor": [1.5, 2.5, 4.0, 7.0, 11.0],
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 128,
}
_YARN_WHERE_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": _YARN,
}

FAMILIES = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "gemma3": ("gemma3_text", {"sliding_window": 7, "query_pre_attn_scalar": 10}),
    "llama3": ("llama", {"rope_parameters": _LLAMA3_ROPE}),
    "mixtral": ("mixtral", _LOCAL_EXPERTS | {"sliding_window": None}),
    "qwen2_moe": ("qwen2_moe", _EXPERTS | {"shared_expert_intermediate_size": 22}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", _EXPERTS),
    "phi": ("phi", _EVEN_HEADS | {"partial_rotary_factor": 0.4}),
    "phi3": ("phi3", _EVEN_HEADS | {"sliding_window": None, "partial_rotary_factor": 0.6}),
    "phi3-longrope": (
        "phi3",
        _EVEN_HEADS
        | {"sliding_window": None, "rope_parameters": _LONG_ROPE, "original_max_position_embeddings": 80},
    ),
    "gemma": ("gemma", {}),
    "gemma2": (
        "gemma2",
        {"sliding_window": 7, "query_pre_attn_scalar": 10, "attn_logit_softcapping": 5.0},
    ),
    "gpt_neox": ("gpt_neox", _EVEN_HEADS | {"rotary_pct": 0.4}),
    "gptj": ("gptj", {"rotary_dim": 4}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 7, "rope_parameters": _YARN_WHERE_GLOBAL}),
    "stablelm": ("stablelm", _EVEN_HEADS | {"partial_rotary_factor": 0.4, "use_qkv_bias": True}),
    "granite": (
        "granite",
        {
            "attention_multiplier": 0.4,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "logits_scaling": 1.9,
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "gpt2": ("gpt2", {"max_position_embeddings": 96}),
    "opt": ("opt", {"max_position_embeddings": 96, "word_embed_proj_dim": 28}),
    "gpt_oss": ("gpt_oss", _LOCAL_EXPERTS | {"sliding_window": 7, "rope_parameters": _YARN}),
}

_ALTERNATE = ("gemma3", "gemma2", "olmo3", "gpt_oss")

# What a config calls the sizes above, where it has other names for them; None where it has no such thing.
_NO_GROUPS = {"num_key_value_heads": None, "head_dim": None}
_GPT_NAMES = _NO_GROUPS | {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
_NAMES = {
    "gpt2": _GPT_NAMES,
    "gptj": _GPT_NAMES,
    "gpt_neox": _NO_GROUPS,
    "opt": _NO_GROUPS | {"intermediate_size": "ffn_dim"},
    "stablelm": {"head_dim": None},
}

# Spreads attention logits over a few units, so that a key wrongly hidden or shown changes the output clearly.
_STD = 0.25
_QK_GAIN = 0.5


def tiny(family: str = "llama", seed: int = 0, **config_overrides: object) -> PreTrainedModel:
    """A seeded random causal LM in float32 and eval mode: 3 layers, 4 query and 2 key heads of 10, 97 tokens.

    `family` is one of FAMILIES; where its config can't express some of these sizes, the nearest that it can.
    Gemma2 and 3, Olmo3 and gpt-oss alternate local layers (window 7) and global ones; positions go to 4096,
    where they are learned (gpt2, opt) to 96. `config_overrides` go to the transformers config
    (`sliding_window=5`, `num_hidden_layers=2`, ...). The same arguments give the same weights; the global
    random state is left alone.
    Raises ValueError for an unknown family.
    """
    model_type, settings = _settings(family, config_overrides)
    with torch.random.fork_rng(devices=[]):
        config = transformers.AutoConfig.for_model(model_type, **copy.deepcopy(settings))
        model = transformers.AutoModelForCausalLM.from_config(
            config,
            dtype=torch.float32,
            experts_implementation="eager",  # the only one in float64
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.add_(_QK_GAIN)
            elif name.endswith("bias") or not ("norm" in name or ".ln_" in name):
                parameter.normal_(0.0, _STD, generator=generator)
    return model.eval()


def seeded_id(family: str = "llama", seed: int = 0, **config_overrides: object) -> str:
    """What identifies the weights that `tiny` makes of this: `seeded:<family>:<seed>:<config hash>`."""
    settings = json.dumps(_settings(family, config_overrides), sort_keys=True, default=str)
    return f"seeded:{family}:{seed}:{hashlib.sha256(settings.encode()).hexdigest()[:16]}"


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a printable ASCII character, for the tiny models; any other character is the last token."""
    unknown = VOCABULARY[-1]
    vocabulary = {character: index for index, character in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=unknown, pad_token=unknown
    )


def _settings(family: str, overrides: dict[str, object]) -> tuple[str, dict[str, object]]:
    if family not in FAMILIES:
        raise ValueError(f"no tiny model of family {family!r}: choose from {', '.join(FAMILIES)}.")
    model_type, extra = FAMILIES[family]
    settings = _SIZES | extra | overrides
    if family in _ALTERNATE and "layer_types" not in settings:
        kinds = ("sliding_attention", "full_attention")
        settings["layer_types"] = [kinds[layer % 2] for layer in range(settings["num_hidden_layers"])]
    names = _NAMES.get(model_type, {})
    return model_type, {
        names.get(name, name): value for name, value in settings.items() if names.get(name, name) is not None
    }
