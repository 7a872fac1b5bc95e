"""S-NIAH measured: who finds the needle, the null model by hand, rows that resume."""

import re
from dataclasses import replace

import numpy as np
import pytest

from swalib import SWA, Full, models, results
from swalib.evals import needles, niah
from swalib.evals.replies import Reply

WORDS = "The old ferry left late. Nobody on the pier saw it go, not even Mr. Hale! Was it the fog? "


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A text of 60 sentences, all different."""
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("\n".join(f"Day {n}. {WORDS}" for n in range(15)), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def loaded():
    return models.load("tiny-llama")


# ---- who finds it.


def test_scores_do_not_depend_on_batch_or_chunks(book):
    cell = niah.Cell("tiny-llama", SWA(40, 4), "s_niah_2", 700, count=3, text=book, new_tokens=4)
    one = replace(cell, batch_size=1, chunk_tokens=4096).compute()
    other = replace(cell, batch_size=8, chunk_tokens=64).compute()
    for name, array in one.arrays.items():
        np.testing.assert_allclose(other.arrays[name], array, rtol=0, atol=2e-4, err_msg=name)


class Copyist:
    """Reads like a `Reader`, and answers with the value in the part of the prompt that `view` shows."""

    def __init__(self, loaded, student, *_):
        self.loaded, self.student = loaded, student

    def view(self, ids: list[int]) -> list[int]:
        return ids

    def read(self, asked):
        found = []
        for question in asked:
            ids = self.view(models.encode(self.loaded, question.prompt)[0].tolist())
            text = self.loaded.tokenizer.decode(ids)
            hit = re.search(r"One of the special magic \w+ for [\w-]+ is: ([\w-]+)\.", text)
            found.append(Reply(hit[1].upper() if hit else "no idea 0000000", 1, -1.0, 1))
        return found


class Blind(Copyist):
    def view(self, ids):
        return []


class Windowed(Copyist):
    """Sees what the last token of the prompt sees, as a double loop over positions tells."""

    def view(self, ids):
        i, w, s = len(ids) - 1, 500, 4
        return [token for j, token in enumerate(ids) if j < s or i - j < w - s]


@pytest.mark.parametrize("task", needles.TASKS)
@pytest.mark.parametrize(("reader", "score"), [(Copyist, 1.0), (Blind, 0.0)])
def test_a_copying_model_scores_1_and_a_blind_one_0(monkeypatch, book, task, reader, score):
    monkeypatch.setattr(niah, "Reader", reader)
    cell = niah.Cell("tiny-llama", SWA(500, 4), task, 1500, count=10, text=book)
    value = {found.metric: found.value for found in cell.compute().values}
    assert value["string_match"] == score


@pytest.mark.parametrize("task", needles.TASKS)
def test_a_model_that_copies_from_its_window_alone_is_the_null_model(monkeypatch, book, task):
    monkeypatch.setattr(niah, "Reader", Windowed)
    measured = niah.Cell("tiny-llama", SWA(500, 4), task, 1500, text=book).compute()
    null = niah.null(measured.arrays, SWA(500, 4))
    np.testing.assert_array_equal(measured.arrays["hit"], null["answer"])
    assert 0 < null["answer"].mean() <= null["question"].mean() < 1
    value = {found.metric: found.value for found in measured.values}
    assert value["null_from_question"] == null["question"].mean()


def test_the_null_model_by_hand():
    spec = SWA(6, 2)  # recents: the query and three before it
    assert [niah.sees(9, start, 9, spec) for start in (5, 6, 7)] == [False, True, True]
    assert niah.sees(9, 0, 2, spec), "a needle among the sinks"
    assert not niah.sees(9, 1, 3, spec)
    assert not niah.sees(5, 4, 7, spec), "not yet read"
    assert niah.sees(5, 0, 6, Full())
    spans = np.array([[5, 8], [6, 9], [7, 9], [8, 9]])
    found = {"needle": spans, "question": np.full(4, 10), "prompt_tokens": np.full(4, 12)}
    assert {where: seen.tolist() for where, seen in niah.null(found, spec).items()} == {
        "question": [False, True, True, True],  # token 9 sees from 6 on
        "answer": [False, False, False, True],  # token 11 sees from 8 on
    }


# ---- the rows.


def test_measured_once_resumed_and_read_back(results_folder, book, capsys, monkeypatch):
    asked = {"tasks": ["s_niah_2"], "context_tokens": [700, 900], "text": book, "new_tokens": 4}
    specs = [Full(), SWA(64, 4)]
    with pytest.raises(results.MissingResult, match="measure it with: swa measure niah"):
        niah.measure("stored", "tiny-llama", specs, limit=3, **asked)
    with pytest.raises(results.MissingResult, match="measure it with: swa measure niah"):
        niah.measure("stored", "tiny-llama", specs, limit=3, gaps=True, **asked)
    one = niah.measure("run", "tiny-llama", specs[:1], limit=3, **asked)
    assert niah.measure("stored", "tiny-llama", specs, limit=3, gaps=True, **asked).equals(one)
    rows = niah.measure("run", "tiny-llama", specs, limit=3, **asked)
    said = capsys.readouterr().err
    assert said.count("missing run") == 2
    assert "core-hours for 2 missing runs" in said
    monkeypatch.setattr(niah.Cell, "compute", None)
    again = niah.measure("stored", "tiny-llama", specs, limit=3, **asked)
    assert again.equals(rows)
    assert len(rows) == 2 * 2 * 3
    pairs = rows.groupby(["context_tokens", "item"])[["depth", "prompt_tokens", "needle_start"]].nunique()
    assert (pairs == 1).all(axis=None), "the same items under every spec"
    assert (rows["prompt_tokens"] + 4 <= rows["context_tokens"]).all()


def test_parts_are_the_items_in_turn(book):
    cell = niah.Cell("tiny-llama", SWA(64, 4), "s_niah_1", 700, count=4, new_tokens=2)
    whole = cell.compute().arrays["loglikelihood"]
    parts = [replace(cell, first=n, count=2).compute().arrays["loglikelihood"] for n in (0, 2)]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-4)


def test_every_setting_has_a_key_of_its_own(book):
    cell = niah.Cell("tiny-llama", SWA(64, 4), "s_niah_2", 700)
    changed = [
        {"spec": SWA(64, 0)},
        {"spec": SWA(64, 4, "cache")},
        {"task": "s_niah_3"},
        {"context_tokens": 800},
        {"first": 25},
        {"count": 5},
        {"seed": 1},
        {"depths": "uniform"},
        {"depths": (0.5,)},
        {"text": book},
        {"short_haystacks": True},
        {"new_tokens": 64},
        {"dtype": "bfloat16"},
        {"model": "tiny-qwen2"},
    ]
    keys = [results.run_key(replace(cell, **change).config()) for change in [{}, *changed]]
    assert len(set(keys)) == len(keys)
    assert results.run_key(replace(cell, batch_size=1, chunk_tokens=3).config()) == keys[0]


def test_a_limit_below_1_is_refused():
    with pytest.raises(ValueError, match="limit must be at least 1"):
        niah.measure("smoke", "tiny-llama", [Full()], limit=0)
