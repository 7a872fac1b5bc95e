"""What surrounds the thing to be found? A real text sentence by sentence, filled to an exact token length."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import cycle, islice

from swalib import data, models
from swalib.models import Loaded

_MARKERS = re.compile(r"^\*\*\* (START|END) OF .* \*\*\*$", re.MULTILINE)
_BETWEEN = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’)\]]))\s+(?=[\"'“‘(\[]?[A-Z0-9])")
_ABBREVIATION = re.compile(r"(?:^|[\s(\"“‘])(?:[A-Z]|Mr|Mrs|Ms|Dr|St|vs|etc|e\.g|i\.e)\.$")


@lru_cache(maxsize=4)
def sentences(name: str) -> tuple[str, ...]:
    """The sentences of a named text (`swalib.data.TEXTS`, or a UTF-8 file), spaces and line breaks made one
    space; of an edition with start and end marks, what lies between them.

    Raises:
        ValueError: a text without a sentence.
        DataUnavailable: the text cannot be had.
    """
    text = data.text(name)
    marks = [mark.span() for mark in _MARKERS.finditer(text)]
    if len(marks) == 2:
        text = text[marks[0][1] : marks[1][0]]
    found = split(text)
    if not found:
        raise ValueError(f"the text {str(name)!r} holds no sentence: a haystack needs at least one")
    return found


def split(text: str) -> tuple[str, ...]:
    """Sentences of `text`: cut after . ! ? where a space and a capital follow, but not after "Mr." and its
    like."""
    found: list[str] = []
    for part in _BETWEEN.split(" ".join(text.split())):
        if found and _ABBREVIATION.search(found[-1]):
            found[-1] += f" {part}"
        elif part:
            found.append(part)
    return tuple(found)


def first(units: tuple[str, ...], count: int, start: int = 0) -> list[str]:
    """`count` units from the one numbered `start` on, beginning again after the last."""
    return list(islice(cycle(units), start, start + count))


def count_tokens(loaded: Loaded, text: str) -> int:
    """Tokens of `text`, with the BOS of a model that has one."""
    return models.encode(loaded, text).shape[1]


def spans_of(loaded: Loaded, text: str, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The tokens of `text` that hold its characters [start, end), for each of `places`: [first, last + 1),
    BOS counted."""
    offsets = loaded.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    bos, found = loaded.bos is not None, []
    for start, end in places:
        held = [n for n, (begin, stop) in enumerate(offsets) if begin < end and stop > start]
        found.append((held[0] + bos, held[-1] + 1 + bos))
    return found


def fill(tokens_of: Callable[[int], int], room: int, least: int) -> int:
    """The largest count of units, at least `least`, whose text takes no more than `room` tokens.

    One unit more would not fit.

    Raises:
        ValueError: even `least` units take more; the message names how many tokens they take.
    """
    need = tokens_of(least)
    if need > room:
        raise ValueError(f"{room} tokens are too few: the shortest takes {need}")
    fits, over = least, max(2 * least, 8)
    while tokens_of(over) <= room:
        fits, over = over, 2 * over
    while over - fits > 1:
        middle = (fits + over) // 2
        if tokens_of(middle) <= room:
            fits = middle
        else:
            over = middle
    return fits
