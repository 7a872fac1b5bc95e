"""Continuations and written answers in tables, words and figures."""

import math

import numpy as np
import pandas as pd
import pytest

from swalib import SWA, Full, figures, results
from swalib.evals import generation, generation_summary
from swalib.evals.generation_summary import binned, summary, words, written

SPECS = {(None, None): (0.2, 1.0), (8, 2): (0.7, 1.5), (8, 0): (0.9, 3.0)}
PIECES, TOKENS = 6, 32


def made_up() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and curves as `gather` returns them: pieces spread evenly around a mean."""
    rows, curves = [], []
    for (w, s), (repeated, loss) in SPECS.items():
        about = {"model": "m", "window": w or pd.NA, "sinks": pd.NA if w is None else s}
        for n, spread in enumerate(np.linspace(-0.05, 0.05, PIECES)):
            shared = TOKENS if w is None else 2 * n
            own = {
                "piece": n,
                "repetition": repeated + spread,
                "loss": loss + spread,
                "shared_tokens": shared,
            }
            rows.append(about | own)
        position = np.arange(TOKENS)
        curves.append(pd.DataFrame({"position": position, "loss": loss + position / TOKENS}).assign(**about))
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True)


ROWS, CURVES = made_up()
FOUND = summary(ROWS, draws=500)


def test_a_summary_holds_means_and_intervals_over_texts():
    assert FOUND["n"].tolist() == [PIECES] * 3
    assert FOUND["repetition"].tolist() == pytest.approx([0.2, 0.7, 0.9])
    assert FOUND["ppl"].tolist() == pytest.approx([math.exp(loss) for _, loss in SPECS.values()])
    assert (FOUND["repetition_low"] < FOUND["repetition"]).all()
    assert (FOUND["repetition_high"] - FOUND["repetition"] < 0.05).all()
    assert (FOUND["ppl_low"] < FOUND["ppl"]).all()
    assert FOUND["shared"].tolist() == [TOKENS, 5, 5]
    assert FOUND["shared_most"].tolist() == [TOKENS, 10, 10]


def test_bins_are_means_of_losses_before_the_exponential():
    table = binned(CURVES, 8)
    full = table[table["window"].isna()]
    assert full["position"].tolist() == [3.5, 11.5, 19.5, 27.5]
    assert full["ppl"].tolist() == pytest.approx(
        [math.exp(1 + middle / TOKENS) for middle in full["position"]]
    )
    assert len(table) == 12


@pytest.mark.parametrize(
    ("shift", "says"),
    [(0.0, "repeats itself more"), (-0.65, "repeats itself less"), (-0.49, "too alike to tell apart")],
)
def test_the_verdict_follows_the_intervals(shift, says):
    rows = ROWS.copy()
    rows.loc[rows["window"].notna(), "repetition"] += shift
    assert says in words(summary(rows, draws=500), "m", 8, 2)["verdict"]


def test_words_name_what_is_missing():
    told = words(FOUND, "m", 8, 2)
    assert told["full_repetition"].startswith("20 % (")
    assert told["repetition"].startswith("70 % (")
    assert told["full_ppl"].startswith("2.72 (")
    assert told["shared"] == "5"
    told = words(FOUND, "m", 16, 2)
    assert {told[name] for name in ("repetition", "ppl", "shared", "verdict")} == {"not measured yet"}
    assert words(FOUND, "other", 8, 2)["full_ppl"] == "not measured yet"


def test_looping_alike_is_no_praise_for_the_window():
    rows = ROWS.assign(
        repetition=0.9
        + ROWS["repetition"]
        - ROWS.groupby(["window", "sinks"], dropna=False)["repetition"].transform("mean")
    )
    assert "both loop" in words(summary(rows, draws=500), "m", 8, 2)["verdict"]


# ---- answers in writing.


def store(model: str, spec, right: list[bool], task: str = "gsm8k", n: int | None = None) -> None:
    cell = generation.Cell(model, spec, task, n=n or len(right))
    value = results.Value("right", float(np.mean(right)), "1", len(right))
    results.load_or_run(cell.config(), lambda: results.Measured([value]), "run")


def test_solved_items_no_signal_and_what_is_not_measured(results_folder):
    for model, full, slid in (
        ("tiny-llama", [True, True, False, False], [False] * 4),
        ("tiny-qwen2", [False] * 4, [False] * 4),
    ):
        store(model, Full(), full)
        store(model, SWA(8, 2), slid)
    store("tiny-llama", Full(), [True] * 8)
    table = written("stored", "tiny-llama", ["tiny-qwen2"], {"gsm8k": 4, "humaneval": 3}, [SWA(8, 2)])
    assert list(table["task"]) == ["GSM8K", "GSM8K", "HumanEval"], "nothing of the other model's is stored"
    llama, qwen, absent = table.to_dict("records")
    assert llama["full attention"].startswith("100 % (68 to 100)"), "the run with most items counts"
    assert llama["SWA(8, 2)"] == "0 % (0 to 49)"
    assert llama["n"] == "8 / 4"
    assert (qwen["full attention"], qwen["SWA(8, 2)"]) == ("0 of 4", "no signal")
    assert (absent["full attention"], absent["SWA(8, 2)"], absent["n"]) == (*["not measured yet"] * 2, "–")
    assert written("stored", "tiny-llama", [], {}, [SWA(8, 2)]).empty


def test_gaps_keep_full_attention_or_say_what_is_missing(results_folder, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(32 + (n * n * 7 + n // 3) % 95) for n in range(900)), encoding="utf-8")
    asked = {"text": str(path), "context_tokens": 24, "n": 2, "new_tokens": 8}
    generation.continuations("run", "tiny-llama", [SWA(8, 2)], **asked)
    rows, curves = generation_summary.gather(
        "stored", "tiny-llama", ["tiny-qwen2"], [SWA(8, 2), SWA(9, 2)], **asked
    )
    assert rows["window"].dropna().unique().tolist() == [8]
    assert len(curves) == 16
    with pytest.raises(results.MissingResult):
        generation_summary.gather("stored", "tiny-qwen2", [], [SWA(8, 2)], **asked)
    with pytest.raises(results.MissingResult):
        generation.continuations("stored", "tiny-llama", [SWA(9, 2)], **asked)


# ---- the figure.


def test_the_figure_holds_every_line_and_row():
    figure = figures.continuations(binned(CURVES, 8), FOUND, caption="c", command="x", window=8, sinks=2)
    assert set(figure.data["lines"]) == {"m|full", "m|8,2", "m|8,0"}
    assert figure.data["lines"]["m|8,2"]["y"][0] == pytest.approx(math.exp(1.5 + 3.5 / TOKENS), rel=1e-4)
    assert [row["label"] for row in figure.data["rows"]] == ["full attention", "SWA(8, 0)", "SWA(8, 2)"]
    assert figure.data["rows"][2]["repetition"][0] == pytest.approx(70)
    assert "SWA(8, 2): repeats 70 %, perplexity 4.48" in figure.alt
    with pytest.raises(ValueError, match="repetition"):
        figures.continuations(binned(CURVES), FOUND.drop(columns="repetition"), caption="c", command="x")
