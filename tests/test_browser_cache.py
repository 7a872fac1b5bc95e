"""The cache's own pages against Python: which token lies in which slot, and how many bytes it takes."""

from collections.abc import Iterator

import pytest
from browser import Opened, open_page, write_page

from swalib.figures import method

pytestmark = pytest.mark.browser

FIGURES = [method.cache_slots(), method.kv_calculator()]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with open_page(write_page(tmp_path_factory.mktemp("cache"), FIGURES)) as opened:
        assert opened.wait_drawn() == len(FIGURES)
        yield opened


def visible(i: int, j: int, w: int, s: int) -> bool:
    return j <= i and (j < s or i - j < w - s)


def says(book: Opened, id: str) -> str:
    return book.page.inner_text(f"#{id} .swa-says").replace("\u00a0", " ")


# ------------------------------------------------------------------------------------------------ cache slots


@pytest.mark.parametrize(("w", "s"), [(4, 0), (4, 3), (6, 2), (12, 1)])
def test_slots_hold_what_the_query_sees(book: Opened, w: int, s: int) -> None:
    book.slide("cache-slots", "slot_window", w)
    book.slide("cache-slots", "slot_sinks", s)
    before: dict[int, int] = {}
    book.slide("cache-slots", "token", 0)
    for t in range(len(FIGURES[0].data["words"])):
        if t:
            book.page.keyboard.press("ArrowRight")
        assert book.state("cache-slots")["token"] == t
        cards = book.page.eval_on_selector_all(
            "#cache-slots [data-slot]",
            "list => list.map((one) => ({ ...one.dataset, now: one.classList.contains('query') }))",
        )
        held = {int(card["slot"]): int(card["token"]) for card in cards if "token" in card}
        seen = [j for j in range(t + 1) if visible(t, j, w, s)]
        assert len(cards) == w
        assert sorted(held.values()) == seen
        assert {int(card["token"]): int(card["cache"]) for card in cards if "token" in card} == {
            token: rank for rank, token in enumerate(seen)
        }
        assert [held[int(card["slot"])] for card in cards if card["now"]] == [t]
        assert [slot for slot in held if before.get(slot) != held[slot]] == [
            next(k for k in held if held[k] == t)
        ]
        words = book.page.eval_on_selector_all(
            "#cache-slots [data-kind]", "list => list.map((one) => one.dataset.kind)"
        )
        assert [p for p, kind in enumerate(words) if kind in ("sink", "recent")] == seen
        assert [p for p, kind in enumerate(words) if kind == "evicted"] == sorted(
            set(before.values()) - set(seen)
        )
        before = held


def test_slot_of_a_token_is_the_cache_s(book: Opened) -> None:
    """Slot s + (p - s) mod (w - s), by hand for w = 6, s = 2, t = 13: the ring of 4 holds 10..13."""
    for name, value in {"slot_window": 6, "slot_sinks": 2, "token": 13}.items():
        book.slide("cache-slots", name, value)
    tokens = book.page.eval_on_selector_all(
        "#cache-slots [data-slot]", "list => list.map((one) => one.dataset.token)"
    )
    assert tokens == ["0", "1", "10", "11", "12", "13"]
    assert says(book, "cache-slots") == "Token 13 “a” overwrites token 9 “Every” in slot 5; it sees 6 keys."


def test_the_play_button_decodes(book: Opened) -> None:
    book.slide("cache-slots", "token", 3)
    button = book.page.locator("#cache-slots .swa-play button")
    button.click()
    book.page.wait_for_function("document.getElementById('cache-slots').__swa.state.token > 3")
    button.click()


# ------------------------------------------------------------------------------------------------------ bytes


def kv_bytes(name: str, length: int, window: int | None, size: int, batch: int) -> int:
    model, total = method.KV_MODELS[name], 0
    for group in model["layers"]:
        for _ in range(group["count"]):
            kept = (
                length
                if window is None and group["window"] is None
                else min(length, group["window"] or window)
            )
            total += 2 * model["kv_heads"] * kept * model["head_dim"] * size * batch
    return total


@pytest.mark.parametrize(
    ("name", "dtype", "batch", "w"),
    [
        ("SmolLM2-135M", "fp32", 1, 64),
        ("Gemma3-270M", "bf16", 8, 16),
        ("Gemma3-270M", "bf16", 1, 4096),
        ("Llama-3.1-70B", "fp8", 64, 512),
    ],
)
def test_bytes_are_the_formula(book: Opened, name: str, dtype: str, batch: int, w: int) -> None:
    for control, value in {"model": name, "dtype": dtype, "batch": str(batch)}.items():
        book.page.select_option(f"#kv-calculator-{control}", label=value)
    book.slide("kv-calculator", "window", w)
    book.slide("kv-calculator", "length", 8192)
    full, swa, full_here, swa_here = book.traces("kv-calculator")
    lengths = [2**power for power in range(7, 21)]
    assert full["x"] == swa["x"] == lengths
    size = {"fp32": 4, "bf16": 2, "fp8": 1}[dtype]
    assert full["y"] == [kv_bytes(name, length, None, size, batch) for length in lengths]
    assert swa["y"] == [kv_bytes(name, length, w, size, batch) for length in lengths]
    assert (full_here["x"], full_here["y"]) == ([8192], [kv_bytes(name, 8192, None, size, batch)])
    assert (swa_here["x"], swa_here["y"]) == ([8192], [kv_bytes(name, 8192, w, size, batch)])


def test_the_readout_is_in_decimal_units_and_says_it_is_computed(book: Opened) -> None:
    for control, value in {"model": "Llama-3.1-8B", "dtype": "bf16", "batch": "1"}.items():
        book.page.select_option(f"#kv-calculator-{control}", label=value)
    book.slide("kv-calculator", "window", 64)
    book.slide("kv-calculator", "length", 32768)
    # 32 layers x 2 x 8 heads x 128 x 2 bytes = 131 072 bytes a token: 4.29 GB and 8.39 MB.
    assert (
        says(book, "kv-calculator") == "At 32,768 tokens: 4.29 GB against 8.39 MB, 512 times less (computed)."
    )
    book.slide("kv-calculator", "window", 4096)
    book.slide("kv-calculator", "length", 128)
    assert says(book, "kv-calculator") == "At 128 tokens: 16.8 MB against 16.8 MB, the same (computed)."


# ------------------------------------------------------------------------------------------------- the page


def test_bytes_axes_stay_while_everything_moves(book: Opened) -> None:
    script = """() => {
      const { layout } = document.getElementById("kv-calculator").__swa.plot;
      return [layout.xaxis.range, layout.yaxis.range, layout.margin, layout.height];
    }"""
    before = book.page.evaluate(script)
    book.slide("kv-calculator", "window", 1024)
    book.page.select_option("#kv-calculator-model", label="Qwen2.5-72B")
    book.page.select_option("#kv-calculator-batch", label="64")
    assert book.state("kv-calculator")["batch"] == 64
    assert book.page.evaluate(script) == before
    low, high = (10**exponent for exponent in before[1])
    drawn = [y for trace in book.traces("kv-calculator") for y in trace["y"]]
    assert low < min(drawn)
    assert max(drawn) < high


@pytest.mark.parametrize("width", [390, 1280])
def test_cards_hold_their_words_and_keep_the_height(book: Opened, width: int) -> None:
    book.page.set_viewport_size({"width": width, "height": 844})
    columns = "getComputedStyle(document.querySelector('.swa-slots')).gridTemplateColumns.split(' ').length"
    book.page.wait_for_function(f"{columns} === {3 if width == 390 else 6}")
    assert book.page.evaluate("document.documentElement.scrollWidth") <= width
    inside = "list => list.every((one) => one.scrollWidth <= one.clientWidth)"
    heights = []
    for window in (4, 12):
        book.slide("cache-slots", "slot_window", window)
        assert book.page.eval_on_selector_all(".swa-slot, .swa-slot div", inside)
        heights.append(book.page.evaluate("document.getElementById('cache-slots').__swa.plot.clientHeight"))
    assert heights[0] == heights[1]


def test_no_error_and_no_request_leaves(book: Opened) -> None:
    book.assert_quiet()
