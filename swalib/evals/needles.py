"""S-NIAH-1, 2 and 3 (RULER, arXiv 2404.06654): one sentence hidden in a haystack, and what asks for it.

RULER's words, accounting and depths: a prompt and the tokens generated after it take at most the given
length. Haystacks end with a whole sentence here; RULER's end with a word.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from swalib.evals import haystacks
from swalib.evals.replies import Question
from swalib.evals.words import ADJECTIVES, NOUNS
from swalib.models import Loaded

NEW_TOKENS = 128  # that RULER lets a model generate, counted in the length
DEPTHS = tuple(round(float(depth)) / 100 for depth in np.linspace(0, 100, 40))  # RULER's, of essay needles
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
SHORT_WORDS = 500  # steps in which ports of RULER fill essays; at 512 tokens not one fits

_BEFORE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you "
    "about the {kind} afterwards.\n"
)
_QUESTION = "\nWhat is the special magic {kind} for {key} mentioned in the provided text?"
_PREFIX = " The special magic {kind} for {key} mentioned in the provided text is"


def _number(rng: random.Random) -> str:
    return str(rng.randint(10**6, 10**7 - 1))


def _uuid4(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


class Task(NamedTuple):
    """essays: whether the haystack is a text; else the noise line, repeated. kind: of the value."""

    essays: bool
    kind: str
    value: Callable[[random.Random], str]


TASKS = {
    "s_niah_1": Task(False, "number", _number),
    "s_niah_2": Task(True, "number", _number),
    "s_niah_3": Task(True, "uuid", _uuid4),
}


@dataclass(frozen=True)
class Needle:
    """What is hidden: a value under a key. kind: "number" or "uuid"."""

    kind: str
    key: str
    value: str

    @property
    def sentence(self) -> str:
        """As it stands in the haystack."""
        return f"One of the special magic {self.kind}s for {self.key} is: {self.value}."


@dataclass(frozen=True)
class Prompt:
    """One item.

    Args:
        before, haystack, question, prefix: the prompt's parts in their order; the needle stands in the
            haystack.
        depth: asked for, in [0, 1]. units: sentences or lines of the haystack, the needle not counted.
        tokens: of the whole prompt. span: [first, last + 1) tokens of the needle. asked: first token of the
            question.
        haystack_tokens: between the instruction and the question, the needle's among them.
    """

    before: str
    haystack: str
    question: str
    prefix: str
    needle: Needle
    depth: float
    units: int
    tokens: int = 0
    span: tuple[int, int] = (0, 0)
    asked: int = 0
    haystack_tokens: int = 0

    @property
    def text(self) -> str:
        """What the model reads."""
        return self.before + self.haystack + self.question + self.prefix

    def ask(self) -> Question:
        """With the value as the answer."""
        return Question(self.text, f" {self.needle.value}")


def draw(
    task: str, item: int, seed: int = 0, depths: str | Sequence[float] = "ruler"
) -> tuple[Needle, float]:
    """Needle and depth of an item: the same for every model, spec and length.

    Args:
        depths: "ruler": one of `DEPTHS` in a text, a random line in noise. "uniform": anywhere. Or the depths
            to go through, item by item.

    Raises:
        ValueError: no such task, or a depth outside [0, 1].
    """
    kind = task_of(task)
    rng = random.Random(f"{seed} {task} {item}")
    needle = Needle(kind.kind, f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}", kind.value(rng))
    if isinstance(depths, str):
        if depths not in ("ruler", "uniform"):
            raise ValueError(f'depths is "ruler", "uniform" or a list of depths, not {depths!r}')
        anywhere = rng.random()
        return needle, rng.choice(DEPTHS) if kind.essays and depths == "ruler" else anywhere
    if not depths or not all(0 <= depth <= 1 for depth in depths):
        raise ValueError(f"a depth lies in [0, 1], 0 before the haystack and 1 after it; got {list(depths)}")
    return needle, float(depths[item % len(depths)])


def build(
    loaded: Loaded,
    task: str,
    context_tokens: int,
    needle: Needle,
    depth: float,
    text: str = "essay",
    short_haystacks: bool = False,
    new_tokens: int = NEW_TOKENS,
) -> Prompt:
    """The prompt of one item: `needle` at `depth` of the longest haystack that fits.

    Args:
        context_tokens: that prompt and `new_tokens` generated ones may take; one sentence, or line of noise,
            more would take more.
        text: the haystack of the essay tasks, from its beginning.
        short_haystacks: fill in the coarse steps of RULER's ports to harnesses (500 words of an essay, 25
            lines of noise, 5 below 4096 tokens), even to an empty haystack.

    Raises:
        ValueError: a length too short for the prompt (the message names the least), a depth outside [0, 1], a
            text without a sentence, or a needle that the tokenizer does not give back.
    """
    if not 0 <= depth <= 1:
        raise ValueError(f"a depth lies in [0, 1], 0 before the haystack and 1 after it; got {depth}")
    check_intact(loaded, needle)
    units = _units(task_of(task), context_tokens, text, short_haystacks)
    joint = " " if task_of(task).essays else "\n"

    def prompt(count: int) -> Prompt:
        return _assemble(units(count), joint, needle, depth)

    least = 0 if short_haystacks else 1
    try:
        count = haystacks.fill(
            lambda n: haystacks.count_tokens(loaded, prompt(n).text), context_tokens - new_tokens, least
        )
    except ValueError as error:
        need = haystacks.count_tokens(loaded, prompt(least).text) + new_tokens
        raise ValueError(
            f"{context_tokens} tokens are too few for a {task} prompt and its {new_tokens} new tokens: this "
            f"item needs at least {need}"
        ) from error
    return _measured(loaded, prompt(count))


def prompts(
    loaded: Loaded,
    task: str,
    context_tokens: int,
    first: int,
    count: int,
    seed: int = 0,
    depths: str | Sequence[float] = "ruler",
    **settings: object,
) -> list[Prompt]:
    """Items `first` .. `first + count - 1`: `draw` and `build` of each; `settings` go to `build`.

    Raises:
        ValueError: nothing is asked for, or what `draw` and `build` refuse.
    """
    if first < 0 or count < 1:
        raise ValueError(f"nothing to ask: {count} items from {first} on")
    drawn = [draw(task, item, seed, depths) for item in range(first, first + count)]
    return [build(loaded, task, context_tokens, *pair, **settings) for pair in drawn]


def check_intact(loaded: Loaded, needle: Needle) -> None:
    """Raises ValueError if the tokenizer does not give the needle back as it was, letter case aside."""
    ids = loaded.tokenizer(needle.sentence, add_special_tokens=False)["input_ids"]
    back = loaded.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if needle.sentence.lower() not in back.lower():
        raise ValueError(
            f"the tokenizer of {loaded.name} can't carry the needle {needle.sentence!r}: it gives back "
            f"{back!r}; choose another key and value"
        )


def task_of(name: str) -> Task:
    """The task called `name`; ValueError if there is none."""
    if name not in TASKS:
        raise ValueError(f"no S-NIAH task is called {name!r}: choose from {', '.join(TASKS)}")
    return TASKS[name]


def _units(task: Task, context_tokens: int, text: str, short: bool) -> Callable[[int], list[str]]:
    """What a haystack of n steps consists of."""
    if not task.essays:
        step = (25 if context_tokens >= 4096 else 5) if short else 1
        return lambda n: [NOISE] * (step * n)
    found = haystacks.sentences(text)
    if not short:
        return lambda n: haystacks.first(found, n)
    words = tuple(" ".join(found).split())
    return lambda n: list(haystacks.split(" ".join(haystacks.first(words, SHORT_WORDS * n))))


def _assemble(units: list[str], joint: str, needle: Needle, depth: float) -> Prompt:
    index = int(len(units) * depth)
    haystack = joint.join([*units[:index], needle.sentence, *units[index:]])
    texts = [part.format(kind=needle.kind, key=needle.key) for part in (_BEFORE, _QUESTION, _PREFIX)]
    return Prompt(texts[0], haystack, texts[1], texts[2], needle, depth, len(units))


def _measured(loaded: Loaded, prompt: Prompt) -> Prompt:
    """With the tokens of its parts."""
    text, start = prompt.text, len(prompt.before)
    question = start + len(prompt.haystack)
    hidden = start + prompt.haystack.index(prompt.needle.sentence)
    places = [(start, question), (hidden, hidden + len(prompt.needle.sentence)), (question, len(text))]
    (begin, _), span, (asked, _) = haystacks.spans_of(loaded, text, places)
    parts = {
        "tokens": haystacks.count_tokens(loaded, text),
        "span": span,
        "asked": asked,
        "haystack_tokens": asked - begin,
    }
    return Prompt(**(vars(prompt) | parts))
