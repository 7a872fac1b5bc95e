"""How does a tidy table become the data block of a figure? Checks and reshaping; no number is computed.

In every table a row without a `window` (NaN or None) is full attention; any other row is SWA(window, sinks).
A missing value (NaN) is a cell not measured yet.
"""

import pandas as pd

Z95 = 1.96


def need(rows: pd.DataFrame, columns: str) -> None:
    """Raise ValueError unless `rows` has some rows and all of the space-separated `columns`."""
    if missing := [column for column in columns.split() if column not in rows.columns]:
        have = ", ".join(map(str, rows.columns))
        raise ValueError(f"the table lacks the column(s) {', '.join(missing)}; it has {have}.")
    if rows.empty:
        raise ValueError("the table has no rows: measure them first.")


def by_source(rows: pd.DataFrame) -> list[tuple[dict, pd.DataFrame]]:
    """The table split by model and task (text), each with the id and label of its entry in the selector."""
    groups = rows.groupby(["model", "task"], sort=False)
    return [
        ({"id": f"{model}|{task}", "label": f"{model}, {task}"}, group) for (model, task), group in groups
    ]


def slid(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a window."""
    return rows[rows["window"].notna()]


def key(window: float, sinks: float) -> str:
    """How a data block names SWA(window, sinks)."""
    return f"{int(window)},{int(sinks)}"


def sliders(rows: pd.DataFrame, window: int, sinks: int) -> dict:
    """The values of both sliders, and where they start: at `window` and `sinks` where the table has them."""
    if slid(rows).empty:
        raise ValueError("the table has no row with a window, only full attention.")
    windows, counts = (
        sorted(int(value) for value in slid(rows)[name].unique()) for name in ("window", "sinks")
    )
    start = {
        "window": window if window in windows else windows[0],
        "sinks": sinks if sinks in counts else counts[-1],
    }
    return {"windows": windows, "sinks": counts, "initial": start}


def rounded(value: float) -> float | None:
    """Five significant digits, more than any picture shows; None for NaN."""
    return None if pd.isna(value) else float(f"{value:.5g}")


def losses(curve: pd.DataFrame) -> list[float | None]:
    """The losses of one curve, in nats."""
    return [rounded(loss) for loss in curve["loss"]]


def cell(row: dict) -> dict:
    """One measured perplexity with half its 95 % interval, or the command that would measure it."""
    entry = {"ppl": rounded(row["ppl"]), "n": None if pd.isna(row["n"]) else int(row["n"])}
    if entry["ppl"] is not None:
        return {**entry, "half": rounded(Z95 * row["stderr"])}
    if not isinstance(row.get("command"), str):
        raise ValueError(
            f"SWA({row['window']}, {row['sinks']}) has no ppl and no command that would measure it."
        )
    return {**entry, "command": row["command"]}


def cells(rows: pd.DataFrame) -> dict[str, dict]:
    """All measured perplexities by "window,sinks"; ValueError where two rows claim the same cell."""
    table = {}
    for row in slid(rows).to_dict("records"):
        name = key(row["window"], row["sinks"])
        if name in table:
            raise ValueError(f"more than one row for (window, sinks) = ({name}): choose one before drawing.")
        table[name] = cell(row)
    return table


def full_rows(source: dict, group: pd.DataFrame) -> pd.DataFrame:
    """The rows of full attention; ValueError where there is none."""
    full = group[group["window"].isna()]
    if full.empty:
        raise ValueError(f"{source['label']} has no row for full attention (a row without a window).")
    return full


def full(source: dict, group: pd.DataFrame) -> dict:
    """The perplexity of full attention; ValueError unless exactly one row holds it."""
    found = full_rows(source, group)
    if len(found) > 1:
        raise ValueError(
            f"{source['label']} has {len(found)} rows for full attention: choose one before drawing."
        )
    return cell(found.to_dict("records")[0])


def curves(source: dict, group: pd.DataFrame) -> dict:
    """Loss curves over shared positions; ValueError where a curve has positions of its own."""
    whole = full_rows(source, group).sort_values("position")
    positions, by_spec = whole["position"].tolist(), {}
    for (window, sinks), curve in slid(group).groupby(["window", "sinks"]):
        curve = curve.sort_values("position")
        if curve["position"].tolist() != positions:
            spec = f"SWA({window:g}, {sinks:g})"
            raise ValueError(f"{source['label']}: {spec} is not measured at full attention's positions.")
        by_spec[key(window, sinks)] = losses(curve)
    return {**source, "position": positions, "full": losses(whole), "curves": by_spec}


def variant_key(row: dict) -> tuple:
    """What a row of the prefill tables is about: model, task, variant and (window, sinks) if any."""
    spec = None if pd.isna(row["window"]) else key(row["window"], row["sinks"])
    return row["model"], row["task"], row["variant"], spec


def variants(group: pd.DataFrame, perplexities: dict[tuple, dict]) -> list[dict]:
    """Loss curves by variant, each with its perplexity; ValueError where a variant has none."""
    found = []
    for _, curve in group.groupby(["variant", "window", "sinks"], sort=False, dropna=False):
        curve = curve.sort_values("position")
        about = variant_key(curve.iloc[0].to_dict())
        if about not in perplexities:
            raise ValueError(f"no perplexity for {', '.join(map(str, about))}.")
        entry = {"variant": about[2], "key": about[3], "position": curve["position"].tolist()}
        found.append({**entry, "loss": losses(curve), **perplexities[about]})
    return found


def masses(model: str, group: pd.DataFrame) -> dict:
    """Attention mass as layer × head grids by how many first tokens are counted."""
    grids, uniform = {}, {}
    for counted, part in group.groupby("sinks_counted"):
        grid = part.pivot(index="layer", columns="head", values="mass")
        grids[str(counted)] = [[rounded(value) for value in row] for row in grid.to_numpy()]
        uniform[str(counted)] = rounded(part["uniform"].mean())
    axes = {"layers": [int(layer) for layer in grid.index], "heads": [int(head) for head in grid.columns]}
    return {"id": model, "label": model, **axes, "mass": grids, "uniform": uniform}
