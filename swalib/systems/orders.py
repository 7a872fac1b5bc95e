"""Do the paper's printed orders of speed and memory hold where we measured? One line a claim."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

FLAT = 1.25  # time at the longest contexts over that at the shortest, up to which a line counts as flat

# The paper's Figures 2 and 3 print these orders, and no number that could be compared.
SPEED = ("swa_narrow", "swa_wide"), ("swa_wide", "linear"), ("swa_wide", "lolcats")
MEMORY = ("swa_narrow", "linear"), ("linear", "lolcats"), ("lolcats", "swa_wide"), ("swa_wide", "full")
NAMES = {
    "swa_narrow": "SWA({narrow})",
    "swa_wide": "SWA({wide})",
    "linear": "linear",
    "lolcats": "LoLCATs",
    "full": "full",
}


@dataclass(frozen=True)
class Chosen:
    """Which kinds stand for the paper's: SWA at two windows; the features of linear attention and of LoLCATs,
    and the window of the latter."""

    narrow: int = 64
    wide: int = 512
    features: int = 128
    hybrid_window: int = 256

    def pick(self, rows: pd.DataFrame, name: str) -> pd.DataFrame:
        """The rows of one of `NAMES`."""
        wanted = {
            "swa_narrow": ("swa", self.narrow, np.nan),
            "swa_wide": ("swa", self.wide, np.nan),
            "linear": ("hedgehog", np.nan, self.features),
            "lolcats": ("lolcats", self.hybrid_window, self.features),
            "full": ("full", np.nan, np.nan),
        }[name]
        chosen = rows["method"] == wanted[0]
        for column, value in zip(("window", "features"), wanted[1:], strict=True):
            chosen &= np.isnan(value) | (rows[column] == value)
        return rows[chosen]

    def name(self, name: str) -> str:
        return NAMES[name].format(narrow=self.narrow, wide=self.wide)


def table(rows: pd.DataFrame, context_tokens: int, chosen: Chosen) -> pd.DataFrame:
    """The printed orders beside what one machine measured, batch 1.

    Args:
        rows: of `table.measure`, of one machine and dtype, at one width.
        context_tokens: where memories are compared. Speeds are medians over all contexts, since these kinds
            do the same work at each.

    Returns:
        Columns what, printed, here (the numbers), holds: "yes", "no", or "can't tell" where the quartiles,
        over contexts, of the two times overlap.
    """
    alone = rows[(rows["batch"] == 1) & rows["fits"] & (rows["task"] == "decode")]
    here = alone[alone["context_tokens"] == context_tokens]
    lines = [_faster(alone, *pair, chosen) for pair in SPEED]
    lines += [_flat(chosen.pick(alone, name), chosen.name(name)) for name in list(NAMES)[:4]]
    lines.append(_falls(chosen.pick(alone, "full")))
    lines += [_smaller(here, *pair, chosen) for pair in MEMORY]
    return pd.DataFrame(lines, columns=["what", "printed", "here", "holds"])


def _faster(alone: pd.DataFrame, first: str, second: str, chosen: Chosen) -> tuple[str, ...]:
    a, b = (chosen.pick(alone, name)["step_ms"].quantile([0.25, 0.5, 0.75]) for name in (first, second))
    told = "yes" if a[0.75] < b[0.25] else "no" if b[0.75] < a[0.25] else "can't tell"
    printed = f"{chosen.name(first)} > {chosen.name(second)}"
    return "tokens/s", printed, f"{1000 / a[0.5]:.1f}, {1000 / b[0.5]:.1f}", told


def _flat(line: pd.DataFrame, name: str) -> tuple[str, ...]:
    times = line.sort_values("context_tokens")["step_ms"]
    part = max(1, len(times) // 3)
    ratio = times.iloc[-part:].mean() / times.iloc[:part].mean()
    told = f"last / first contexts: {ratio:.2f}×"
    return "tokens/s", f"{name} is flat", told, "yes" if 1 / FLAT <= ratio <= FLAT else "no"


def _falls(line: pd.DataFrame) -> tuple[str, ...]:
    times = line.sort_values("context_tokens").set_index("context_tokens")["step_ms"]
    early, last = times[times.index <= 1024].iloc[-1], times.iloc[-1]
    told = f"{early:.0f} ms at {times.index[times.index <= 1024][-1]:,}, {last:.0f} ms at {times.index[-1]:,}"
    falls = last > FLAT * early
    return "tokens/s", "full falls beyond 1K", told, "yes" if falls else "no"


def _smaller(here: pd.DataFrame, first: str, second: str, chosen: Chosen) -> tuple[str, ...]:
    a, b = (chosen.pick(here, name)["state_bytes"].iloc[0] / 1e6 for name in (first, second))
    printed = f"{chosen.name(first)} < {chosen.name(second)}"
    return "state (MB)", printed, f"{a:.2f}, {b:.2f}", "yes" if a < b else "no"


def numbers(rows: pd.DataFrame, floors: pd.DataFrame, chosen: Chosen) -> dict[str, float]:
    """What there is to say of one machine's measurements at one width and batch 1.

    Args:
        rows: as in `table`. floors: of `swalib.systems.grids.floors`, at all widths.

    Returns:
        For each of `NAMES`: `<name>_first_ms` and `<name>_last_ms`, at the shortest and the longest context;
        `<name>_mb`, its state at the longest; `<name>_ops`. `full_over_swa`: the ratio of times there.
        `growing_over_full`: of a cache that grows by copying to one that does not, at `growing_context`.
        `spread`: slowest over fastest context of SWA at its narrow window, which does the same work at each.
        `reached`, `bytes_ms`, `launch_ms`: of SWA at its narrow window and the longest context.
        `narrowest`, `narrowest_ms`, `widest`, `widest_ms`: of it at the smallest and the largest D.
    """
    alone, found = rows[(rows["batch"] == 1) & rows["fits"] & (rows["task"] == "decode")], {}
    for name in NAMES:
        part = chosen.pick(alone, name).sort_values("context_tokens")
        first, last = part.iloc[0], part.iloc[-1]
        found |= {f"{name}_first_ms": first["step_ms"], f"{name}_last_ms": last["step_ms"]}
        found |= {f"{name}_mb": last["state_bytes"] / 1e6, f"{name}_ops": last["ops"]}
    same_work = chosen.pick(alone, "swa_narrow")["step_ms"]
    found["spread"] = same_work.max() / same_work.min()
    found["full_over_swa"] = found["full_last_ms"] / found["swa_narrow_last_ms"]
    growing = alone[alone["method"] == "full_growing"].set_index("context_tokens")["step_ms"]
    same = chosen.pick(alone, "full").set_index("context_tokens")["step_ms"].reindex(growing.index)
    found["growing_over_full"] = (growing / same).loc[growing.index.max()]
    found["growing_context"] = growing.index.max()
    narrow = chosen.pick(floors[floors["batch"] == 1], "swa_narrow")
    own = narrow[narrow["hidden"] == rows["hidden"].iloc[0]].sort_values("context_tokens").iloc[-1]
    found |= {name: own[name] for name in ("reached", "bytes_ms", "launch_ms")}
    for name, at in (("narrowest", narrow["hidden"].min()), ("widest", narrow["hidden"].max())):
        found |= {name: at, f"{name}_ms": narrow.loc[narrow["hidden"] == at, "step_ms"].iloc[0]}
    return {name: float(value) for name, value in found.items()}
