"""S-NIAH's prompts: RULER's words, depths and accounting to the token, and what is refused."""

import re
import uuid
from dataclasses import replace

import numpy as np
import pytest

from swalib import models
from swalib.evals import haystacks, needles
from swalib.evals.needles import Needle, build, draw, prompts

WORDS = "The old ferry left late. Nobody on the pier saw it go, not even Mr. Hale! Was it the fog? "
NEEDLE = Needle("number", "calm-otter", "1234567")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A text of 60 sentences, all different."""
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("\n".join(f"Day {n}. {WORDS}" for n in range(15)), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def loaded():
    return models.load("tiny-llama")


@pytest.mark.parametrize("task", needles.TASKS)
@pytest.mark.parametrize("length", [900, 1024, 3000])
def test_the_haystack_fills_its_length_to_within_one_unit(loaded, book, task, length):
    for prompt in prompts(loaded, task, length, 0, 4, text=book):
        assert prompt.tokens == models.encode(loaded, prompt.text).shape[1] <= length - 128
        assert prompt.units >= 1
        longest = max(map(len, haystacks.sentences(book))) if task != "s_niah_1" else len(needles.NOISE)
        assert prompt.tokens + longest + 1 > length - 128, "one more would not fit"


@pytest.mark.parametrize("task", needles.TASKS)
def test_positions_in_tokens_are_those_of_the_parts(loaded, book, task):
    for prompt in prompts(loaded, task, 1500, 3, 4, text=book):  # one token a character
        start = len(prompt.before) + prompt.haystack.index(prompt.needle.sentence)
        assert prompt.span == (start, start + len(prompt.needle.sentence))
        assert prompt.asked == len(prompt.before) + len(prompt.haystack)
        assert prompt.haystack_tokens == len(prompt.haystack)


def test_a_bos_is_counted_and_shifts_the_positions(loaded, book):
    plain, headed = (build(x, "s_niah_2", 1500, NEEDLE, 0.5, book) for x in (loaded, replace(loaded, bos=5)))
    assert headed.units in (plain.units, plain.units - 1)
    assert headed.tokens == len(headed.text) + 1 <= 1500 - 128
    assert headed.span[0] == headed.text.index(NEEDLE.sentence) + 1


def test_the_words_are_rulers():
    prompt = needles._assemble([needles.NOISE] * 2, "\n", NEEDLE, 0.5)
    assert prompt.text == (
        "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz "
        "you about the number afterwards.\n"
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
        "One of the special magic numbers for calm-otter is: 1234567.\n"
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
        "What is the special magic number for calm-otter mentioned in the provided text? The special magic "
        "number for calm-otter mentioned in the provided text is"
    )
    assert prompt.ask().answer == " 1234567"


@pytest.mark.parametrize(("depth", "before"), [(0, 0), (0.25, 1), (0.26, 1), (0.5, 2), (0.99, 3), (1, 4)])
def test_depth_is_the_share_of_units_before_the_needle(depth, before):
    haystack = needles._assemble(["a.", "b.", "c.", "d."], " ", NEEDLE, depth).haystack
    assert haystack.split().index("One") == before


def test_rulers_forty_depths():
    assert len(set(needles.DEPTHS)) == 40
    assert needles.DEPTHS[:4] == (0.0, 0.03, 0.05, 0.08)  # 100/39 apart, rounded to whole percents
    assert needles.DEPTHS[-2:] == (0.97, 1.0)
    drawn = [draw("s_niah_2", item)[1] for item in range(400)]
    assert set(drawn) == set(needles.DEPTHS)


@pytest.mark.parametrize(("task", "depths"), [("s_niah_1", "ruler"), ("s_niah_3", "uniform")])
def test_lines_and_the_uniform_option_are_uniform(task, depths):
    drawn = np.array([draw(task, item, depths=depths)[1] for item in range(2000)])
    assert len(np.unique(drawn)) == 2000
    counts = np.histogram(drawn, 10, (0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 27.9, "chi², 9 degrees of freedom, p = 0.001"


def test_given_depths_are_gone_through_in_turn():
    assert [draw("s_niah_2", item, depths=(0.0, 0.4, 1))[1] for item in range(5)] == [0, 0.4, 1, 0, 0.4]


def test_keys_and_values():
    drawn = [draw(task, item)[0] for task in needles.TASKS for item in range(200)]
    assert len({needle.value for needle in drawn}) == 600
    assert all(re.fullmatch("[a-z]+-[a-z]+", needle.key) for needle in drawn)
    for needle in drawn:
        if needle.kind == "number":
            assert re.fullmatch("[1-9][0-9]{6}", needle.value)
        else:
            assert uuid.UUID(needle.value).version == 4
    assert draw("s_niah_1", 7, seed=1) == draw("s_niah_1", 7, seed=1) != draw("s_niah_1", 7, seed=2)


def test_a_port_leaves_the_haystack_empty_where_500_words_do_not_fit(loaded, book):
    short = {"text": book, "short_haystacks": True}
    words = " ".join(haystacks.sentences(book)).split()
    shown = " ".join((words * 3)[:500])
    room = len(shown) + 400 + 128
    for length, expected in ((1500, ""), (room, shown), (room + len(shown) - 500, shown)):
        prompt = build(loaded, "s_niah_2", length, NEEDLE, 1.0, **short)
        assert prompt.haystack == f"{expected} {NEEDLE.sentence}".strip()
    assert build(loaded, "s_niah_2", 1500, NEEDLE, 1.0, book).units > 10, "ours is not empty"
    assert build(loaded, "s_niah_1", 3000, NEEDLE, 0.5, short_haystacks=True).units % 5 == 0


def test_sentences_keep_their_abbreviations_and_the_text_between_its_marks(tmp_path):
    assert haystacks.split(WORDS) == (
        "The old ferry left late.",
        "Nobody on the pier saw it go, not even Mr. Hale!",
        "Was it the fog?",
    )
    path = tmp_path / "edition.txt"
    path.write_text("Licence.\n*** START OF THE BOOK X ***\nOne.\nTwo.\n*** END OF THE BOOK X ***\nMore.\n")
    assert haystacks.sentences(str(path)) == ("One.", "Two.")
    assert haystacks.first(("One.", "Two."), 3, start=1) == ["Two.", "One.", "Two."]


@pytest.mark.parametrize("task", needles.TASKS)
def test_a_length_too_short_names_the_least(loaded, book, task):
    with pytest.raises(ValueError, match="needs at least") as refused:
        build(loaded, task, 300, NEEDLE, 0.5, book)
    least = int(re.search(r"at least (\d+)", str(refused.value))[1])
    assert build(loaded, task, least, NEEDLE, 0.5, book).units == 1
    with pytest.raises(ValueError, match=f"{least - 1} tokens are too few"):
        build(loaded, task, least - 1, NEEDLE, 0.5, book)


def test_a_needle_that_the_tokenizer_cannot_carry(loaded, book):
    with pytest.raises(ValueError, match=r"tiny-llama can't carry the needle .*café"):
        build(loaded, "s_niah_2", 1500, Needle("number", "café", "1"), 0.5, book)


@pytest.mark.parametrize("depth", [-0.1, 1.01, float("nan")])
def test_a_depth_outside_0_to_1(loaded, book, depth):
    with pytest.raises(ValueError, match=r"a depth lies in \[0, 1\]"):
        build(loaded, "s_niah_2", 1500, NEEDLE, depth, book)
    with pytest.raises(ValueError, match=r"a depth lies in \[0, 1\]"):
        draw("s_niah_2", 0, depths=[0.5, depth])


def test_an_empty_book(tmp_path, loaded):
    path = tmp_path / "empty.txt"
    path.write_text(" \n")
    with pytest.raises(ValueError, match="holds no sentence"):
        build(loaded, "s_niah_2", 1500, NEEDLE, 0.5, str(path))


def test_what_else_is_refused(loaded, book):
    with pytest.raises(ValueError, match="no S-NIAH task is called 's_niah_4'"):
        draw("s_niah_4", 0)
    with pytest.raises(ValueError, match='depths is "ruler"'):
        draw("s_niah_2", 0, depths="middle")
    with pytest.raises(ValueError, match="nothing to ask"):
        prompts(loaded, "s_niah_2", 1500, 0, 0, text=book)
