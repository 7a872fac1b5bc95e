"""What `benchmarks/students.py` has timed, as a table."""

from __future__ import annotations

import pandas as pd

from swalib import results

NAMES = {
    "prefill": ("chunked prefill", "full"),
    "decode": ("decode, one token", "full"),
    "native": ("decode, s = 0", "native_sliding"),
}
CONTENDERS = {"full": "full attention, its own cache", "native_sliding": "transformers' sliding cache"}


def table(mode: str) -> pd.DataFrame:
    """One line a comparison, by what was timed: context, milliseconds under SWA and of the other, ratio.

    Empty in any other mode than "stored": timings are never taken inside a notebook.

    Raises:
        MissingResult: nothing is stored.
    """
    if mode != "stored":
        return pd.DataFrame()
    lines = []
    try:
        stored = results.read("speed")
    except results.MissingResult:
        command = "OMP_NUM_THREADS=1 python benchmarks/students.py"
        raise results.MissingResult(f"no timing is stored; measure with: {command}") from None
    runs = stored.groupby(["task", "context_tokens", "run_key"], sort=False)
    for (task, context, _), run in runs:
        values = run.set_index("metric")["value"]
        what, contender = NAMES[task]
        other = values.get(f"{contender}_ms")
        lines.append(
            {
                "what": what,
                "context (tokens)": f"{context:,}",
                "SWA (ms)": f"{values['swa_ms']:,.0f}",
                "against": CONTENDERS[contender] if other else "not timed",
                "(ms)": f"{other:,.0f}" if other else "",
                "ratio": f"{other / values['swa_ms']:.2f}×" if other else "",
            }
        )
    return pd.DataFrame(lines).set_index("what").rename_axis(None)
