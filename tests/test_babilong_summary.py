"""BABILong's tables and words: what guessing scores, who clears it, and where needed facts stand."""

import re

import babilong_small as small
import numpy as np
import pandas as pd
import pytest
from test_babilong import needs_data, original

from swalib import SWA, Full, results
from swalib.evals import babi, babilong, babilong_facts, babilong_summary, resampling
from swalib.evals.babi import PLACES, TASKS, Item
from swalib.evals.babilong_items import LABELS, baselines
from swalib.evals.babilong_prompts import WORDINGS
from swalib.reported import findings

ITEMS = small.items()
ROWS = babilong_summary.summarise(ITEMS)


# ---- guessing.


@needs_data
@pytest.mark.parametrize("task", TASKS)
def test_the_guesses_are_those_of_the_original_questions(task):
    found = baselines(task, [Item(*one) for one in original(task)])
    assert vars(babilong_summary.GUESSING[task]) == pytest.approx(vars(found))


@pytest.mark.parametrize("task", TASKS)
def test_our_own_stories_reward_guessing_alike(task):
    ours = baselines(task, [babi.item(task, number) for number in range(300)])
    known = babilong_summary.guessing(task)
    assert ours.chance == known.chance
    assert ours.informed == pytest.approx(known.informed, abs=0.02)
    assert ours.majority == pytest.approx(known.majority, abs=0.06)


def test_a_mean_s_guess_is_the_mean_of_its_tasks():
    four, five = babilong_summary.guessing("qa1-4"), babilong_summary.guessing("qa1-5")
    assert four.chance == pytest.approx(1 / 6)
    assert four.majority == pytest.approx((0.187 + 0.187 + 0.215 + 0.177) / 4)
    assert five.chance == pytest.approx((4 / 6 + 1 / 7) / 5)
    assert babilong_summary.best_guess("qa5") == pytest.approx(0.30575)
    with pytest.raises(ValueError, match="no task or mean is called 'qa6': choose from qa1"):
        babilong_summary.guessing("qa6")


# ---- printed.


def test_the_printed_means_are_the_tables():
    rows = babilong_summary.printed().set_index(["method", "task", "context"])
    assert len(rows) == 3 * 7 * 4
    for method, own in (("SWA", (16.75, 16.25, 11.75)), ("LoLCATs", (17.5, 7.75, 2.25))):
        found = [100 * rows.loc[(method, "qa1-4", c), "value"] for c in ("1K", "2K", "4K")]
        assert found == pytest.approx(own)
        assert found == pytest.approx(findings.babilong(method).loc[["1K", "2K", "4K"]].tolist())
    low, high = (rows.loc[("SWA", "qa1-4", "1K"), name] for name in ("low", "high"))
    assert low < 1 / 6 < high
    assert rows.loc[("SWA", "qa1-4", "4K"), "high"] < 1 / 6, "at 4K below guessing, if n is 100"


def test_the_printed_words_quote_tables_4_and_6():
    told = babilong_summary.printed_words()
    assert (told["four_SWA_4K"], told["four_LoL_4K"], told["ratio_4K"]) == (15, 3, 5)
    assert told["ratio_1K"] < 1
    assert told["mean_SWA_2K"].startswith("16.3 % (")
    assert (told["majority_qa3"], told["majority_qa5"]) == (21.5, 18.9)


# ---- measured.


def share(task, length, window, column, sinks=4):
    own = ITEMS[(ITEMS["model"] == "m1") & (ITEMS["task"] == task) & (ITEMS["context_tokens"] == length)]
    own = (
        own[own["window"].isna()]
        if window is None
        else own[own["window"].eq(window) & own["sinks"].eq(sinks)]
    )
    return own[column].mean()


@pytest.mark.parametrize(("task", "length"), [("qa1", 512), ("qa5", 1024)])
@pytest.mark.parametrize("window", [None, 256])
def test_scores_are_the_items_means(task, length, window):
    spec = SWA(window, 4) if window else Full()
    for measure in ("official", "substring", "invalid"):
        found = babilong_summary.number(ROWS, "m1", task, length, measure, spec)
        assert found.value == pytest.approx(share(task, length, window, measure))
        assert found[1:] == resampling.wilson(found.value, 40)[1:]
    gap = babilong_summary.number(ROWS, "m1", task, length, "gap", spec).value
    wanted = share(task, length, window, "substring") - share(task, length, window, "official")
    assert gap == pytest.approx(wanted)


def test_a_mean_weighs_its_tasks_alike_and_is_as_sure_as_they_together():
    fewer = ITEMS[~((ITEMS["task"] == "qa4") & (ITEMS["item"] >= 10))]
    rows = babilong_summary.summarise(fewer)
    found = babilong_summary.number(rows, "m1", "qa1-4", 512, "official", Full())
    own = [babilong_summary.number(rows, "m1", task, 512, "official", Full()).value for task in TASKS[:4]]
    assert found.value == pytest.approx(np.mean(own))
    assert found == pytest.approx(resampling.wilson(np.mean(own), 16 / (3 / 40 + 1 / 10)))


def test_a_mean_without_one_of_its_tasks_is_not_made():
    rows = babilong_summary.summarise(ITEMS[ITEMS["task"] != "qa5"])
    assert "qa1-4" in set(rows["task"])
    assert "qa1-5" not in set(rows["task"])


def test_a_signal_clears_every_guess_with_its_whole_interval():
    full = ROWS[ROWS["window"].isna() & (ROWS["measure"] == "official")]
    for row in full.itertuples():
        assert row.signal == (row.low > max(vars(babilong_summary.guessing(row.task)).values()))
    signal = {(row.task, row.context_tokens): row.signal for row in full[full["model"] == "m1"].itertuples()}
    assert signal["qa1", 512]
    assert not signal["qa3", 512]
    student = ROWS[ROWS["window"].notna()]
    assert all(row.signal == signal[row.task, row.context_tokens] for row in student.itertuples())
    alone = babilong_summary.summarise(ITEMS[ITEMS["window"].notna()])
    assert alone["signal"].isna().all(), "nobody knows without full attention"


def test_words_are_the_rows_and_gaps_are_said():
    told = babilong_summary.words(ROWS, "m1", SWA(256, 4))
    four = babilong_summary.number(ROWS, "m1", "qa1-4", 1024, "official", SWA(256, 4))
    assert told["context"] == "1,024"
    assert told["swa_official"] == babilong_summary.in_percent(four)
    assert (told["cells"], told["items"]) == ("10", "40")
    assert len(told["clear"].split(", ")) == int(told["clear_n"]) > 2
    assert "qa1 at 512" in told["clear"]
    assert "qa3" not in told["clear"]
    assert re.fullmatch(r"\d+ points \(.*, qa\d at .* tokens\)", told["most_gap"])
    absent = babilong_summary.words(ROWS, "m2", SWA(256, 4))
    assert absent["context"] == absent["swa_gap"] == "not measured yet"
    nobody = babilong_summary.words(ROWS, "m3", SWA(256, 4))
    assert (nobody["clear"], nobody["cells"], nobody["most_gap"]) == ("none", "0", "not measured yet")


def test_no_items_are_refused():
    with pytest.raises(ValueError, match="there are no items of BABILong"):
        babilong_summary.summarise(ITEMS.iloc[:0])


def test_listing_every_place_is_right_by_the_substring_alone():
    right, listing, second, none = babilong_summary.verdicts()
    assert (right.official, right.substring) == (True, True)
    assert all(place in listing.output for place in PLACES)
    assert (listing.official, listing.substring) == (False, True)
    assert (second.official, second.substring) == (False, True)
    assert (none.official, none.substring) == (False, False)


# ---- facts.


def test_needed_facts_by_hand():
    facts = ("Mary went to the office.", "John went to the garden.", "Mary got the milk there.",
             "Mary moved to the garden.", "John moved to the kitchen.")  # fmt: skip
    cases = (("Where is Mary?", "garden", (3, 3)), ("Where is the milk?", "garden", (2, 3)),
             ("Where was the milk before the garden?", "office", (0, 3)),
             ("Where is John?", "kitchen", (4, 4)))  # fmt: skip
    for question, answer, wanted in cases:
        assert babilong_facts.needed(Item(facts, question, answer)) == wanted, question
    with pytest.raises(ValueError, match="'office' does not follow from the facts"):
        babilong_facts.needed(Item(facts, "Where is Mary?", "office"))


@pytest.mark.parametrize("task", TASKS)
def test_what_is_needed_suffices_and_no_less_does(task):
    for number in range(30):
        story = babi.item(task, number)
        first, last = babilong_facts.needed(story)
        assert 0 <= first <= last < len(story.facts)
        assert babi.solve(story.facts[first:], story.question) == story.answer
        later = range(first + 1, len(story.facts))
        assert all(babi.solve(story.facts[n:], story.question) != story.answer for n in later)
        assert babi.solve(story.facts[: last + 1], story.question) == story.answer
        if task == "qa1":
            assert first == last


class Made(babilong.Cell):
    """A cell whose arrays are made up: each fact takes ten tokens, and the prompt ends at 1,000."""

    def compute(self):
        stories = [babi.item(self.task, n, self.seed) for n in range(self.first, self.first + self.count)]
        facts = np.full((self.count, max(len(story.facts) for story in stories), 2), -1, np.int32)
        for n, story in enumerate(stories):
            starts = 100 + 10 * np.arange(len(story.facts))
            facts[n, : len(starts)] = np.stack([starts, starts + 10], 1)
        answers = [LABELS[self.task].index(story.answer) for story in stories]
        found = {"facts": facts, "answer": np.array(answers, np.int8)}
        return results.Measured(
            [results.Value("n", self.count, "1", self.count)],
            found | {"prompt_tokens": np.full(self.count, 1000, np.int32)},
        )


def test_distances_count_back_from_the_prompt_s_end(monkeypatch):
    monkeypatch.setattr(babilong_facts, "Cell", Made)
    found = babilong_facts.distances("smoke", ["tiny-llama"], ("qa1", "qa2"), [512], 5)
    assert len(found) == 10
    for row in found.itertuples():
        first, last = babilong_facts.needed(babi.item(row.task, row.item))
        assert (row.first, row.last) == (900 - 10 * first, 900 - 10 * last)
    for mode in ("stored", "reproduce"):
        assert babilong_facts.distances(mode, ["tiny-llama"], ("qa1",), [512], 5).empty


def test_a_story_that_is_not_generated_any_more_is_refused(monkeypatch):
    monkeypatch.setattr(babilong_facts, "_STORIES", 2)
    with pytest.raises(ValueError, match="item 0 of qa1 is not one that is generated today"):
        babilong_facts._told(babilong.Cell("tiny-llama", Full(), "qa1", 512), 0, 10_000, "garden")


def test_a_fact_is_within_if_the_window_reaches_its_first_token():
    rows = [("m", "qa1", 512, 0, 252, 20), ("m", "qa1", 512, 1, 253, 252)]
    found = pd.DataFrame(rows, columns=babilong_facts.COLUMNS)
    shares = babilong_facts.within(found, [4, 256], [0, 4])
    assert shares[["window", "sinks"]].to_numpy().tolist() == [[4, 0], [256, 0], [256, 4]]
    assert shares["within"].tolist() == [0.0, 1.0, 0.5]
    assert babilong_facts.within(found, [256], [4], "last")["within"].tolist() == [1.0]
    told = babilong_facts.words(found, "m", SWA(256, 4))
    assert told == {"inside": "50 % of the items at 512 tokens", "facts_n": "2"}
    told = babilong_facts.words(found, "other", SWA(256, 4))
    assert told == {"inside": "not measured yet", "facts_n": "0"}
    more = [("m", task, 1024, 0, first, 20) for task, first in (("qa1", 9), ("qa2", 999))]
    more += [("m", "qa2", 512, 0, 9, 9), ("m", "qa1", 2048, 0, 999, 999)]  # at 2,048 a task is missing
    both = pd.concat([found, pd.DataFrame(more, columns=babilong_facts.COLUMNS)])
    told = babilong_facts.words(both, "m", SWA(256, 4))
    said = "67 % of the items at 512 tokens, 50 % of the items at 1,024 tokens"
    assert told == {"inside": said, "facts_n": "5"}


# ---- the released wording.


def test_the_parts_of_a_prompt_are_a_blank_line_apart():
    for task, wording in WORDINGS.items():
        parts = wording.prompt("FACTS", "Where?").split("\n\n")
        assert parts[-2:] == ["<context>\nFACTS\n</context>", "Question: Where?"]
        assert parts[-3] == wording.post_prompt
        assert parts[0] == wording.instruction
        assert len(parts) == (6 if task == "qa1" else 5), "only qa1's examples have a blank line between them"
