"""In a real browser: the six tasks' figures draw what the tables say, whatever is chosen."""

import numpy as np
import pytest
import short_small
from browser import Opened, open_page, write_page
from short_small import WINDOWS

from swalib import figures
from swalib.evals import short_items, short_summary, variants

pytestmark = pytest.mark.browser

ITEMS = short_small.items()
FOUND = short_summary.summarise(ITEMS, draws=500)
SHARE = short_summary.bound(ITEMS, WINDOWS)
SIGNAL = "tasks with a signal, averaged"
APART = short_summary.apart(ITEMS, draws=200)


def effects():
    """Made-up effects of two settings; the others are not measured."""
    table = variants.effects(ITEMS.iloc[:0].assign(variant=""))
    names = ["n", "score", "difference", "low", "high", "changed", "moved"]
    table.loc[2, names] = [300, 0.5, -0.02, -0.05, 0.01, 0.04, 0.37]
    table.loc[3, names] = [300, 0.45, 0.03, 0.01, 0.06, 0.08, 0.91]
    return table


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    words = {"caption": "c", "command": short_items.command}
    drawn = [
        figures.short_scores(FOUND.teachers, FOUND.rows, short_small.perplexities(), **words),
        figures.short_lengths(short_summary.lengths(ITEMS, WINDOWS), SHARE, APART, **words),
        figures.short_variants(effects(), caption="c", command=variants.COMMAND),
    ]
    return write_page(tmp_path_factory.mktemp("short"), drawn)


@pytest.fixture(scope="module")
def opened(page):
    with open_page(page) as opened:
        assert opened.wait_drawn() == 3
        yield opened


def choose(opened: Opened, id: str, name: str, text: str) -> None:
    opened.page.select_option(f"#{id}-{name}", label=text)
    opened.state(id)


def drawn(opened: Opened, id: str = "short-scores") -> dict[str, list]:
    return {trace["name"]: trace["y"] for trace in opened.traces(id)}


def expected(task: str, shots: int, sinks: int, measure: str, model: str = "m1") -> list[float | None]:
    windows = [w for w in WINDOWS if w > sinks]
    values = [FOUND.of(model, task, shots, w, sinks, measure).value for w in windows]
    return [None if np.isnan(value) else pytest.approx(100 * value, rel=1e-4) for value in values]


def said(opened: Opened, id: str) -> str:
    return opened.page.text_content(f"#{id} .swa-says").replace("\u00a0", " ")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_figure_is_drawn_quietly_and_fits(page, width, dark):
    with open_page(page, width=width, dark=dark) as opened:
        assert opened.wait_drawn() == 3
        opened.assert_quiet()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("task", "label", "shots", "measure", "words"),
    [
        ("arc_easy", "ARC-E", 0, "agreement", "agreement with full attention's choice"),
        ("piqa", "PIQA", 5, "recovery", "recovery (student / full attention)"),
        ("average6", "six tasks, averaged as in the paper", 5, "score", "score"),
        (
            "signal_average",
            "tasks with a signal, averaged",
            5,
            "recovery_above_chance",
            "recovery above chance",
        ),
    ],
)
def test_the_curves_are_the_rows_chosen(opened, task, label, shots, measure, words):
    choose(opened, "short-scores", "task", label)
    choose(opened, "short-scores", "shots", "5 examples" if shots else "no examples")
    choose(opened, "short-scores", "measure", words)
    for sinks in (4, 1):
        opened.slide("short-scores", "sinks", sinks)
        found = drawn(opened)
        assert found["no sinks"] == expected(task, shots, 0, measure)
        assert found["4 sinks" if sinks == 4 else "1 sink"] == expected(task, shots, sinks, measure)
    opened.assert_quiet()


def test_full_attention_and_chance_stand_where_they_belong(opened):
    choose(opened, "short-scores", "task", "ARC-E")
    choose(opened, "short-scores", "shots", "5 examples")
    choose(opened, "short-scores", "measure", "score")
    teacher = 100 * FOUND.teacher("m1", "arc_easy", 5).value
    found = drawn(opened)
    assert found["full attention"] == [pytest.approx(teacher, rel=1e-4)] * 2
    assert found["chance"] == [25, 25]
    choose(opened, "short-scores", "measure", "recovery (student / full attention)")
    found = drawn(opened)
    assert found["guessing"] == [pytest.approx(2500 / teacher, rel=1e-4)] * 2
    assert found["full attention"] == [100, 100]


def test_no_signal_is_said_and_no_percentage_is_drawn(opened):
    choose(opened, "short-scores", "task", "MMLU")
    choose(opened, "short-scores", "measure", "recovery above chance")
    found = drawn(opened)
    assert found["no sinks"] == [None] * 3
    assert "full attention" not in found
    notes = opened.page.evaluate(
        "document.getElementById('short-scores').__swa.plot.layout.annotations.map((one) => one.text)"
    )
    assert any(note.startswith("no signal: full attention scores") for note in notes)
    assert "there is no signal" in said(opened, "short-scores")
    choose(opened, "short-scores", "measure", "score")
    assert all(value is not None for value in drawn(opened)["no sinks"])


def test_what_is_not_measured_is_a_cross_with_its_command(opened):
    choose(opened, "short-scores", "task", "PIQA")
    choose(opened, "short-scores", "shots", "5 examples")
    opened.slide("short-scores", "sinks", 0)
    opened.slide("short-scores", "window", 256)
    crosses = [trace for trace in opened.traces("short-scores") if trace["name"] == "not measured yet"]
    assert crosses[0]["x"] == [256]
    command = "swa measure short -p model m1 -p shots '[5]' -p windows '[256]' -p sinks '[0]'"
    assert command in said(opened, "short-scores")
    opened.slide("short-scores", "window", 64)
    assert "not measured yet" not in said(opened, "short-scores")


def test_another_model_and_its_gaps(opened):
    choose(opened, "short-scores", "task", "WinoGrande")
    choose(opened, "short-scores", "model", "m2")
    assert "m2, WinoGrande, 5 examples: not measured yet" in said(opened, "short-scores")
    choose(opened, "short-scores", "task", "ARC-E")
    opened.slide("short-scores", "sinks", 4)
    assert drawn(opened)["4 sinks"] == expected("arc_easy", 5, 4, "score", "m2")
    assert not any((name or "").startswith("perplexity, full") for name in drawn(opened))
    choose(opened, "short-scores", "model", "m1")
    assert opened.state("short-lengths")["model"] == "m1"


def test_perplexity_stands_on_the_same_axis(opened):
    table = short_small.perplexities()
    opened.slide("short-scores", "sinks", 4)
    rows = table[table["sinks"] == 4]
    assert drawn(opened)["perplexity, 4 sinks"] == [pytest.approx(ppl) for ppl in rows["ppl"]]
    axes = opened.page.evaluate(
        "(({ xaxis, yaxis, yaxis2 }) => [xaxis.anchor, yaxis.domain, yaxis2.domain])"
        "(document.getElementById('short-scores').__swa.plot.layout)"
    )
    assert axes[0] == "y2"
    assert axes[1][0] > axes[2][1]


def test_axes_stay_while_sliders_move(opened):
    seen = set()
    for window in WINDOWS:
        opened.slide("short-scores", "window", window)
        opened.state("short-lengths")
        script = "({ xaxis, yaxis }) => [xaxis.range, yaxis.range]"
        ids = ["short-scores", "short-lengths"]
        read = f"ids => ids.map((id) => ({script})(document.getElementById(id).__swa.plot.layout))"
        seen.add(str(opened.page.evaluate(read, ids)))
    assert len(seen) == 1


@pytest.mark.parametrize(("window", "shots"), [(16, 0), (64, 0), (256, 5)])
def test_the_items_longer_than_w_are_coloured_and_counted(opened, window, shots):
    choose(opened, "short-lengths", "task", "HellaSwag")
    choose(opened, "short-lengths", "shots", "5 examples" if shots else "no examples")
    opened.slide("short-lengths", "window", window)
    opened.slide("short-lengths", "sinks", 4)
    about = "model == 'm1' and task == 'hellaswag' and shots == @shots and window == @window"
    row = SHARE.query(about).iloc[0]
    assert f"{row['bound']} of {row['n']}" in said(opened, "short-lengths")
    bars = opened.page.evaluate(
        "(({ y, marker }) => ({ y, colours: marker.color }))"
        "(document.getElementById('short-lengths').__swa.plot.data[0])"
    )
    blue = sum(y for y, colour in zip(bars["y"], bars["colours"], strict=True) if colour == "#0072B2")
    assert blue == row["bound"]
    cells = opened.page.eval_on_selector_all(
        "#short-lengths tbody tr",
        "all => all.map((one) => [...one.children].map((cell) => cell.textContent))",
    )
    for line, longer in zip(cells, (True, False), strict=True):
        part = APART.query(f"{about} and sinks == 4 and longer == @longer")
        if part.empty:
            assert line[1:] == ["0", "", "no items", ""]
            continue
        one = part.iloc[0]
        assert line[1:4] == [f"{one['n']}", f"{100 * one['teacher']:.1f} %", f"{100 * one['student']:.1f} %"]
        assert (line[4] == "0 by definition") != longer


def test_the_settings_are_drawn_where_measured_and_named_where_not(opened):
    traces = opened.traces("short-variants")
    assert [(one["name"], one["x"]) for one in traces] == [
        ("full attention", [pytest.approx(-2)]),
        ("SWA(64, 4)", [pytest.approx(3)]),
    ]
    assert "Not measured yet: 10 of 12 lines. swa measure variants" in said(opened, "short-variants")
    assert opened.page.locator("#short-variants tbody tr").count() == 12


def test_sliders_work_by_keyboard_alone(opened):
    opened.page.focus("#short-scores-window")
    opened.page.keyboard.press("Home")
    assert opened.state("short-scores")["window"] == 16
    opened.page.keyboard.press("End")
    assert opened.state("short-scores")["window"] == 256
    assert opened.page.get_attribute("#short-scores-window", "aria-valuetext").startswith("w = 256")
