"""How do fifteen methods look side by side? A card each, as HTML that needs no script but MathJax."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from swalib.evals.anatomy import mixing
from swalib.figures.methods import CARDS, LLAMA, Card
from swalib.figures.theme import METHODS, PAGE

HEDGEHOG = r"\phi(x) = [\mathrm{softmax}(xW),\ \mathrm{softmax}(-xW)]"
MAMBA2 = (
    r"S_t = \sigma(-a_t)\,S_{t-1} + B_t^\top x_t",
    r"y_t = (C_t S_t + D x_t)\cdot \mathrm{silu}(z_t)",
)
RWKV7 = (
    r"S_t = \mathrm{Diag}(w_t)\,S_{t-1} + \tilde k_t^\top v_t",
    r"\qquad {} - (a_t\circ\kappa_t)^\top(\kappa_t S_{t-1})",
)
FORMULAS = {
    "swa": (
        r"o_i = \mathrm{softmax}_{j \in W_i}\bigl(q_i k_j^\top/\sqrt d\bigr)\,v_j",
        r"W_i = \{j \le i:\ j < s \ \text{or}\ i-j < w-s\}",
    ),
    "lolcats": (
        r"n_i = \sum_{j \in W_i} a\,e^{s_{ij}-c_i}v_j + \phi(q_i)\,S_{\text{before } W_i}",
        r"o_i = n_i \,/\, (n_i \text{ with all } v_j = 1)",
        HEDGEHOG,
    ),
    "liger": (
        r"S_t = \mathrm{Diag}(\sigma(k_t)^{1/16})\,S_{t-1} + \mathrm{softmax}(k_t)^\top v_t",
        r"o_t = \tfrac12\,\mathrm{softmax}(q_t)\,S_t + \tfrac12\,\mathrm{SWA}(64, 0)",
    ),
    "hedgehog": (
        HEDGEHOG,
        r"o_t = \phi(q_t)S_t \,/\, \phi(q_t) z_t^\top",
    ),
    "supra": (
        r"\phi(x) = \mathrm{RoPE}(\mathrm{relu}(Wx + b))",
        r"S_t = \gamma_h S_{t-1} + \phi(k_t)^\top v_t/\sqrt d",
        r"o_t = \mathrm{norm}(\phi(q_t)S_t)",
    ),
    "dijiang": (
        r"\phi(x) = D\exp(T C x),\quad C \text{ a DCT}",
        r"o_i = \sum_{j \le i}\gamma_h^{i-j}\,\phi(q_i)\phi(k_j)^\top v_j",
    ),
    "qlinatt": (
        r"S_t = S_{t-1} + \mathrm{RoPE}(k_t)^\top v_t",
        r"o_t = \mathrm{LayerNorm}(\mathrm{RoPE}(q_t)\,S_t)",
    ),
    "mohawk": MAMBA2,
    "llamba": (*MAMBA2, r"B_t, C_t \in \mathbb{R}^{64} \text{ in each head}"),
    "mamba_in_llama": (
        r"S_t = e^{A\,dt_t}S_{t-1} + B_t^\top(dt_t\,x_t)",
        r"o_t = \mathrm{RMSNorm}\bigl((C_t S_t + D x_t)\cdot\mathrm{silu}(z_t)\bigr)",
    ),
    "gla": (
        r"\alpha_t = \sigma(x_t W_1 W_2 + b)^{1/16}",
        r"S_t = \mathrm{Diag}(\alpha_t)\,S_{t-1} + k_t^\top v_t",
        r"o_t = q_t S_t/\sqrt d,\quad \text{normed and gated}",
    ),
    "gated_deltanet": (
        r"S' = e^{g_t}S_{t-1}",
        r"S_t = S' + \beta_t k_t^\top (v_t - k_t S'),\quad |k_t| = 1",
    ),
    "qrwkv6": (
        r"S_t = \mathrm{Diag}(w_t)\,S_{t-1} + (k_t\circ(1 - w_t))^\top v_t",
        r"o_t = q_t S_t/\sqrt d,\quad \text{gated}",
    ),
    "qrwkv7": (*RWKV7, r"\kappa_t = k_t/|k_t|,\quad \tilde k_t = k_t\circ(1 - w_t + a_t)"),
    "arwkv": (*RWKV7, r"\tilde k_t = k_t\circ(1 + (a_t - 1)\circ k_a);\quad \text{a bonus } r_k"),
}

# ---- The picture: whose value is in which output; exactly (blue), through a state (green), both ways (pink).

SIZE, WINDOW, SINKS = 12, 4, 1
PICTURES = {
    "window": "a band along the diagonal and a column at the left, seen exactly; nothing else",
    "hybrid": "a band along the diagonal, seen exactly; the rest through the state",
    "half": "a band along the diagonal, seen both ways; the rest through a state that fades",
    "plain": "the whole triangle through the state",
    "scalar": "the whole triangle through a state that fades with distance",
    "diagonal": "the whole triangle through a state that fades, channel by channel",
    "delta": "the whole triangle through a state that is overwritten",
}


def picture(name: str) -> str:
    """The SVG of a mask: a cell for each of 12 queries (rows) and the keys up to it; through a state the
    darker, the more of a value is in the output of a small seeded example."""
    rule = {"window": None, "hybrid": "plain", "half": "diagonal"}.get(name, name)
    weights = mixing(rule, SIZE) if rule else [[0.0] * SIZE] * SIZE
    drawn: dict[tuple[str, int], list[str]] = {}
    for i in range(SIZE):
        for j in range(i + 1):
            kind = _seen(name, i - j, j)
            level = 5 if kind != "linear" else 1 + round(4 * weights[i][j])
            drawn.setdefault((kind, level), []).append(f"M{j} {i}h.9v.9h-.9z")
    paths = "".join(
        f'<path class="swa-{kind}" opacity="{level / 5}" d="{"".join(places)}"/>'
        for (kind, level), places in drawn.items()
    )
    label = html.escape(PICTURES[name])
    return f'<svg viewBox="0 0 {SIZE} {SIZE}" role="img" aria-label="{label}">{paths}</svg>'


def _seen(name: str, back: int, j: int) -> str:
    if name == "window":
        return "sink" if j < SINKS else "exact" if back < WINDOW - SINKS else "unseen"
    return {"hybrid": "exact", "half": "both"}.get(name, "linear") if back < WINDOW else "linear"


# ---- The page.

CSS = """
.swa-cards { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(19.5rem, 100%), 1fr)); }
.swa-card { --own: var(--own-light); --exact: #8cc5e8; --sink: #0072b2; --linear: #2fa585; --both: #d9a0c0;
  --unseen: #e3e6ea;
  box-sizing: border-box; min-width: 0; padding: 0.7rem 0.9rem 0.8rem; border: 1px solid LINE;
  border-top: 5px solid var(--own); border-radius: 8px; background: PAPER; color: INK; font-size: 0.86rem; }
.swa-card .swa-head { display: flex; justify-content: space-between; gap: 0.8rem; }
.swa-card .swa-name { margin: 0 0 0.2rem; font-size: 1.05rem; font-weight: 600; line-height: 1.3; }
.swa-card .swa-small { margin: 0; color: SOFT; font-size: 0.8rem; }
.swa-card svg:not([focusable]) { flex: none; width: 5.2rem; height: 5.2rem; }
.swa-card .swa-exact { fill: var(--exact); } .swa-card .swa-sink { fill: var(--sink); }
.swa-card .swa-linear { fill: var(--linear); } .swa-card .swa-both { fill: var(--both); }
.swa-card .swa-unseen { fill: var(--unseen); }
.swa-card .swa-tex { margin: 0.15rem 0; padding: 0.1rem 0; overflow-x: auto; overflow-y: hidden; }
.swa-card dl { display: grid; grid-template-columns: auto 1fr; gap: 0.25rem 0.8rem; margin: 0.5rem 0 0; }
.swa-card dt { margin: 0; color: SOFT; font-weight: 600; }
.swa-card dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.swa-card code { padding: 0; border: 0; background: none; font-size: 0.8rem; }
"""
DARK = """
html[data-theme="dark"] .swa-card { --own: var(--own-dark); --exact: #2572a8; --sink: #56b4e9;
  --linear: #3cc9a0; --both: #a65f8a; --unseen: #2a3039; border-color: LINE; border-top-color: var(--own);
  background: PAPER; color: INK; }
html[data-theme="dark"] .swa-card :is(dt, .swa-small) { color: SOFT; }
html[data-theme="dark"] .bd-content div.cell_output .output.text_html:has(.swa-cards) {
  padding: 0; background: none; }
"""


@dataclass(frozen=True)
class Cards:
    """A grid of cards that shows itself, in a book and in JupyterLab alike."""

    cards: tuple[Card, ...]

    def _repr_html_(self) -> str:
        style = _coloured(CSS, "light") + _coloured(DARK, "dark")
        body = "".join(_card(card) for card in self.cards)
        return f'<style>{style}</style><div class="swa-cards">{body}</div>'

    def __repr__(self) -> str:
        return "\n".join(f"{card.title}: {card.cost}; {memory(card)}" for card in self.cards)


def grid(only: Iterable[str] = ()) -> Cards:
    """The cards of the methods `only`, by key; of all where none is named.

    Raises:
        ValueError: no method is called so.
    """
    wanted, known = list(only), {card.key: card for card in CARDS}
    if unknown := [key for key in wanted if key not in known]:
        raise ValueError(f"no card is called {unknown[0]!r}: choose from {', '.join(known)}")
    return Cards(tuple(known[key] for key in wanted or known))


def memory(card: Card) -> str:
    """Bytes of a sequence in Llama-3.1-8B, and how many tokens' keys and values would take as many."""
    held, a_token = card.memory.bytes(LLAMA), 4 * LLAMA.layers * LLAMA.kv_heads * LLAMA.head_dim
    return f"{held / 1e6:.1f} MB, as much as the keys and values of {round(held / a_token)} tokens"


def _coloured(css: str, mode: str) -> str:
    page = {"LINE": "grid" if mode == "dark" else "axis", "PAPER": "paper", "INK": "ink", "SOFT": "muted"}
    for word, name in page.items():
        css = css.replace(word, PAGE[mode][name])
    return css


def _card(card: Card) -> str:
    colour = METHODS[card.colour]
    tex = "".join(
        rf'<p class="swa-tex"><span class="math notranslate nohighlight">\({html.escape(line)}\)</span></p>'
        for line in FORMULAS[card.key]
    )
    facts = {
        "trains": html.escape(card.trained),
        "costs": f"{html.escape(card.cost)} (as printed in {html.escape(card.source)})",
        "keeps": f"{html.escape(card.memory.words())}: {memory(card)}",
        "differs": html.escape(card.differs),
        "code": f'<a href="#code-{card.key.replace("_", "-")}"><code>{html.escape(card.code)}</code></a>',
    }
    rows = "".join(f"<dt>{name}</dt><dd>{fact}</dd>" for name, fact in facts.items())
    return (
        f'<div class="swa-card" role="group" style="--own-light: {colour.light}; --own-dark: {colour.dark}" '
        f'aria-label="{html.escape(card.title)}"><div class="swa-head"><div>'
        f'<p class="swa-name">{html.escape(card.title)}</p><p class="swa-small">arXiv {card.arxiv}</p></div>'
        f"{picture(card.picture)}</div>{tex}<dl>{rows}</dl></div>"
    )
