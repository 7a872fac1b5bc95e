"""Models by name: from a wheel by way of a dense copy, a folder, the hub, a seed; and their weights' ids."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import fake_index
import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from swalib import models, wheels
from swalib.embedded import Embedded
from swalib.models import MODELS, encode, load, weights_id
from swalib.tiny import FAMILIES, character_tokenizer, tiny
from swalib.wheels import Asset, DataUnavailable

LETTERS = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
TOKENS = ["<unk>", "<bos>", "<eos>", *LETTERS, "th", "the"]


def write_gguf(path: Path) -> None:
    """A llama of 2 layers with Q8_0 weights, sizes in multiples of 32, and a byte-level tokenizer."""
    generator = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    shapes |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    weights = {"token_embd": (len(TOKENS), 64)}
    weights |= {f"blk.{layer}.{name}": shape for layer in range(2) for name, shape in shapes.items()}
    for name, shape in weights.items():
        packed = gguf.quantize(
            generator.normal(0, 0.3, shape).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
        )
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    norms = ["output_norm", *(f"blk.{layer}.{kind}_norm" for layer in range(2) for kind in ("attn", "ffn"))]
    for name in norms:
        writer.add_tensor(f"{name}.weight", generator.uniform(0.5, 1.5, 64).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path)
    return path.read_bytes()


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf_bytes: bytes) -> Embedded:
    """A model called "mini", known to swalib and carried by a wheel of the fake index."""
    fake_index.use(tmp_path, monkeypatch)
    wheel = fake_index.add_wheel(tmp_path, "mini-wheel", {"mini/model.gguf": gguf_bytes})
    digest = hashlib.sha256(gguf_bytes).hexdigest()
    asset = Asset("mini.gguf", (wheel,), "mini/*.gguf", digest, len(gguf_bytes))
    entry = Embedded("mini", "organisation/mini", "llama", asset, "none", context_tokens=128)
    monkeypatch.setitem(MODELS, "mini", entry)
    return entry


def folder_of(entry: Embedded) -> Path:
    return wheels.cache_folder() / "models" / f"{entry.name}-{entry.asset.sha256[:16]}"


def test_a_wheel_is_loaded_once_and_its_dense_copy_after_that(entry, monkeypatch):
    first = load("mini")
    assert (first.source, first.weights, first.bos) == ("wheel", entry.asset.sha256[:16], None)
    assert first.model.dtype == torch.float32
    assert not first.model.training

    shutil.rmtree(wheels.cache_folder() / "files")
    monkeypatch.setattr(models, "fetch", lambda _: pytest.fail("the dense copy was not used"))
    second = load("mini")
    for name, weight in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], weight), name
    assert second.tokenizer("the cat")["input_ids"] == first.tokenizer("the cat")["input_ids"]
    assert load("mini", dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_the_dense_copy_holds_the_dequantised_weights_exactly(entry, gguf_bytes, tmp_path):
    (tmp_path / "again.gguf").write_bytes(gguf_bytes)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "again.gguf").tensors}
    model = load("mini").model
    for name, module in (
        ("token_embd", model.model.embed_tokens),
        ("blk.1.ffn_up", model.model.layers[1].mlp.up_proj),
    ):
        tensor = tensors[f"{name}.weight"]
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(module.weight.detach().numpy(), expected), name


def test_an_interrupted_first_load_leaves_no_dense_copy(entry, monkeypatch):
    def interrupted(self, folder, **_):
        Path(folder).mkdir()
        (Path(folder) / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LlamaForCausalLM, "save_pretrained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load("mini")
    assert [path.suffix for path in folder_of(entry).parent.iterdir()] == [".lock"]
    assert load("mini").model.config.num_hidden_layers == 2


def test_a_damaged_dense_copy_is_one_sentence(entry):
    load("mini")
    weights = folder_of(entry) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(DataUnavailable, match=r"copy of mini is damaged, delete .* and load again"):
        load("mini")


def test_wheels_without_a_licence_need_the_opt_in(entry, monkeypatch):
    monkeypatch.setitem(MODELS, "mini", replace(entry, opt_in=True))
    with pytest.raises(DataUnavailable, match=r"mini state no licence.*SWALIB_OPT_IN=1 or pass opt_in=True"):
        load("mini")
    assert not wheels.cache_folder().exists()
    assert load("mini", opt_in=True).name == "mini"
    monkeypatch.setenv("SWALIB_OPT_IN", "1")
    assert load("mini").name == "mini"
    with pytest.raises(DataUnavailable):
        load("mini", opt_in=False)


def test_bos_is_added_where_the_model_needs_it(entry, monkeypatch):
    plain = encode(load("mini"), "the")
    assert plain.tolist() == [[TOKENS.index("the")]]
    assert plain.dtype == torch.int64
    monkeypatch.setitem(MODELS, "mini", replace(entry, bos=True))
    assert encode(load("mini"), "the").tolist() == [[TOKENS.index("<bos>"), TOKENS.index("the")]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    tiny("qwen2", 3).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return path


def test_a_folder_is_a_local_model(folder):
    loaded = load(folder)
    assert (loaded.source, loaded.name, loaded.bos) == ("local", str(folder), None)
    assert torch.equal(loaded.model.lm_head.weight, tiny("qwen2", 3).lm_head.weight)
    assert loaded.weights == weights_id(str(folder), "local")


def test_a_folders_id_changes_with_one_weight(folder):
    before = weights_id(folder)
    model = load(folder).model
    with torch.no_grad():
        model.lm_head.weight[5, 7] += 1e-3
    model.save_pretrained(folder)
    assert weights_id(folder) != before


def test_a_folder_without_a_model_is_one_sentence(tmp_path):
    with pytest.raises(DataUnavailable, match="holds no model and tokenizer that load") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_hub_gets_the_id_and_the_commit(monkeypatch):
    asked = []

    def from_pretrained(place, _dtype, revision):
        asked.append((place, revision))
        return tiny(), character_tokenizer()

    monkeypatch.setattr(models, "_from_pretrained", from_pretrained)
    assert load("organisation/model@abc").weights == "hub:organisation/model@abc"
    assert load("smollm2-135m", source="hub").weights == "hub:HuggingFaceTB/SmolLM2-135M-Instruct"
    assert asked == [("organisation/model", "abc"), ("HuggingFaceTB/SmolLM2-135M-Instruct", "main")]


def test_a_hub_out_of_reach_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        DataUnavailable, match="organisation/absent could not be had from the model hub"
    ) as caught:
        load("organisation/absent")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_has_a_name(family):
    loaded = load(f"tiny-{family}", dtype=torch.float64)
    assert loaded.source == "seeded"
    assert loaded.weights.startswith(f"seeded:{family}:0:")
    assert loaded.model.dtype == torch.float64
    assert loaded.model(encode(loaded, "any text\n")).logits.shape == (1, 9, 97)


@pytest.mark.parametrize("call", [load, weights_id])
def test_an_unknown_model_lists_the_known(call):
    with pytest.raises(
        ValueError, match=r"no model called 'smollm': .* one of smollm2-135m, gemma3-270m.*tiny-llama"
    ):
        call("smollm")


@pytest.mark.parametrize(
    ("name", "source"),
    [("tiny-llama", "wheel"), ("smollm2-135m", "local"), ("tiny-llama", "hub"), ("a/b", "seeded")],
)
def test_a_source_is_honoured_or_refused(name, source):
    with pytest.raises(ValueError, match=f"the source '{source}' has no model called '{name}'"):
        load(name, source=source)


def test_an_unknown_source_lists_the_known():
    with pytest.raises(ValueError, match="source is 'disk': choose from wheel, hub, local, seeded"):
        load("smollm2-135m", source="disk")


def test_weights_ids_of_embedded_models_need_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("SWALIB_CACHE", str(tmp_path / "cache"))
    assert weights_id("smollm2-135m") == "b179c9523d0e6a0f"
    assert len({weights_id(name) for name in MODELS}) == len(MODELS)
    assert not (tmp_path / "cache").exists()


@pytest.mark.network
def test_the_default_model(monkeypatch):
    load("smollm2-135m")
    monkeypatch.setattr(models, "fetch", lambda _: pytest.fail("the dense copy was not used"))
    loaded = load("smollm2-135m")
    config = loaded.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_key_value_heads) == (30, 576, 3)
    text = "The capital of France is Paris.\n\nThe capital of Italy is"
    ids = encode(loaded, text)
    assert loaded.tokenizer.decode(ids[0]) == text
    with torch.no_grad():
        following = loaded.model(ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode([following]) == " Rome"
