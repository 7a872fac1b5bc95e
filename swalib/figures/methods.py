"""The fourteen linearisation methods of the paper, and SWA: what each computes, trains, costs and keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from swalib import reported

TABLE1, APPENDIX = "the paper's Table 1", "the paper's appendix A.2"
RADLADS = "1: attention's outputs, all layers at once; 2: all parameters, on logits; 3: next token, at 16K"
AS_LOLCATS = "as LoLCATs: 1, the new parts, to match attention's outputs; 2, low-rank updates"


@dataclass(frozen=True)
class Model:
    """The sizes that a state depends on, of one model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int


LLAMA = Model("Llama-3.1-8B", 32, 4096, 32, 8, 128)


@dataclass(frozen=True)
class Memory:
    """What a layer keeps between tokens.

    Args:
        features: of the state S [heads, features, head_dim] in fp32; None: head_dim; 0: no state.
        z: whether there is a normaliser [heads, features].
        slots: keys and values of a window, in the model's dtype.
        positions: whether each slot's text position is kept, in 8 bytes.
        conv: channels, by "q", "k", "v" (at kv width) and "state" (heads · features), of which a short
            convolution keeps three tokens.
        last: whether the last token's hidden state is kept.
    """

    features: int | None = None
    z: bool = False
    slots: int = 0
    positions: bool = False
    conv: tuple[str, ...] = ()
    last: bool = False

    def bytes(self, model: Model = LLAMA, narrow: int = 2) -> int:
        """Of one sequence in all layers; `narrow`: bytes of a number in the model's dtype."""
        features = model.head_dim if self.features is None else self.features
        kv_width, state_width = model.kv_heads * model.head_dim, model.heads * features
        channels = {"q": model.heads * model.head_dim, "k": kv_width, "v": kv_width, "state": state_width}
        wide = state_width * (model.head_dim + self.z)
        own = 2 * self.slots * kv_width + 3 * sum(channels[part] for part in self.conv)
        own += model.hidden * self.last
        return model.layers * (4 * wide + narrow * own + 8 * self.slots * self.positions)

    def words(self) -> str:
        """The same as a formula: h heads of d, kv heads, f features."""
        f = "d" if self.features is None else str(self.features)
        parts = [] if self.features == 0 else [f"S: h·{f}·d in fp32"]
        parts += [f"z: h·{f} in fp32"] if self.z else []
        parts += [f"{self.slots} keys and values"] if self.slots else []
        parts += ["the convolution's last 3 tokens"] if self.conv else []
        parts += ["the last hidden state"] if self.last else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Card:
    """One method.

    Args:
        key: its name in `swalib.linear.METHODS`, or "swa".
        colour: a name in `swalib.figures.theme.METHODS`; picture: one in `swalib.figures.cards.PICTURES`.
        code, object: the file of the repository that computes it, and what to read there.
        trained, cost: what its authors train, and what that costs as printed in `source`.
        differs: from the code that was released.
    """

    key: str
    title: str
    arxiv: str
    colour: str
    picture: str
    code: str
    object: str
    trained: str
    cost: str
    differs: str
    memory: Memory = field(default_factory=Memory)
    source: str = TABLE1


CARDS = (
    Card(
        "swa",
        "SWA(w, s)",
        "2608.28444",
        "sinks",
        "window",
        "swalib/masks.py",
        "visible",
        "nothing",
        reported.cost("SWA"),
        "No code was released. Text positions are the plain reading; StreamingLLM's are an option.",
        Memory(features=0, slots=64),
    ),
    Card(
        "lolcats",
        "LoLCATs",
        "2410.10254",
        "lolcats",
        "hybrid",
        "swalib/linear/lolcats.py",
        "LoLCATs",
        "1: W and a, to match each head's output; 2: low-rank updates of q, k, v, o",
        reported.cost("LoLCATs"),
        "Released: the terraced window counts keys twice in texts up to w, and decodes under another mask.",
        Memory(z=True, slots=63, positions=True),
    ),
    Card(
        "liger",
        "Liger-GLA",
        "2503.01496",
        "liger",
        "half",
        "swalib/linear/liger.py",
        "Liger",
        "low-rank updates of q, k, v; no new parameter",
        reported.cost("Liger-GLA"),
        "Released: decoding keeps no keys, so a generated token's window half is its own value.",
        Memory(slots=63, positions=True),
    ),
    Card(
        "hedgehog",
        "Hedgehog",
        "2402.04347",
        "other",
        "plain",
        "swalib/linear/hedgehog.py",
        "Hedgehog",
        "1: W, to match attention's weights; 2: low-rank updates",
        reported.cost("Hedgehog"),
        "Released (in LoLCATs' repository): a prompt read in two calls forgets the first.",
        Memory(z=True),
    ),
    Card(
        "supra",
        "SUPRA",
        "2405.06640",
        "other",
        "scalar",
        "swalib/linear/supra.py",
        "SUPRA",
        "everything, next token",
        reported.cost("SUPRA"),
        "Released: slopes fail for head counts that are no power of 2; decoding takes no account of pads.",
    ),
    Card(
        "dijiang",
        "DiJiang",
        "2403.19928",
        "other",
        "scalar",
        "swalib/linear/dijiang.py",
        "DiJiang",
        "everything, next token",
        reported.cost("DiJiang"),
        "Released: φ is a softmax; decoding with a cache lets every token see the first key alone.",
    ),
    Card(
        "qlinatt",
        "QLinAtt",
        "2505.03005",
        "other",
        "plain",
        "swalib/linear/qlinatt.py",
        "QLinAtt",
        RADLADS,
        reported.cost("QLinAtt"),
        "No code was released; the norm's eps is a choice made here.",
    ),
    Card(
        "mohawk",
        "MOHAWK",
        "2408.10189",
        "other",
        "scalar",
        "swalib/linear/mamba2.py",
        "Mohawk",
        "1: mixing matrices, to match attention's; 2: blocks' outputs; 3: everything, on logits",
        reported.cost("MOHAWK"),
        "Released: its kernel divides by softplus(a) and is not finite where that underflows.",
        Memory(conv=("q", "state", "state")),
    ),
    Card(
        "llamba",
        "Llamba",
        "2502.14458",
        "other",
        "scalar",
        "swalib/linear/mamba2.py",
        "Llamba",
        "the same three; the last part from a 70B teacher",
        reported.cost("Llamba"),
        "As MOHAWK. At head size 128 the maps of B and C start new: the state is 64 wide.",
        Memory(features=64, conv=("q", "state", "state")),
    ),
    Card(
        "mamba_in_llama",
        "Mamba in the Llama",
        "2408.15237",
        "other",
        "scalar",
        "swalib/linear/mamba_in_llama.py",
        "MambaInLlama",
        "layers replaced stepwise, MLPs frozen; then all, on logits; then fine-tuning and preferences",
        reported.cost("Mamba in the Llama"),
        "Released: decoding fails without the compiled convolution. The table's row has no attention left.",
        Memory(conv=("q", "k", "v")),
    ),
    Card(
        "gla",
        "GLA",
        "2312.06635",
        "gla",
        "diagonal",
        "swalib/linear/gla.py",
        "GLA",
        AS_LOLCATS,
        "about 0.1B tokens, 2 stages",
        "Released (for training from scratch): other feature maps and output activations, not offered.",
        source=APPENDIX,
    ),
    Card(
        "gated_deltanet",
        "Gated DeltaNet",
        "2412.06464",
        "gated_deltanet",
        "delta",
        "swalib/linear/gated_deltanet.py",
        "GatedDeltaNet",
        AS_LOLCATS,
        "about 0.1B tokens, 2 stages",
        "Released: a convolution state for each of q, k, v, one token longer than is read.",
        Memory(conv=("q", "k", "v")),
        source=APPENDIX,
    ),
    Card(
        "qrwkv6",
        "QRWKV6",
        "2505.03005",
        "rwkv",
        "diagonal",
        "swalib/linear/qrwkv6.py",
        "QRWKV6",
        RADLADS,
        reported.cost("QRWKV6"),
        "Released: no account of pads; the paper's equations scale by 1/√d twice, the code once.",
        Memory(last=True),
    ),
    Card(
        "qrwkv7",
        "QRWKV7",
        "2505.03005",
        "rwkv",
        "delta",
        "swalib/linear/qrwkv7.py",
        "QRWKV7",
        RADLADS,
        reported.cost("QRWKV7"),
        "Released: scales by 1/√d by hand; with kernels from 2025 on it scales twice.",
    ),
    Card(
        "arwkv",
        "ARWKV",
        "2501.15570",
        "rwkv",
        "delta",
        "swalib/linear/arwkv.py",
        "ARWKV",
        "1: layers' outputs; 2: logits; 3: fine-tuning and preferences",
        reported.cost("ARWKV"),
        "Released: heads of 64 whatever the teacher's, an option here; layer 0 learns nothing from later "
        "uses of its values.",
        Memory(last=True),
    ),
)
