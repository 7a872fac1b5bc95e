"""The pages' own computations against Python's double loops: masks, reach, conventions."""

from collections.abc import Iterator

import pytest
from browser import Opened, open_page, write_page

from swalib.figures import method

pytestmark = pytest.mark.browser

FIGURES = [
    method.mask_explorer(length=33),
    method.reach(layers=5, length=37),
    method.conventions(),
]
# s = 0, w = 1, s = w - 1, the usual, w >= L.
SPECS = [(4, 1), (1, 0), (8, 0), (2, 1), (16, 8), (16, 2)]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with open_page(write_page(tmp_path_factory.mktemp("method"), FIGURES)) as opened:
        assert opened.wait_drawn() == len(FIGURES)
        yield opened


def visible(i: int, j: int, w: int, s: int) -> bool:
    return j <= i and (j < s or i - j < w - s)


def set_spec(book: Opened, id: str, w: int, s: int) -> None:
    book.slide(id, "sinks", 0)
    book.slide(id, "window", w)
    book.slide(id, "sinks", s)


def says(book: Opened, id: str) -> str:
    return book.page.inner_text(f"#{id} .swa-says")


def hover(book: Opened, id: str, row: int, column: int) -> str:
    script = "([id, y, x]) => document.getElementById(id).__swa.plot.data[0].text[y][x]"
    return book.page.evaluate(script, [id, row, column]).replace("<br>", " ")


# --------------------------------------------------------------------------------------------------- the mask


@pytest.mark.parametrize(("w", "s"), [*SPECS, (64, 16)])
def test_mask_cells_are_the_predicate(book: Opened, w: int, s: int) -> None:
    set_spec(book, "mask-explorer", w, s)
    z = book.traces("mask-explorer")[0]["z"]
    for i in range(33):
        for j in range(33):
            expected = 0 if j > i else 1 if not visible(i, j, w, s) else 3 if j < s else 2
            assert z[i][j] == expected, (i, j)
        assert sum(cell >= 2 for cell in z[i]) == min(i + 1, w)


def test_hover_says_what_a_query_sees_and_why(book: Opened) -> None:
    set_spec(book, "mask-explorer", 16, 4)
    why = {
        (30, 2): "query 30 sees key 2: a sink",
        (30, 12): "query 30 does not see key 12: evicted, 18 back, window keeps 12 latest",
        (30, 18): "query 30 does not see key 18: evicted, 12 back, window keeps 12 latest",
        (30, 19): "query 30 sees key 19: 11 back, one of the 12 latest",
        (30, 30): "query 30 sees key 30: its own",
        (3, 3): "query 3 sees key 3: a sink",
        (2, 3): "query 2 does not see key 3: it comes later",
    }
    assert {cell: hover(book, "mask-explorer", *cell) for cell in why} == why


def test_query_slider_moves_the_highlight_and_counts_its_keys(book: Opened) -> None:
    set_spec(book, "mask-explorer", 16, 4)
    for query, sentence in [
        (0, "Row 0 sees 1 of 1 key: 1 sink and the 0 latest."),
        (9, "Row 9 sees 10 of 10 keys: 4 sinks and the 6 latest."),
        (32, "Row 32 sees 16 of 33 keys: 4 sinks and the 12 latest."),
    ]:
        book.slide("mask-explorer", "query", query)
        shape = book.page.evaluate("document.getElementById('mask-explorer').__swa.plot.layout.shapes[0]")
        assert (shape["y0"], shape["y1"]) == (query - 0.5, query + 0.5)
        assert says(book, "mask-explorer") == sentence


# ------------------------------------------------------------------------------------------------------ reach


def reachable(length: int, layers: int, edge) -> list[set[int]]:
    """After 0..layers layers, the inputs from which a path of allowed pairs leads to the last token."""
    sets = [{length - 1}]
    for _ in range(layers):
        sets.append({j for i in sets[-1] for j in range(length) if edge(i, j)})
    return sets


@pytest.mark.parametrize(("w", "s"), [*SPECS, (64, 4)])
def test_reach_is_set_propagation_and_meets_the_formula(book: Opened, w: int, s: int) -> None:
    length, layers = 37, 5
    set_spec(book, "reach", w, s)
    book.slide("reach", "layers", layers)
    z = book.traces("reach")[0]["z"]
    everything = reachable(length, layers, lambda i, j: visible(i, j, w, s))
    window = reachable(length, layers, lambda i, j: visible(i, j, w, s) and j >= s)
    for depth in range(layers + 1):
        assert {j for j in range(length) if z[depth][j] > 0} == everything[depth]
        assert {j for j in range(length) if z[depth][j] == 1} == window[depth]
        back = depth * (w - s - 1)
        formula = set(range(max(0, length - 1 - back), length)) | (set(range(s)) if depth else set())
        assert everything[depth] == formula


def test_reach_draws_the_layers_asked_for_and_both_formulas(book: Opened) -> None:
    set_spec(book, "reach", 8, 2)
    book.slide("reach", "layers", 3)
    cells, *_, printed = book.traces("reach")
    assert [all(cell is None for cell in row) for row in cells["z"]] == [False] * 4 + [True] * 2
    assert printed["x"] == [36, 28, 20, 12]
    assert says(book, "reach") == "3 layers: 3 · (8 − 2 − 1) = 15 back, and 2 sinks. The paper's l · w: 24."


# ------------------------------------------------------------------------------------------------ conventions


def systems(w: int, s: int) -> dict[str, list[set[int]]]:
    """Each system by itself: the keys that queries 200..200+2w-1 see, a set a query (and way of calling).

    A key is its distance back from the query, or -1 - j for the j-th of the text.
    """
    queries = range(200, 200 + 2 * w)

    def rows(sees) -> list[set[int]]:
        return [{i - j if i - j < 100 else -1 - j for j in range(i + 1) if sees(i, j)} for i in queries]

    def streaming(chunk: int, evict_first: bool) -> list[set[int]]:
        cached, seen, room = list(range(s)), [], w - s
        for start in range(s, max(queries), chunk):
            coming = list(range(start, start + chunk))
            if evict_first:
                cached = cached[:s] + cached[s:][max(0, len(cached) - s + chunk - room) :]
            for row, i in enumerate(coming):
                keys = cached + coming[: row + 1]
                seen += [{i - j if j >= s else -1 - j for j in keys}] if i in queries else []
            cached += coming
            cached = cached[:s] + cached[s:][max(0, len(cached) - s - room) :]
        return seen

    return {
        "This paper": rows(lambda i, j: visible(i, j, w, s)),
        "StreamingLLM, attention_sinks": streaming(1, evict_first=False),
        "StreamingLLM chat": [keys for c in range(1, w - s + 1) for keys in streaming(c, evict_first=True)],
        "SWAA": rows(lambda i, j: j < s or i - j < w),
        "HF sliding_window, fla": rows(lambda i, j: i - j < w),
        "FlashAttention": rows(lambda i, j: i - w <= j <= i),
        "attention-gym": rows(lambda i, j: j <= i <= j + w),
        "LoLCATs": rows(lambda i, j: i // w - j // w <= 1),
    }


@pytest.mark.parametrize(("w", "s"), SPECS)
def test_conventions_show_what_each_system_shows(book: Opened, w: int, s: int) -> None:
    set_spec(book, "conventions", w, s)
    cells = book.traces("conventions")[0]["z"]
    outside, maybe, far = 0, 1, 31
    for row, (name, seen) in zip(cells, systems(w, s).items(), strict=True):
        place = {(-1 - x if x < 8 else 9 + far - x): word for x, word in enumerate(row) if x != 8}
        assert len(place) == 8 + far + 1
        assert row[8] is None
        always, ever = set.intersection(*seen), set.union(*seen)
        assert {key for key, word in place.items() if word > maybe} == always, name
        assert {key for key, word in place.items() if word != outside} == ever, name
        assert all((word == 3) == (key < 0) for key, word in place.items() if word > maybe), name


def test_counts_for_w_4_and_s_1(book: Opened) -> None:
    set_spec(book, "conventions", 4, 1)
    labels = book.page.evaluate(
        "document.getElementById('conventions').__swa.plot.layout.annotations.map((a) => a.text)"
    )
    names, counts = labels[0:16:2], labels[1:16:2]
    assert [name.split("</b>")[0].removeprefix("<b>") for name in names] == [
        "This paper, HF's former SinkCache",
        "StreamingLLM, attention_sinks",
        "StreamingLLM chat",
        "SWAA, several reimplementations",
        "HF sliding_window, fla",
        "FlashAttention",
        "attention-gym sliding window",
        "LoLCATs terrace",
    ]
    assert [count.replace("<b>", "").replace("</b>", "") for count in counts] == [
        f"{n} keys" for n in ("4", "5", "≤ 4", "5", "4", "5", "5", "5–8")
    ]


# -------------------------------------------------------------------------------------------------- the page


def test_figures_share_w_and_s(book: Opened) -> None:
    set_spec(book, "mask-explorer", 8, 4)
    for id in ("reach", "conventions"):
        state = book.state(id)
        assert (state["window"], state["sinks"]) == (8, 4)


def test_axes_stay_while_sliding(book: Opened) -> None:
    script = """() => ["mask-explorer", "reach", "conventions"].map((id) => {
      const { layout, clientHeight } = document.getElementById(id).__swa.plot;
      return [layout.xaxis.range, layout.yaxis.range, layout.margin, clientHeight];
    })"""
    set_spec(book, "mask-explorer", 2, 1)
    before = book.page.evaluate(script)
    set_spec(book, "mask-explorer", 16, 8)
    assert book.page.evaluate(script) == before


@pytest.mark.parametrize("dark", [True, False])
def test_narrow_page_keeps_everything_inside(book: Opened, dark: bool) -> None:
    book.page.emulate_media(color_scheme="dark" if dark else "light")
    book.page.set_viewport_size({"width": 390, "height": 844})
    sink = "#56B4E9" if dark else "#0072B2"
    book.page.wait_for_function(
        """sink => {
          const { data, layout } = document.getElementById("mask-explorer").__swa.plot;
          return layout.width < 390 && data[0].colorscale.at(-1)[1] === sink;
        }""",
        arg=sink,
    )
    assert book.page.evaluate("document.documentElement.scrollWidth") <= 390
    book.assert_quiet()
