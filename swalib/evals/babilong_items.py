"""BABILong's items: bAbI stories scattered in a book, how they are asked, two scorers, three baselines."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swalib.evals import babi, haystacks
from swalib.evals.babilong_prompts import WORDINGS
from swalib.evals.harness import template
from swalib.models import Loaded

LABELS = {task: babi.PLACES for task in babi.TASKS} | {"qa5": babi.GIVERS + babi.OBJECTS}
_STORIES = 200  # drawn until one fits, before a length is refused


# ---- scorers.


def named(task: str, question: str, output: str) -> set[str]:
    """The task's labels that the first sentence of `output` names, lower-cased; none of the question's."""
    first = output.lower()
    for end in (".", "<context>", "<example>"):
        first = first.split(end)[0]
    labels = {label.lower() for label in LABELS[task]}
    return {label for label in labels if label in first and label not in question.lower()}


def official(task: str, question: str, answer: str, output: str) -> bool:
    """BABILong's own score: the answer is the only label that the first sentence names."""
    return named(task, question, output) == {answer.lower()}


def substring(answer: str, output: str) -> bool:
    """The score of lm-eval's port: the output contains the answer, whatever else it lists."""
    return answer.lower() in output.lower()


@dataclass(frozen=True)
class Baselines:
    """Scores that need no reading, fractions.

    Args:
        chance: of a label drawn from the whole set. informed: drawn from those of the question's kind
            (persons or objects) that it does not name. majority: of always giving the commonest answer.
    """

    chance: float
    informed: float
    majority: float


def baselines(task: str, items: Sequence[babi.Item]) -> Baselines:
    """The baselines on these items.

    Raises:
        ValueError: no items.
    """
    if not items:
        raise ValueError(f"no {task} items: there is nothing to compare with")
    answers = Counter(item.answer for item in items)
    shares = [1 / len(_candidates(task, item)) for item in items]
    return Baselines(1 / len(LABELS[task]), float(np.mean(shares)), max(answers.values()) / len(items))


def _candidates(task: str, item: babi.Item) -> list[str]:
    kinds = (babi.PLACES, babi.GIVERS, babi.OBJECTS)
    kind = next(kind for kind in kinds if item.answer in kind)
    return [label for label in kind if label.lower() not in item.question.lower()]


# ---- prompts.


@dataclass(frozen=True)
class Prompt:
    """One item.

    Args:
        text: what the model reads. item: the story in it.
        context_tokens: of the facts and the book around them. tokens: of the whole text.
        facts: [first, last + 1) tokens of each fact in the text.
    """

    text: str
    item: babi.Item
    reply: str
    context_tokens: int
    tokens: int
    facts: tuple[tuple[int, int], ...]


def build(
    loaded: Loaded,
    task: str,
    context_tokens: int,
    number: int,
    seed: int = 0,
    text: str = "novel",
    template_: bool = False,
) -> Prompt:
    """Item `number`: its facts in their order at sorted uniform places between sentences of a book.

    The book begins at a sentence drawn at random. Stories whose facts alone are too long are drawn again.

    Args:
        context_tokens: that facts and book may take, the rest of the prompt not counted; one sentence more
            would take more.
        template_: whether the tokenizer's chat template wraps the prompt, as is done for instructed models.

    Raises:
        ValueError: no such task, a length too short for its facts (the message names the least), a text
            without a sentence, or a tokenizer without a chat template.
    """
    book = haystacks.sentences(text)
    rng = random.Random(f"{seed} {task} {number} book")
    story = _story(loaded, task, context_tokens, number, seed)
    start, places = rng.randrange(len(book)), sorted(rng.random() for _ in story.facts)

    def context(count: int) -> list[str]:
        return scatter(story.facts, places, haystacks.first(book, count, start))

    count = haystacks.fill(lambda n: _tokens(loaded, " ".join(context(n))), context_tokens, least=0)
    words = WORDINGS[task].prompt(" ".join(context(count)), story.question)
    words = template(loaded)([{"role": "user", "content": words}]) if template_ else words
    found = haystacks.spans_of(loaded, words, _characters(words, context(count), story.facts))
    reply = WORDINGS[task].answer.format(asked=story.question.rstrip("?").split(), label=story.answer)
    return Prompt(
        words,
        story,
        reply if template_ else f"\nAnswer: {reply}",
        _tokens(loaded, " ".join(context(count))),
        haystacks.count_tokens(loaded, words),
        tuple(found),
    )


def scatter(facts: Sequence[str], places: Sequence[float], sentences: Sequence[str]) -> list[str]:
    """Facts among sentences: fact k before sentence number int(places[k] · (n + 1)), n of them the last."""
    before = [int(place * (len(sentences) + 1)) for place in places]
    mixed: list[str] = []
    for n in range(len(sentences) + 1):
        mixed += [fact for fact, place in zip(facts, before, strict=True) if place == n]
        mixed += sentences[n : n + 1]
    return mixed


def _story(loaded: Loaded, task: str, context_tokens: int, number: int, seed: int) -> babi.Item:
    """The item, or the first of those drawn in its place whose facts fit."""
    least = None
    for redrawn in range(_STORIES):
        story = babi.item(task, number, seed if not redrawn else f"{seed}+{redrawn}")
        need = _tokens(loaded, " ".join(story.facts))
        if need <= context_tokens:
            return story
        least = min(need, least or need)
    raise ValueError(
        f"{context_tokens} tokens are too few for the facts of {task}: the shortest of {_STORIES} stories "
        f"takes {least}"
    )


def _tokens(loaded: Loaded, text: str) -> int:
    return haystacks.count_tokens(loaded, text) - (loaded.bos is not None)


def _characters(text: str, context: Sequence[str], facts: Sequence[str]) -> list[tuple[int, int]]:
    """Where the facts stand in `text`, which holds the context's parts joined by spaces."""
    at, found, left = text.index(" ".join(context)), [], list(facts)
    for part in context:
        if left and part == left[0]:
            found.append((at, at + len(part)))
            left.pop(0)
        at += len(part) + 1
    return found
