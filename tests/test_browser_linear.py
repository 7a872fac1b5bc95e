"""Linear attention in a real browser: what is drawn is what was computed, wherever the controls stand."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from browser import Opened, open_page, write_page

from swalib import SWA, Full, figures, masks
from swalib.evals import anatomy, recall
from swalib.figures import cards, methods

pytestmark = pytest.mark.browser

STATES = anatomy.states()
KERNELS = anatomy.kernels(head_dim=16, draws=8, points=9)
ROWS, AGES = recall.measure("smoke", [8, 16], [4, 16, 64], [1, 4], sinks=1, draws=3)
IDS = ["linear-state", "recall", "feature-maps", "effective-masks"]
LENGTH = 21


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    drawn = [
        figures.linear_state(STATES, caption="c"),
        figures.recall(ROWS, AGES, caption="c", head_dim=16, pairs=16),
        figures.feature_maps(KERNELS, caption="c"),
        figures.effective_masks(LENGTH),
    ]
    return write_page(tmp_path_factory.mktemp("linear"), drawn)


@pytest.fixture(scope="module")
def opened(page) -> Iterator[Opened]:
    with open_page(page) as opened:
        assert opened.wait_drawn() == 4
        yield opened


def choose(opened: Opened, id: str, name: str, label: str) -> None:
    opened.page.select_option(f"#{id}-{name}", label=label)
    opened.state(id)


def says(opened: Opened, id: str) -> str:
    return opened.page.inner_text(f"#{id} .swa-says").replace("\u00a0", " ")


def by_name(opened: Opened, id: str) -> dict[str, dict]:
    return {trace["name"]: trace for trace in opened.traces(id)}


# ---- The state.


@pytest.mark.parametrize(
    ("rule", "asked", "token"), [("plain", "A", 5), ("delta", "C", 3), ("scalar", "H", 2)]
)
def test_the_heat_map_holds_key_state_normaliser_value_and_what_is_read(opened, rule, asked, token):
    choose(opened, "linear-state", "rule", STATES["rules"][rule]["label"])
    choose(opened, "linear-state", "asked", f"key {asked}")
    opened.slide("linear-state", "token", token)
    found, letter = STATES["rules"][rule], STATES["letters"].index(asked)
    z = opened.traces("linear-state")[0]["z"]
    assert [row[3:11] for row in z[2:10]] == found["S"][token]
    assert z[0][3:11] == STATES["v"][token]
    assert [row[0] for row in z[2:10]] == STATES["k"][token]
    assert [row[1] for row in z[2:10]] == STATES["k"][STATES["tokens"].index(asked)]
    assert z[11][3:11] == found["read"][token][letter]
    written = [n for n in range(token + 1) if STATES["tokens"][n] == asked]
    assert z[12][3:11] == (STATES["v"][written[-1]] if written else [None] * 8)
    if rule == "plain":
        most = max(max(row) for row in found["z"])
        assert np.allclose([row[12] for row in z[2:10]], np.array(found["z"][token]) / most)
    else:
        assert [row[12] for row in z] == [None] * 13


def test_the_lines_run_to_the_token_and_the_sentence_tells_all_four(opened):
    choose(opened, "linear-state", "asked", "key A")
    opened.slide("linear-state", "token", 5)
    at = {name: rule["cosine"][5][0] for name, rule in STATES["rules"].items()}
    assert says(opened, "linear-state") == (
        "Token 6 writes under A. Asked for A, cosine with the value wanted: plain "
        f"{at['plain']:.3f}, scalar {at['scalar']:.3f}, diagonal {at['diagonal']:.3f}, delta 1.00."
    )
    strong = opened.traces("linear-state")[2::2]
    for trace, rule in zip(strong, STATES["rules"].values(), strict=True):
        assert trace["y"] == [row[0] if n <= 5 else None for n, row in enumerate(rule["cosine"])]
    opened.slide("linear-state", "token", 0)
    choose(opened, "linear-state", "asked", "key B")
    assert says(opened, "linear-state") == "Token 1 writes under A. Nothing is written under B yet."


# ---- Recall.


def shares(mechanism: str, d: int, keys: str, factor: int | None = None) -> list[float]:
    rows = ROWS[(ROWS["mechanism"] == mechanism) & (ROWS["head_dim"] == d) & (ROWS["keys"] == keys)]
    rows = rows if factor is None else rows[rows["factor"] == factor]
    return rows.sort_values("pairs")["recall"].tolist()


@pytest.mark.parametrize(("d", "keys", "factor"), [(16, "random", 1), (8, "alike", 4)])
def test_recall_draws_the_rows_of_its_controls(opened, d, keys, factor):
    opened.slide("recall", "head_dim", d)
    opened.page.select_option("#recall-keys", index=["random", "alike"].index(keys))
    opened.page.select_option("#recall-factor", index=[1, 4].index(factor))
    choose(opened, "recall", "shown", "rules of update, φ(k) = k")
    drawn = by_name(opened, "recall")
    assert np.allclose(drawn["full attention"]["y"], shares("full", d, keys))
    assert np.allclose(drawn[f"SWA({factor * d // 2}, 1)"]["y"], shares("swa", d, keys, factor), rtol=1e-4)
    assert np.allclose(drawn["delta rule (β = 1)"]["y"], shares("delta_rule", d, keys), rtol=1e-4)
    assert np.allclose(drawn["chance"]["y"], [1 / 4, 1 / 16, 1 / 64])
    assert "Hedgehog (keys × 16, W orthonormal)" not in drawn
    choose(opened, "recall", "shown", "feature maps, plain sum")
    drawn = by_name(opened, "recall")
    hedgehog = drawn["Hedgehog (keys × 16, W orthonormal)"]["y"]
    assert np.allclose(hedgehog, shares("hedgehog", d, keys), rtol=1e-4)
    assert "delta rule (β = 1)" not in drawn
    opened.assert_quiet()


def test_the_pairs_slider_picks_the_lower_panel_and_the_sentence(opened):
    opened.slide("recall", "head_dim", 16)
    opened.page.select_option("#recall-keys", index=0)
    opened.page.select_option("#recall-factor", index=0)
    choose(opened, "recall", "shown", "rules of update, φ(k) = k")
    for pairs in (16, 64):
        opened.slide("recall", "pairs", pairs)
        places = by_name(opened, "recall")["SWA(8, 1), by place"]["y"]
        held = [float(j < 1 or j >= pairs - 7) for j in range(pairs)]
        expected = [np.mean(part) for part in np.array_split(held, min(pairs, 32))]
        assert np.allclose(places, expected, atol=0.4 if pairs == 64 else 1e-6)
        assert says(opened, "recall").startswith(f"Of {pairs} pairs SWA(8, 1) recalls ")
    line = opened.page.evaluate("document.getElementById('recall').__swa.plot.layout.shapes[0]")
    assert (line["x0"], line["x1"]) == (64, 64)


# ---- Feature maps.


@pytest.mark.parametrize("logit", [1, 16])
def test_maps_are_drawn_with_their_band_and_softmax_s_exponential(opened, logit):
    opened.slide("feature-maps", "logit", logit)
    traces = opened.traces("feature-maps")
    assert len(traces) == 4 * len(anatomy.MAPS)
    for n, name in enumerate(anatomy.MAPS):
        rows = KERNELS[(KERNELS["map"] == name) & (KERNELS["logit"] == logit)]
        low, high, exp, middle = traces[4 * n : 4 * n + 4]
        assert np.allclose(middle["y"], rows["middle"], rtol=1e-4, atol=1e-9)
        assert np.allclose(low["y"], rows["low"], rtol=1e-4, atol=1e-9)
        assert np.allclose(high["y"], rows["high"], rtol=1e-4, atol=1e-9)
        assert np.allclose(exp["y"], np.exp(logit * (rows["cosine"] - 1)))


# ---- Masks.


def kinds(w: int, s: int) -> dict[str, np.ndarray]:
    """What each panel must show, by swalib's masks: 0 later, 1 unseen, 2 linear, 3 both, 4 exact, 5 sink."""
    causal = masks.mask(LENGTH, Full()).int()
    sliding, swa = masks.mask(LENGTH, SWA(w, 0)).int(), masks.mask(LENGTH, SWA(w, s)).int()
    sink = (torch.arange(LENGTH) < s).int() * causal
    panels = {
        "Full attention": 4 * causal,
        "SWA(w, s)": causal + 3 * swa + sink,
        "Pure linear": 2 * causal,
        "LoLCATs, sliding": 2 * causal + 2 * sliding,
        "LoLCATs, terraced": 2 * causal + 2 * masks.terraced(LENGTH, w).int(),
        "Liger": 2 * causal + sliding,
    }
    return {name: grid.numpy() for name, grid in panels.items()}


@pytest.mark.parametrize(("w", "s"), [(8, 2), (1, 0), (4, 0), (16, 8), (32, 4)])
def test_masks_are_swalib_s_own(opened, w, s):
    opened.slide("effective-masks", "sinks", 0)
    opened.slide("effective-masks", "window", w)
    opened.slide("effective-masks", "sinks", s)
    drawn = by_name(opened, "effective-masks")
    for name, expected in kinds(w, s).items():
        assert (np.array(drawn[name]["z"]) == expected).all(), name
    exact = min(w, LENGTH)
    assert f"sees {exact} key{'s' * (exact > 1)} exactly under SWA" in says(opened, "effective-masks")


def test_sinks_give_way_to_the_window(opened):
    opened.slide("effective-masks", "window", 16)
    opened.slide("effective-masks", "sinks", 8)
    opened.page.focus("#effective-masks-window")
    opened.page.keyboard.press("ArrowLeft")
    opened.page.wait_for_function("document.getElementById('effective-masks').__swa.state.window === 8")
    assert opened.state("effective-masks") == {"window": 8, "sinks": 4}
    said = opened.page.text_content("#effective-masks output[for=effective-masks-sinks]")
    assert said == "s must be below w = 8: s is now 4"


# ---- The page.


def test_axes_stay_while_sliding(opened):
    script = """ids => ids.map((id) => {
      const { layout, clientHeight } = document.getElementById(id).__swa.plot;
      return [layout.xaxis.range, layout.yaxis.range, (layout.yaxis2 || {}).range, clientHeight];
    })"""
    before = opened.page.evaluate(script, IDS)
    opened.slide("linear-state", "token", 9)
    opened.slide("recall", "pairs", 4)
    opened.slide("feature-maps", "logit", 2)
    opened.slide("effective-masks", "window", 2)
    assert opened.page.evaluate(script, IDS) == before


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_figure_is_drawn_quietly_and_fits(page, width, dark):
    with open_page(page, width=width, dark=dark, reduced_motion=dark) as opened:
        assert opened.wait_drawn() == 4
        opened.assert_quiet()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        if dark:  # no animation, the same states by buttons
            before = opened.state("recall")["pairs"]
            opened.page.click("#recall .swa-play button[aria-label='one step on']")
            assert opened.state("recall")["pairs"] > before


@pytest.mark.parametrize(("width", "columns"), [(1280, 3), (390, 1)])
def test_the_cards_fit_the_page_and_say_their_colour(tmp_path, width, columns):
    path = tmp_path / "index.html"
    head = '<!doctype html><html lang="en"><meta charset="utf-8">'
    head += '<meta name="viewport" content="width=device-width">'
    path.write_text(f"{head}<body>{cards.grid()._repr_html_()}</body></html>", encoding="utf-8")
    with open_page(path, width=width) as opened:
        edges = opened.page.eval_on_selector_all(
            ".swa-card", "all => all.map((one) => Math.round(one.getBoundingClientRect().left))"
        )
        assert len(edges) == len(methods.CARDS)
        assert len(set(edges)) == columns
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        top = opened.page.eval_on_selector(".swa-card", "one => getComputedStyle(one).borderTopColor")
        assert top == "rgb(0, 114, 178)"
        opened.page.evaluate("document.documentElement.dataset.theme = 'dark'")
        dark = opened.page.eval_on_selector(".swa-card", "one => getComputedStyle(one).borderTopColor")
        assert dark == "rgb(86, 180, 233)"
        opened.assert_quiet()
