"""Items come whole, in lm-eval's form, from where they were asked for; and prompts are lm-eval's."""

import json

import numpy as np
import pytest

from swalib import items, models
from swalib.evals import mmlu, prompts
from swalib.wheels import DataUnavailable

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e '.[eval]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval's and datasets' own
COUNTS = {"mmlu": 14042, "arc_challenge": 1172, "hellaswag": 1000, "piqa": 1838, "winogrande": 1267}
OPTIONS = {"mmlu": 4, "hellaswag": 4, "piqa": 2, "winogrande": 2}


@pytest.mark.network
@pytest.mark.parametrize("task", COUNTS)
def test_every_item_of_a_wheel_is_read(task):
    assert len(items.documents(task)) == COUNTS[task]


@pytest.mark.network
@pytest.mark.parametrize("task", COUNTS)
def test_real_items_are_worded(task):
    asked = prompts.prompts(task, 5, 0, 3)
    for prompt in asked:
        assert prompt.contexts[0].count(prompts.DELIMITER) >= 5
        assert len(prompt.contexts) == OPTIONS.get(task, len(prompt.contexts))
        assert all(continuation.startswith(" ") for continuation in prompt.continuations)
        assert 0 <= prompt.gold < len(prompt.contexts)


@pytest.mark.network
def test_scored_items_are_never_worked_examples():
    for task in ("arc_challenge", "piqa", "winogrande", "hellaswag"):
        documents = items.documents(task)
        shown = {json.dumps(document) for document in documents[-items.HELD_OUT :][:5]}
        assert not shown & {json.dumps(document) for document in documents[: -items.HELD_OUT]}


def test_mmlus_examples_are_five_but_for_three_subjects():
    found = {subject: len(examples) for subject, examples in mmlu.mmlu_examples().items()}
    assert len(found) == 57
    fewer = {subject: count for subject, count in found.items() if count != 5}
    assert fewer == {"college_chemistry": 3, "formal_logic": 4, "human_aging": 4}
    for examples in mmlu.mmlu_examples().values():
        for example in examples:
            assert len(example["choices"]) == 4
            assert not any(
                mark in text for text in example["choices"] for mark in ("(A)", "(B)", "(C)", "(D)")
            )


def test_mmlus_first_example_reads_as_in_the_development_set():
    first = mmlu.mmlu_examples()["abstract_algebra"][0]
    assert first["question"].startswith("Statement 1 | Every element of a group generates")
    assert first["choices"] == ["True, True", "False, False", "True, False", "False, True"]
    assert first["answer"] == 2
    assert "\\factorial{n}" in mmlu.mmlu_examples()["abstract_algebra"][1]["question"]


def test_parts_follow_one_another_and_grow_from_the_same_order():
    whole = [prompt.place for prompt in prompts.prompts("piqa", 0, 0, 10, source="toy")]
    parts = [
        prompt.place
        for n in (0, 4, 8)
        for prompt in prompts.prompts("piqa", 0, n, min(4, 10 - n), source="toy")
    ]
    assert parts == whole
    assert len(set(whole)) == 10
    assert [prompt.place for prompt in prompts.prompts("piqa", 0, 0, 10, seed=1, source="toy")] != whole


def test_the_harness_divides_by_the_choices_characters():
    for prompt in prompts.prompts("arc_easy", 0, 0, 12, source="toy"):
        assert [len(text) - 1 for text in prompt.continuations] == list(prompt.chars)


def test_winogrande_scores_one_ending_after_two_beginnings():
    for prompt in prompts.prompts("winogrande", 0, 0, 12, source="toy"):
        assert len(set(prompt.continuations)) == 1
        assert len(prompt.contexts) == 2


def test_hellaswag_without_a_label_begins_with_its_context_capitalised():
    contexts = [prompt.contexts[0] for prompt in prompts.prompts("hellaswag", 0, 0, 12, source="toy")]
    for context in contexts:
        last = context.rsplit(". ", 1)[1]
        assert last == last.capitalize()


def test_headers_end_before_the_question():
    loaded = models.load("tiny-llama")
    one, other = prompts.prompts("arc_easy", 5, 0, 2, source="toy")
    first, second = (prompts.tokens(loaded, prompt) for prompt in (one, other))
    assert first.header == second.header > 100
    assert first.rows[0][: first.header] == second.rows[0][: second.header]
    assert loaded.tokenizer.decode(list(first.rows[0][first.header :])).startswith("\n\nQuestion:")


def test_tokens_split_where_lm_eval_splits():
    loaded = models.load("tiny-llama")
    prompt = prompts.Prompt(0, ("ab ", "ab"), ("c", " cd"), 0, (1, 2), 0)
    item = prompts.tokens(loaded, prompt)
    assert item.starts == (2, 2)  # the space at the end of a context belongs to its continuation
    assert [len(row) for row in item.rows] == [4, 5]


class Merging:
    """A tokenizer that makes one token of every text."""

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [hash(text) % 1000]}


def test_merging_tokenizers_are_refused():
    loaded = models.Loaded(None, Merging(), "merging", "local", "", None)
    prompt = prompts.Prompt(0, ("Answer:",), (" A",), 0, (1,), 0)
    with pytest.raises(ValueError, match="merges the end of"):
        prompts.tokens(loaded, prompt)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lambada", 0, 0, 1), "no task is called"),
        (("piqa", 0, 0, 0), "nothing to ask"),
        (("piqa", -1, 0, 1), "nothing to ask"),
        (("piqa", 0, 8, 5, 0, "toy"), "has 12 items to score, 13"),
        (("piqa", 6, 0, 1, 0, "toy"), "5 worked examples, not 6"),
        (("piqa", 0, 0, 1, 0, "local"), "'wheel' and 'hub' have"),
        (("piqa", 0, 0, 1, 0, "web"), "choose from wheel, local, hub"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(arguments, said):
    with pytest.raises(ValueError, match=said):
        prompts.prompts(*arguments)


def test_overlapping_examples_are_refused(monkeypatch):
    documents = [{"goal": f"g{n}", "sol1": "a", "sol2": "b", "label": 0} for n in range(3)]
    monkeypatch.setattr(prompts, "_toy", lambda name: (documents, lambda _: documents[:1]))
    with pytest.raises(ValueError, match="also its worked examples"):
        prompts.prompts("piqa", 1, 0, 3, source="toy")
    assert len(prompts.prompts("piqa", 0, 0, 3, source="toy")) == 3


def test_another_lm_eval_is_refused(monkeypatch):
    monkeypatch.setattr(prompts, "version", lambda name: "0.5.0")
    with pytest.raises(RuntimeError, match="pip install lm-eval"):
        prompts.prompts("piqa", 0, 0, 1, source="toy")


def test_local_items_need_their_folder_and_their_file(monkeypatch, tmp_path):
    monkeypatch.delenv("SWALIB_DATA", raising=False)
    with pytest.raises(DataUnavailable, match="set SWALIB_DATA"):
        items.documents("arc_easy")
    monkeypatch.setenv("SWALIB_DATA", str(tmp_path))
    (tmp_path / "arc_easy.jsonl").write_text("{}")
    with pytest.raises(DataUnavailable, match="not the arc_easy"):
        items.documents("arc_easy")


def test_items_are_identified_without_reading_them():
    assert len({items.items_id(task) for task in items.TASKS}) == 6
    assert np.all([len(items.items_id(task)) == 16 for task in items.TASKS])
