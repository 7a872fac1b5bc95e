"""What does SWA(w, s) look at, how far does it reach, what does it cost? Computed in the page, not measured.

Each function only chooses the numbers a reader starts from; masks, sets and bytes are computed in the browser
(`book/assets/swa-method.js`, `swa-cache.js`), so that a slider answers at once. A pair with s >= w is no SWA:
the page lowers s and says so.
"""

from swalib.figures.show import Figure

TEXT = (
    "The first few tokens are kept for good . Every other token enters a ring of slots , and once the ring "
    "is full , each new token takes the place of the oldest one there : no later query will see that one "
    "again ."
)

# From the models' configurations: groups of layers with their own window in tokens (None: global), and sizes.
KV_MODELS = {
    "SmolLM2-135M": {"layers": [{"count": 30, "window": None}], "kv_heads": 3, "head_dim": 64},
    "Gemma3-270M": {
        "layers": [{"count": 3, "window": None}, {"count": 15, "window": 512}],
        "kv_heads": 1,
        "head_dim": 256,
    },
    "Qwen2.5-Coder-0.5B": {"layers": [{"count": 24, "window": None}], "kv_heads": 2, "head_dim": 64},
    "Llama-3.1-8B": {"layers": [{"count": 32, "window": None}], "kv_heads": 8, "head_dim": 128},
    "Llama-3.1-70B": {"layers": [{"count": 80, "window": None}], "kv_heads": 8, "head_dim": 128},
    "Qwen2.5-72B": {"layers": [{"count": 80, "window": None}], "kv_heads": 8, "head_dim": 128},
}
KV_BYTES = {"fp32": 4, "bf16": 2, "fp8": 1}


def mask_explorer(length: int = 64) -> Figure:
    """The whole length × length mask of SWA(w, s), with the reason for every cell.

    Args:
        length: tokens of the text; at least 2. Windows go from 1 to the first power of two that covers it.

    Raises:
        ValueError: length is below 2.
    """
    _at_least("length", length, 2)
    return Figure(
        id="mask-explorer",
        kind="mask-explorer",
        title="What does a query see?",
        data={
            "length": length,
            "windows": _powers_of_two(1, 2 * length - 1),
            "sinks": [0, 1, 2, 4, 8, 16],
            "initial": {"window": 16, "sinks": 4, "query": min(40, length - 1)},
        },
        alt=(
            f"A square of {length} queries by {length} keys, a row a query. Seen are a band of the latest w "
            "− s keys along the diagonal and a column of s sinks at the left; what lies between them is "
            "evicted, what lies right of the diagonal comes later."
        ),
        caption=(
            "A query sees the s sinks and its w − s latest keys, its own included: min(i + 1, w) keys in "
            "all, however long the text. From w = L on, the mask is full causal attention; at s = 0 it is a "
            "plain sliding window."
        ),
    )


def reach(layers: int = 8, length: int = 128) -> Figure:
    """Which input tokens can influence the last token, layer by layer, by propagating sets through the mask.

    Args:
        layers: attention layers to stack; at least 1.
        length: tokens of the text; at least 2.

    Raises:
        ValueError: an argument is below its least value.
    """
    _at_least("layers", layers, 1)
    _at_least("length", length, 2)
    return Figure(
        id="reach",
        kind="reach",
        title="How far back can the last token listen?",
        data={
            "length": length,
            "layers": layers,
            "windows": _powers_of_two(1, 2 * length - 1),
            "sinks": [0, 1, 2, 4, 8, 16],
            "initial": {"window": 16, "sinks": 4, "layers": layers},
        },
        alt=(
            f"A staircase over {length} input tokens, a step for each of {layers} layers: every layer lets "
            "the last token listen w − s − 1 tokens further back. The sinks are reached from the first "
            "layer on and open the way to no other token. A dashed line, l times w, lies beyond the "
            "staircase."
        ),
        caption=(
            "After l layers the last token can be influenced from exactly l · (w − s − 1) tokens back, less "
            "than the paper's “about l · w”. The sinks add themselves and nothing else: they see only "
            "sinks."
        ),
    )


def conventions() -> Figure:
    """What the same two numbers w and s mean in other systems, key by key."""
    return Figure(
        id="conventions",
        kind="conventions",
        title="What do other systems show a query for the same w and s?",
        data={
            "windows": _powers_of_two(1, 16),
            "sinks": [0, 1, 2, 4, 8],
            "initial": {"window": 4, "sinks": 1},
        },
        alt=(
            "Eight rows of keys, a row a system, for a query far into the text. For w = 4 and s = 1: this "
            "paper and HF's former SinkCache 4 keys, StreamingLLM 5, its chat script at most 4, SWAA 5, HF "
            "sliding_window and fla 4, FlashAttention 5, attention-gym 5, LoLCATs' terrace 5 to 8; the last "
            "four without sinks."
        ),
        caption=(
            "The same w stands for w − s to w + 1 recent keys, or as many as 2w, depending on who says it. "
            "Numbers from two systems compare only after translation; swalib.masks does it, and tests count "
            "the keys."
        ),
    )


def cache_slots() -> Figure:
    """The w slots of the cache while a text is decoded token by token, as `SinkCache` stores them."""
    return Figure(
        id="cache-slots",
        kind="cache-slots",
        title="Which token lies in which slot?",
        data={
            "words": TEXT.split(),
            "windows": [4, 6, 8, 12],
            "sinks": [0, 1, 2, 3],
            "initial": {"window": 8, "sinks": 2, "token": 20},
        },
        alt=(
            "A text with its visible tokens highlighted, and below it w cards, one a cache slot. The first "
            "s slots keep the first s tokens; the others are a ring in which each new token replaces the "
            "oldest. Every card gives the key's text position and its in-cache position, and how far each "
            "is behind the query."
        ),
        caption=(
            "Memory is w slots throughout and nothing moves: each step writes one. On the right of a card, "
            "how far the key is behind the query: text and in-cache positions agree on the recents; once "
            "tokens are evicted, they differ (bold) for the sinks alone."
        ),
    )


def kv_calculator() -> Figure:
    """Bytes of the KV cache against context length: layers × 2 × n_kv_heads × min(L, w) × d × bytes × batch.

    A layer trained with its own local window keeps it, as in `swalib.hf`; SWA goes to the global layers.
    """
    return Figure(
        id="kv-calculator",
        kind="kv-calculator",
        title="How much memory does the cache take?",
        data={
            "models": KV_MODELS,
            "dtypes": KV_BYTES,
            "batches": _powers_of_two(1, 64),
            "windows": _powers_of_two(16, 4096),
            "lengths": _powers_of_two(128, 1 << 20),
            "initial": {"model": "Llama-3.1-8B", "dtype": "bf16", "batch": 1, "window": 64, "length": 32768},
        },
        alt=(
            "Bytes of the KV cache against context length from 128 to 1 million tokens, both on log axes: "
            "full attention rises in proportion to the context, SWA rises to w tokens and is flat from "
            "there."
        ),
        caption=(
            "Full attention's cache grows with every token; SWA's stops at w slots, sinks included, so s "
            "does not change it. Computed, not measured: layers × 2 × KV heads × min(L, w) × d × bytes × "
            "batch; 1 kB is 1000 bytes. In Gemma3-270M, 15 of 18 layers keep their own window of 512 and "
            "SWA goes to the other 3."
        ),
    )


def _powers_of_two(low: int, high: int) -> list[int]:
    return [1 << power for power in range(low.bit_length() - 1, high.bit_length())]


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
