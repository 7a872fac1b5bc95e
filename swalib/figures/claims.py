"""Does the claim hold under other assumptions? A table that the reader recomputes, and what it rests on."""

from __future__ import annotations

import html
from dataclasses import asdict

from swalib.figures.show import Figure
from swalib.figures.tables import StaticFigure
from swalib.reported import LABELS, PROVENANCE, TASKS
from swalib.reported.claims import CHANCE_PCT, FAIR, TOGGLES, Claim, Options, presets, recompute
from swalib.reported.pairs import QWQ, SWA, base_models, pairs

# The words of each toggle: its label, and what it says when off and when on.
_WORDS = {
    "same_teachers": ("teachers compared", "each method's own", "the same for both"),
    "source_teachers": ("teacher's score", "5-shot, as printed", "as its source has it"),
    "without_qwq": (QWQ, "kept", "dropped"),
    "source_cells": ("cells in doubt", "as printed", "from their source"),
    "above_chance": ("recovery", "plain", "above chance"),
    "six_tasks": ("tasks", "MMLU", "all six"),
    "mean_of_ratios": ("average of six", "ratio of averages", "mean of ratios"),
}
_COLOURS = {
    "SWA": "sinks",
    "LoLCATs": "lolcats",
    "Liger-GLA": "liger",
    **dict.fromkeys(("QRWKV6", "QRWKV7", "ARWKV"), "rwkv"),
}


def claim_calculator(*, caption: str, options: Options = FAIR) -> Figure:
    """The claim calculator, which recomputes in the page; without scripts, its table under `options`.

    The page's script computes from the rows that it is given, as `swalib.reported.claims.recompute` does.
    """
    claim = recompute(options=options)
    methods = dict.fromkeys(pair.method for pair in pairs() if pair.method != SWA)
    data = {
        "tasks": [LABELS[task] for task in TASKS],
        "chance": list(CHANCE_PCT),
        "toggles": [
            dict(zip(("name", "label", "off", "on"), (name, *_WORDS[name]), strict=True)) for name in TOGGLES
        ],
        "pairs": [pair.as_json() for pair in pairs()],
        "methods": {method: _COLOURS.get(method, "other") for method in methods},
        "base_models": list(base_models()),
        "presets": {name: asdict(one) for name, one in presets().items()},
        "initial": asdict(options),
        "swa": SWA,
        "qwq": QWQ,
        "provenance": f"Table 2, {PROVENANCE}",
    }
    return StaticFigure(
        id="claim-calculator",
        kind="claim-calculator",
        title="Does SWA beat linear attention, and under which assumptions?",
        data=data,
        alt=(
            "Recovery of each linear method beside SWA's, recomputed from the rows of Table 2 under the "
            f"assumptions chosen above. At the start: {_assumptions(options)}. {claim.sentence()}"
        ),
        caption=caption,
        static=f"<p>{html.escape(claim.sentence())}</p>{claim_table(claim)}",
    )


def claim_table(claim: Claim) -> str:
    """The claim's rows as HTML: method, pairs, its recovery, SWA's beside it, and SWA's lead, in percent."""
    heads = ("method", "pairs", "recovery, %", "SWA, %", "SWA's lead")
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row.method)}</th><td>{len(row.used)}</td>'
        f"<td>{_minus(row.mean_pct)}</td><td>{_minus(row.swa_pct)}</td><td>{_signed(row.lead)}</td></tr>"
        for row in claim.rows
    )
    told = f"<p>Assumed: {html.escape(_assumptions(claim.options))}.</p>"
    return (
        f'<div class="swa-scroll"><table class="swa-table"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{told}"
    )


def _assumptions(options: Options) -> str:
    said = [f"{label}: {on if getattr(options, name) else off}" for name, (label, off, on) in _WORDS.items()]
    left = len(base_models()) - len(options.base_models)
    return "; ".join(said) + (f"; without {left} of the teachers" if left else "")


def _minus(value: float) -> str:
    return f"{value:.1f}".replace("-", "−")


def _signed(points: float) -> str:
    """+1.2, −1.2, or 0.0 without a sign."""
    text = f"{abs(points):.1f}"
    return text if text == "0.0" else f"{'+' if points > 0 else '−'}{text}"
