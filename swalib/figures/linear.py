"""What does a linear state hold, what does a feature map weigh, what does each method's mask show?"""

import pandas as pd

from swalib.figures import rows as shape
from swalib.figures.show import Figure

# mechanism -> colour, marker and its sign in text, short name, and the groups it is shown in
_MECHANISMS = {
    "identity": ("other", "circle", "●", "plain", ("maps", "updates")),
    "elu_plus_one": ("other", "square", "■", "ELU + 1", ("maps",)),
    "dijiang": ("other", "x", "✕", "DiJiang", ("maps",)),
    "softmax": ("liger", "diamond", "◆", "softmax", ("maps",)),
    "hedgehog": ("lolcats", "triangle-up", "▲", "Hedgehog", ("maps",)),
    "scalar_decay": ("other", "square", "■", "scalar", ("updates",)),
    "diagonal_decay": ("gla", "diamond", "◆", "diagonal", ("updates",)),
    "delta_rule": ("gated_deltanet", "triangle-up", "▲", "delta", ("updates",)),
    "gated_delta": ("gated_deltanet", "triangle-down", "▼", "gated delta", ("updates",)),
    "rwkv7": ("rwkv", "x", "✕", "RWKV-7", ("updates",)),
}
_RULES = {
    "plain": ("other", "circle", "●", "plain"),
    "scalar": ("other", "square", "■", "scalar"),
    "diagonal": ("gla", "diamond", "◆", "diagonal"),
    "delta": ("gated_deltanet", "triangle-up", "▲", "delta"),
}
_MAPS = {"softmax": "liger", "hedgehog": "lolcats", "hedgehog_orthonormal": "lolcats"}
_LOOK = ("method", "symbol", "sign", "short")


def linear_state(states: dict, *, caption: str, rule: str = "plain", token: int = 5) -> Figure:
    """The state of a linear attention, token by token, under four rules.

    Args:
        states: as `swalib.evals.anatomy.states` returns them.
        rule, token: where the controls start.

    Raises:
        ValueError: a rule without a colour, or one that isn't there to start with.
    """
    if unknown := sorted(({rule} - set(states["rules"])) | (set(states["rules"]) - set(_RULES))):
        raise ValueError(f"no rule is called {unknown[0]!r}: choose from {', '.join(_RULES)}.")
    looks = {name: dict(zip(_LOOK, _RULES[name], strict=True)) for name in states["rules"]}
    rules = {name: {**states["rules"][name], **looks[name]} for name in looks}
    size, text = len(states["k"][0]), " ".join(states["tokens"])
    ends = [f"{found['label']} {found['cosine'][-1][0]:.2f}" for found in states["rules"].values()]
    asked = states["letters"][0]
    return Figure(
        id="linear-state",
        kind="linear-state",
        title="What does a state remember?",
        data={**states, "rules": rules, "initial": {"rule": rule, "asked": asked, "token": token}},
        alt=(
            f"A heat map of a state of {size} by {size} numbers after each of the tokens {text}, each of "
            "which writes a value under the key of its letter: the token's key at the left, its value on "
            "top, below it what is read with the key asked for and the value wanted. Beside it, by token, "
            f"the cosine of the two under four rules. In the end, asking for {asked}: {', '.join(ends)}."
        ),
        caption=caption,
    )


def recall(
    rows: pd.DataFrame,
    ages: pd.DataFrame,
    *,
    caption: str,
    head_dim: int = 64,
    factor: int = 1,
    pairs: int = 128,
) -> Figure:
    """Recall against the number of pairs, and by a pair's place in the text, at equal bytes.

    Args:
        rows, ages: as `swalib.evals.recall.measure` returns them.
        head_dim, factor, pairs: where the controls start, if they were measured.

    Raises:
        ValueError: a column is missing, or a mechanism has no colour.
    """
    shape.need(rows, "mechanism label setting keys head_dim factor window state_bytes pairs recall stderr n")
    shape.need(ages, "mechanism keys head_dim factor pairs age recall")
    mechanisms = _mechanisms(rows)
    lists = {
        name: sorted(int(value) for value in rows[name].dropna().unique())
        for name in ("head_dim", "factor", "pairs")
    }
    start = {"head_dim": head_dim, "factor": factor, "pairs": pairs}
    start = {name: value if value in lists[name] else lists[name][0] for name, value in start.items()}
    curves = {_cell(part.iloc[0]): _curve(part) for _, part in _by_cell(rows)}
    for _, part in _by_cell(ages):
        curves[_cell(part.iloc[0])]["by_place"] = {
            str(count): [shape.rounded(value) for value in one["recall"]]
            for count, one in part.groupby("pairs")
        }
    data = {"mechanisms": mechanisms, "keys": rows["keys"].unique().tolist(), **lists}
    return Figure(
        id="recall",
        kind="recall",
        title="How many pairs can be asked for again, at equal bytes?",
        data={**data, "initial": start, "curves": curves},
        alt=_recall_alt(rows, start),
        caption=caption,
    )


def _mechanisms(rows: pd.DataFrame) -> list[dict]:
    words = rows.drop_duplicates("mechanism").set_index("mechanism")
    names = [name for name in words.index if name not in ("full", "swa")]
    if unknown := [name for name in names if name not in _MECHANISMS]:
        raise ValueError(f"no colour is known for the mechanism {unknown[0]!r}.")
    return [
        {"name": name, "label": words.loc[name, "label"], "setting": words.loc[name, "setting"]}
        | dict(zip((*_LOOK, "groups"), _MECHANISMS[name], strict=True))
        for name in _MECHANISMS
        if name in names
    ]


def _by_cell(rows: pd.DataFrame):
    return rows.groupby(["mechanism", "keys", "head_dim", "factor"], sort=False, dropna=False)


def _cell(row: pd.Series) -> str:
    factor = "" if pd.isna(row["factor"]) else int(row["factor"])
    return f"{row['mechanism']}{factor}|{row['head_dim']}|{row['keys']}"


def _curve(part: pd.DataFrame) -> dict:
    part = part.sort_values("pairs")
    window = part["window"].iloc[0]
    return {
        "recall": [shape.rounded(value) for value in part["recall"]],
        "half": [0 if pd.isna(error) else shape.rounded(shape.Z95 * error) for error in part["stderr"]],
        "n": [int(n) for n in part["n"]],
        "bytes": int(part["state_bytes"].iloc[0]),
        "window": None if pd.isna(window) else int(window),
        "label": part["label"].iloc[0],
    }


def _recall_alt(rows: pd.DataFrame, start: dict) -> str:
    here = rows[(rows["head_dim"] == start["head_dim"]) & (rows["pairs"] == start["pairs"])]
    here = here[here["factor"].isna() | (here["factor"] == start["factor"])]
    told = [
        f"With {kind} keys: "
        + ", ".join(f"{one.label} {one.recall:.0%}" for one in here[here["keys"] == kind].itertuples())
        for kind in rows["keys"].unique()
    ]
    return (
        "Two line charts. Above, the share of pairs recalled against the number of pairs written, for full "
        "attention, SWA, the linear mechanisms and chance; every curve but full attention's falls. Below, "
        "the same share by a pair's place in the text: a window's is 1 for its sinks and its latest pairs "
        f"and 0 between. At head size {start['head_dim']} and {start['pairs']} pairs. {'. '.join(told)}."
    )


def feature_maps(kernels: pd.DataFrame, *, caption: str, logit: int = 8) -> Figure:
    """The weight each feature map gives a key by its angle to the query, beside softmax attention's exp.

    Args:
        kernels: as `swalib.evals.anatomy.kernels` returns them.
        logit: where the slider starts.

    Raises:
        ValueError: a column is missing.
    """
    shape.need(kernels, "map label logit cosine low middle high")
    logits = sorted(int(value) for value in kernels["logit"].unique())
    panels = []
    for name, part in kernels.groupby("map", sort=False):
        by_logit = {
            str(value): {level: [shape.rounded(x) for x in one[level]] for level in ("low", "middle", "high")}
            for value, one in part.groupby("logit")
        }
        label, method = part["label"].iloc[0], _MAPS.get(str(name), "other")
        panels.append({"name": name, "label": label, "method": method, "by_logit": by_logit})
    cosine = [shape.rounded(x) for x in sorted(kernels["cosine"].unique())]
    first = logit if logit in logits else logits[0]
    square = kernels[(kernels["cosine"].abs() < 1e-9) & (kernels["logit"] == first)]
    told = ", ".join(f"{one.label} {max(one.middle, 0):.2f}" for one in square.itertuples())
    return Figure(
        id="feature-maps",
        kind="feature-maps",
        title="How much weight does a key get that does not match?",
        data={"cosine": cosine, "logits": logits, "panels": panels, "initial": {"logit": first}},
        alt=(
            f"{len(panels)} small charts, one a feature map: the weight of a key against its cosine with the "
            "query, 1 for a key equal to the query, with a band over random draws, and the exponential of "
            f"softmax attention behind it. At logit {first} a key at a right angle gets: {told}."
        ),
        caption=caption,
    )


def effective_masks(length: int = 32) -> Figure:
    """Which keys a query sees exactly and which only through a state, in six kinds of method (its Figure 1).

    Args:
        length: tokens of the text; at least 2.

    Raises:
        ValueError: length is below 2.
    """
    if length < 2:
        raise ValueError(f"length must be at least 2, got {length}.")
    windows = [1 << power for power in range((length - 1).bit_length() + 1)]
    return Figure(
        id="effective-masks",
        kind="effective-masks",
        title="What does a query see exactly, and what only through a state?",
        data={
            "length": length,
            "windows": windows,
            "sinks": [0, 1, 2, 4, 8],
            "initial": {"window": min(8, windows[-1]), "sinks": 2},
        },
        alt=(
            f"Six squares of {length} queries by {length} keys. Full attention: the whole triangle exactly. "
            "Pure linear: the whole triangle through the state. LoLCATs, sliding: a band of w exactly, the "
            "rest through the state. LoLCATs, terraced: blocks of w and the one before exactly, the rest "
            "through the state. Liger: a band of w both ways, the rest through the state. SWA: a band of w − "
            "s and a column of s sinks exactly, the rest not at all."
        ),
        caption=(
            "Hybrids and SWA share the exact band; they differ in what lies behind it: a fixed-size state "
            "that has to be trained, or nothing but s sinks. The published hybrids have no sinks, so s moves "
            "SWA alone. LoLCATs' terraces (the released default) show w + 1 to 2w keys exactly."
        ),
    )
