"""What becomes of perplexity and memory when a text goes on far beyond the trained length?"""

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure

_NAMES = {"text": "text positions", "cache": "cache positions", "none": "no sinks"}
_COLUMNS = "model task window sinks positions start end ppl stderr n cache_bytes trained_tokens"


def stream(
    rows: pd.DataFrame,
    *,
    caption: str,
    id: str = "stream",
    title: str = "How long can a text go on?",
    window: int = 512,
) -> Figure:
    """Perplexity and cache memory along a long text: SWA under either kind of positions, or without sinks,
    and full attention.

    `rows` has a row for each bin of text positions, with the columns of `swalib.evals.stream.measure`, and
    one number of sinks besides 0. A row without a window is full attention, which may end earlier than the
    others. `window` is where the slider starts.

    Raises:
        ValueError: a column or the rows of full attention are missing, a bin stands twice, or more than one
            number of sinks.
    """
    shape.need(rows, _COLUMNS)
    counts = [int(count) for count in shape.slid(rows)["sinks"].unique() if count]
    if len(counts) != 1:
        raise ValueError(
            f"the table needs one number of sinks besides 0, and has {', '.join(map(str, counts)) or 'none'}."
        )
    sources = [_source(source, group) for source, group in shape.by_source(rows)]
    sliders = {**shape.sliders(rows, window, counts[0]), "sinks": counts}
    end = int(rows["end"].max())
    alt = (
        f"Two line charts over a text of {end:,} tokens. Above, perplexity by position: full attention, and "
        "for the chosen window SWA without sinks, and with sinks under text and under cache positions; a "
        "mark at the trained length. Below, bytes of the cache: full attention's grows with every token, "
        f"SWA's is flat. {' '.join(_ends(source) for source in sources)}"
    )
    data = {"sources": sources, **sliders}
    return Figure(id=id, kind="stream", title=title, data=data, alt=alt, caption=caption)


def _source(source: dict, group: pd.DataFrame) -> dict:
    curves: dict = {}
    for (window, sinks, positions), part in shape.slid(group).groupby(["window", "sinks", "positions"]):
        kind = str(positions) if sinks else "none"  # without sinks the two are one function
        curves.setdefault(str(int(window)), {})[kind] = _curve(source, part)
    whole = _curve(source, shape.full_rows(source, group))
    return {**source, "trained": int(group["trained_tokens"].iloc[0]), "full": whole, "curves": curves}


def _curve(source: dict, part: pd.DataFrame) -> dict:
    part = part.sort_values("end")
    if part["end"].duplicated().any():
        raise ValueError(f"{source['label']}: a bin stands more than once in the table.")
    return {
        "start": [int(start) for start in part["start"]],
        "end": [int(end) for end in part["end"]],
        "ppl": [shape.rounded(ppl) for ppl in part["ppl"]],
        "half": [shape.rounded(shape.Z95 * stderr) for stderr in part["stderr"]],
        "n": [int(n) for n in part["n"]],
        "bytes": [int(found) for found in part["cache_bytes"]],
    }


def _ends(source: dict) -> str:
    parts = [
        f"{_NAMES[kind]} at w = {window} {_first_and_last(curve)}"
        for window, kinds in source["curves"].items()
        for kind, curve in kinds.items()
    ]
    full = f"full attention {_first_and_last(source['full'])}"
    return f"{source['label']}, perplexity: {'; '.join([*parts, full])}."


def _first_and_last(curve: dict) -> str:
    return f"{curve['ppl'][0]:.3g} at first, {curve['ppl'][-1]:.3g} before token {curve['end'][-1]:,}"
