"""What is the smallest model with every part that matters here? Grouped queries, odd sizes, local layers."""

import hashlib
import json
import string

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

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

FAMILIES = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "gemma3": ("gemma3_text", {"sliding_window": 7, "query_pre_attn_scalar": 10}),
}

# Spreads attention logits over a few units, so that a key wrongly hidden or shown changes the output clearly.
_STD = 0.25
_GEMMA_QK_GAIN = 0.5


def tiny(family: str = "llama", seed: int = 0, **config_overrides: object) -> PreTrainedModel:
    """A seeded random causal LM in float32 and eval mode: 3 layers, 4 query and 2 key heads of 10, 97 tokens.

    `family` is one of FAMILIES. Gemma3 alternates local layers (window 7) and global ones. `config_overrides`
    go to the transformers config (`sliding_window=5`, `num_hidden_layers=2`, ...). The same arguments give
    the same weights; the global random state is left alone.
    Raises ValueError for an unknown family.
    """
    model_type, settings = _settings(family, config_overrides)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(model_type, **settings), dtype=torch.float32
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, _STD, generator=generator)
            elif name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.fill_(_GEMMA_QK_GAIN)
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
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unknown, pad_token=unknown)


def _settings(family: str, overrides: dict[str, object]) -> tuple[str, dict[str, object]]:
    if family not in FAMILIES:
        raise ValueError(f"no tiny model of family {family!r}: choose from {', '.join(FAMILIES)}.")
    model_type, extra = FAMILIES[family]
    settings = _SIZES | extra | overrides
    if family == "gemma3" and "layer_types" not in settings:
        kinds = ("sliding_attention", "full_attention")
        settings["layer_types"] = [kinds[layer % 2] for layer in range(settings["num_hidden_layers"])]
    return model_type, settings
