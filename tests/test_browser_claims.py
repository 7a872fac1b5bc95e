"""The claim calculator in a real browser computes as Python does, shows it, and says what it rests on."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
from browser import Opened, open_page, write_page

from swalib import figures
from swalib.reported import claims
from swalib.reported.claims import Options, recompute
from swalib.reported.pairs import base_models

pytestmark = pytest.mark.browser

ID = "claim-calculator"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    drawn = [
        figures.printed_table(1, caption="c"),
        figures.claim_calculator(caption="c"),
        figures.printed_table(2, caption="c"),
    ]
    return write_page(tmp_path_factory.mktemp("claims"), drawn)


@pytest.fixture(scope="module")
def opened(page) -> Iterator[Opened]:
    with open_page(page) as opened:
        assert opened.wait_drawn() == 3
        yield opened


# ---- The arithmetic: all 128 combinations, and some choices of teachers.


def computed(opened: Opened, options: list[Options]) -> list[dict]:
    script = """all => all.map((options) => {
      const { data } = document.getElementById("claim-calculator").__swa;
      const claim = SWA.claims.recompute(data, options);
      return { ...claim, sentence: SWA.claims.sentence(claim, options) };
    })"""
    return opened.page.evaluate(script, [asdict(one) for one in options])


def assert_equal(found: dict, claim: claims.Claim) -> None:
    assert found["sentence"] == claim.sentence()
    assert found["leftOut"] == list(claim.left_out)
    counts = (found["beaten"], found["won"], found["contested"])
    assert counts == (claim.beaten, claim.won, claim.contested)
    assert [row["method"] for row in found["rows"]] == [row.method for row in claim.rows]
    for row, expected in zip(found["rows"], claim.rows, strict=True):
        assert (row["mean"], row["swa"]) == pytest.approx((expected.mean_pct, expected.swa_pct), abs=1e-9)
        sd = pytest.approx(expected.sd_pct, abs=1e-9, nan_ok=True)
        assert (float("nan") if row["sd"] is None else row["sd"]) == sd
        for mine, theirs in ((row["used"], expected.used), (row["swaUsed"], expected.swa_used)):
            assert [(one["index"], one["student"], one["teacher"]) for one in mine] == [
                (one.index, list(one.student), list(one.teacher)) for one in theirs
            ]


def test_the_page_computes_all_128_combinations_and_the_presets_as_python_does(opened):
    options = [*claims.presets().values(), *claims.every_combination()]
    for found, one in zip(computed(opened, options), options, strict=True):
        assert_equal(found, recompute(options=one))


def test_and_with_any_choice_of_teachers(opened):
    draw = random.Random(0)
    combinations = list(claims.every_combination())
    options = [
        replace(draw.choice(combinations), base_models=tuple(draw.sample(base_models(), count)))
        for count in (0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 10) * 4
    ]
    for found, one in zip(computed(opened, options), options, strict=True):
        assert_equal(found, recompute(options=one))


# ---- The controls.


def says(opened: Opened) -> str:
    return opened.page.inner_text(f"#{ID} .swa-says")


def shown(opened: Opened) -> list[list[str]]:
    """The calculator's table without its details, cell by cell."""
    return opened.page.evaluate(
        """id => [...document.querySelectorAll(`#${id} .swa-claims > tbody > tr:not(.swa-detail)`)]
             .map((row) => [...row.cells].map((cell) => cell.textContent))""",
        ID,
    )


def expected(claim: claims.Claim) -> list[list[str]]:
    def number(value: float) -> str:
        return f"{value:.1f}".replace("-", "−")

    return [
        [
            row.method,
            str(len(row.used)),
            number(row.mean_pct) + (f" ± {row.sd_pct:.1f}" if len(row.used) > 1 else ""),
            number(row.swa_pct),
            number(row.lead) if abs(row.lead) < 0.05 or row.lead < 0 else f"+{row.lead:.1f}",
        ]
        for row in claim.rows
    ]


def test_presets_by_keyboard_set_every_toggle_the_table_and_the_sentence(opened):
    for name, options in claims.presets().items():
        opened.page.focus(f"#{ID} .swa-presets button:text-is('{name}')")
        opened.page.keyboard.press("Enter")
        claim = recompute(options=options)
        assert opened.state(ID) == {toggle: getattr(options, toggle) for toggle in claims.TOGGLES}
        assert says(opened) == claim.sentence()
        assert shown(opened) == expected(claim)
        pressed = opened.page.eval_on_selector_all(
            f"#{ID} .swa-presets [aria-pressed=true]", "all => all.map((one) => one.textContent)"
        )
        assert pressed == [name]


def test_a_toggle_and_a_teacher_recompute_and_are_no_preset_any_more(opened):
    opened.page.click(f"#{ID} .swa-presets button:text-is('as printed')")
    opened.page.select_option(f"#{ID}-six_tasks", label="MMLU")
    opened.page.select_option(f"#{ID}-same_teachers", label="the same for both")
    assert says(opened) == recompute(options=Options()).sentence()
    opened.page.click(f"#{ID} .swa-teachers summary")
    opened.page.uncheck(f"#{ID} input[value='Llama2.0-7B']")
    kept = tuple(name for name in base_models() if name != "Llama2.0-7B")
    claim = recompute(options=Options(base_models=kept))
    assert says(opened) == claim.sentence()
    assert shown(opened) == expected(claim)
    assert opened.page.inner_text(f"#{ID} .swa-extra > p") == "No pair is left of DiJiang."
    assert opened.page.inner_text(f"#{ID} summary") == "teachers: 10 of 11 counted"
    assert opened.page.locator(f"#{ID} .swa-presets [aria-pressed=true]").count() == 0
    opened.page.click(f"#{ID} .swa-presets button:text-is('fair')")
    assert opened.page.is_checked(f"#{ID} input[value='Llama2.0-7B']")
    opened.assert_quiet()


def test_the_picture_shows_the_table_on_an_axis_that_stays(opened):
    axis = f"document.getElementById('{ID}').__swa.plot.layout.xaxis.range"
    ranges = []
    for name, options in claims.presets().items():
        opened.page.click(f"#{ID} .swa-presets button:text-is('{name}')")
        opened.state(ID)
        _, method, swa = opened.traces(ID)
        claim = recompute(options=options)
        assert method["x"] == pytest.approx([row.mean_pct for row in claim.rows])
        assert swa["x"] == pytest.approx([row.swa_pct for row in claim.rows])
        ranges.append(opened.page.evaluate(axis))
    low, high = ranges[0]
    assert all(one == ranges[0] for one in ranges)
    for options in claims.every_combination():
        for row in recompute(options=options).rows:
            assert low < row.mean_pct < high
            assert low < row.swa_pct < high


def test_a_number_opens_to_the_cells_it_rests_on(opened):
    opened.page.click(f"#{ID} .swa-presets button:text-is('fair')")
    opened.page.focus(f"#{ID} button[aria-controls='{ID}-Llamba']")
    opened.page.keyboard.press("Enter")
    detail = opened.page.locator(f"#{ID}-Llamba")
    assert opened.page.get_attribute(f"#{ID} button[aria-controls='{ID}-Llamba']", "aria-expanded") == "true"
    rows = detail.locator("tbody tr").all_inner_texts()
    told = [row.replace("\n", " ").replace("\t", " ").split() for row in rows]
    assert [" ".join(row) for row in told] == [
        "Llamba on Llama-3.1-8B 61.0 source; printed 60.0 83.7 %",
        "its teacher 68.0 source; printed 65.4",
        "SWA(64, 4) on Llama-3.1-8B 60.6 88.1 %",
        "its teacher 65.4",
    ]
    assert "Table 2, as printed in the paper (transcribed)" in detail.inner_text()
    assert "61.0 in its source (Llamba, arXiv 2502.14458)" in detail.inner_text()
    # It stays open, and in focus, while the assumptions change.
    opened.page.select_option(f"#{ID}-above_chance", label="plain")
    assert f"{100 * 61 / 68:.1f} %" in opened.page.inner_text(f"#{ID}-Llamba")
    opened.page.click(f"#{ID} button[aria-controls='{ID}-Llamba']")
    assert opened.page.is_hidden(f"#{ID}-Llamba")


# ---- The page.


def test_a_holder_put_in_by_a_script_as_jupyterlab_does_becomes_the_same(page):
    with open_page(page) as opened:
        opened.wait_drawn()
        rows = opened.page.evaluate(
            """([one, two]) => [one, two].map((holder) => { const box = document.createElement("div");
                 document.body.append(box);
                 box.innerHTML = holder;
                 SWA.mount(box.firstElementChild);
                 return box.querySelectorAll(".swa-extra tbody > tr:not(.swa-detail)").length; })""",
            [figures.printed_table(2, caption="c").html(), figures.claim_calculator(caption="c").html()],
        )
        assert rows == [44, len(recompute(options=claims.FAIR).rows)]
        opened.assert_quiet()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_wide_tables_scroll_inside_themselves_and_all_is_quiet(page, width, dark):
    with open_page(page, width=width, dark=dark) as opened:
        opened.wait_drawn()
        for name in itertools.islice(claims.presets(), 2):
            opened.page.click(f"#{ID} .swa-presets button:text-is('{name}')")
        opened.page.click(f"#{ID} button[aria-controls='{ID}-LoLCATs']")
        opened.assert_quiet()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        box = opened.page.evaluate(
            """() => { const box = document.querySelector("#printed-table-2 .swa-scroll");
                 const fits = box.clientWidth <= box.parentElement.clientWidth;
                 return [box.scrollWidth > box.clientWidth, fits]; }"""
        )
        assert box == [width == 390, True]
        overflow = "(box) => box.scrollWidth - box.clientWidth"
        assert opened.page.locator(f"#{ID} .swa-extra > .swa-scroll").evaluate(overflow) <= 0
        first = opened.page.locator("#printed-table-2 tbody th").first
        opened.page.evaluate("document.querySelector('#printed-table-2 .swa-scroll').scrollLeft = 200")
        left = opened.page.locator("#printed-table-2 .swa-scroll").bounding_box()["x"]
        assert first.bounding_box()["x"] == pytest.approx(left, abs=2)


def test_the_page_stays_where_it_is_while_toggling(opened):
    top = "document.querySelector('#claim-calculator .swa-picture').getBoundingClientRect().height"
    heights = set()
    for name in claims.presets():
        opened.page.click(f"#{ID} .swa-presets button:text-is('{name}')")
        opened.state(ID)
        heights.add(opened.page.evaluate(top))
    assert len(heights) == 1
