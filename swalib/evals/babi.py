"""The five bAbI worlds (Weston et al. 2015, 1502.05698) that BABILong hides: facts, a question, its answer.

Generated here, in the sentence forms and with the answers' distribution of the original test files. `solve`
answers a question from the sentences alone.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
OBJECTS = ("apple", "football", "milk")
WALKERS = ("Daniel", "John", "Mary", "Sandra")
GIVERS = ("Bill", "Fred", "Jeff", "Mary")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
TASKS = ("qa1", "qa2", "qa3", "qa4", "qa5")

_MOVES = ("moved", "went", "went back", "journeyed", "travelled")
_GRABS = ("got", "took", "grabbed", "picked up")
_DROPS = ("dropped", "left", "discarded", "put down")
_GIVES = ("gave", "handed", "passed")
_WEIGHTS = {"move": 1, "grab": 2, "drop": 1.5, "give": 12}  # of what can be done; fitted to the original
_DROPPED = {"qa2": 0.68, "qa3": 0.79}  # share of questions about an object that nobody holds; the original's
_PATIENCE = {
    "qa3": 0.4
}  # share of the times a question could be asked that it is; fitted to the facts' number
_ASKED = 5  # questions of a story; one is drawn
_THERE = {"grab": {"qa2": 1.0, "qa3": 0.2, "qa5": 1.0}, "drop": {"qa2": 0.2, "qa3": 0.2, "qa5": 0.2}}


class Item(NamedTuple):
    """Sentences that tell a story, a question about it, and its answer, one word."""

    facts: tuple[str, ...]
    question: str
    answer: str


def item(task: str, number: int, seed: int = 0) -> Item:
    """Item `number` of a task; the same arguments give the same item.

    Raises:
        ValueError: no such task.
    """
    if task not in TASKS:
        raise ValueError(f"no bAbI task is called {task!r}: choose from {', '.join(TASKS)}")
    rng = random.Random(f"{seed} {task} {number}")
    return _relations(rng) if task == "qa4" else _story(task, rng)


def solve(facts: Sequence[str], question: str) -> str | None:
    """The answer that the sentences give, None where they give none or several."""
    for form, answer in _ANSWERS:
        found = re.fullmatch(form, question)
        if found:
            return answer(World.read(facts), *found.groups())
    return None


# ---- what sentences say.

_FORMS = {
    "move": rf"(\w+) (?:{'|'.join(_MOVES)}) to the (\w+)\.",
    "grab": rf"(\w+) (?:{'|'.join(_GRABS)}) the (\w+)(?: there)?\.",
    "drop": rf"(\w+) (?:{'|'.join(_DROPS)}) the (\w+)(?: there)?\.",
    "give": rf"(\w+) (?:{'|'.join(_GIVES)}) the (\w+) to (\w+)\.",
    "relate": r"The (\w+) is (\w+) of the (\w+)\.",
}


@dataclass
class World:
    """What is known after some sentences.

    Args:
        at: latest place of each person told to have moved. holder: who holds each object, None once dropped.
        path: places of each object, in order. gives: (giver, object, taker). beside: (place, direction,
            reference).
    """

    at: dict[str, str] = field(default_factory=dict)
    holder: dict[str, str | None] = field(default_factory=dict)
    path: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    gives: list[tuple[str, str, str]] = field(default_factory=list)
    beside: list[tuple[str, str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, facts: Sequence[str]) -> World:
        """The world of these sentences; ValueError for one that has none of the five forms."""
        world = cls()
        for fact in facts:
            for kind, form in _FORMS.items():
                found = re.fullmatch(form, fact)
                if found:
                    getattr(world, kind)(*found.groups())
                    break
            else:
                raise ValueError(f"this is no bAbI sentence: {fact!r}")
        return world

    def move(self, who: str, place: str) -> None:
        """`who` is at `place` now, with all that he or she holds."""
        self.at[who] = place
        for thing, holder in self.holder.items():
            if holder == who:
                self._pass(thing, place)

    def grab(self, who: str, thing: str) -> None:
        """`who` holds `thing` now."""
        self.holder[thing] = who
        self._pass(thing, self.at.get(who))

    def drop(self, who: str, thing: str) -> None:
        """`thing` stays where `who` is."""
        self.holder[thing] = None
        self._pass(thing, self.at.get(who))

    def give(self, who: str, thing: str, taker: str) -> None:
        """`taker` holds `thing` now."""
        self.gives.append((who, thing, taker))
        self.holder[thing] = taker

    def relate(self, place: str, direction: str, reference: str) -> None:
        """`place` lies in `direction` of `reference`."""
        self.beside.append((place, direction, reference))

    def _pass(self, thing: str, place: str | None) -> None:
        if place and self.path[thing][-1:] != [place]:
            self.path[thing].append(place)

    def where(self, thing: str) -> str | None:
        """Place of an object, None if nobody told."""
        holder = self.holder.get(thing)
        return self.at.get(holder) if holder else (self.path[thing] or [None])[-1]

    def before(self, thing: str, place: str) -> str | None:
        """Where an object was before it was last at `place`."""
        path = self.path[thing]
        visits = [n for n in range(1, len(path)) if path[n] == place]
        return path[visits[-1] - 1] if visits else None

    def neighbour(self, direction: str, reference: str) -> str | None:
        """What lies in `direction` of `reference`."""
        turned = [(reference_, OPPOSITE[d], place) for place, d, reference_ in self.beside]
        found = [place for place, d, other in self.beside + turned if (d, other) == (direction, reference)]
        return found[0] if len(found) == 1 else None

    def last_give(self, wanted: int, **known: str) -> str | None:
        """Entry `wanted` of the latest (giver, object, taker) whose entries are as known."""
        places = {"giver": 0, "thing": 1, "taker": 2}
        for give in reversed(self.gives):
            if all(give[places[name]] == value for name, value in known.items()):
                return give[wanted]
        return None


_ANSWERS: tuple[tuple[str, Callable[..., str | None]], ...] = (
    (r"Where is (?!the )(\w+)\?", lambda world, who: world.at.get(who)),
    (r"Where is the (\w+)\?", World.where),
    (r"Where was the (\w+) before the (\w+)\?", World.before),
    (r"What is (\w+) of the (\w+)\?", World.neighbour),
    (r"What is the (\w+) (\w+) of\?", lambda world, place, d: world.neighbour(OPPOSITE[d], place)),
    (r"What did (\w+) give to (\w+)\?", lambda world, a, b: world.last_give(1, giver=a, taker=b)),
    (r"Who gave the (\w+) to (\w+)\?", lambda world, o, b: world.last_give(0, thing=o, taker=b)),
    (r"Who gave the (\w+)\?", lambda world, o: world.last_give(0, thing=o)),
    (r"Who received the (\w+)\?", lambda world, o: world.last_give(2, thing=o)),
    (r"Who did (\w+) give the (\w+) to\?", lambda world, a, o: world.last_give(2, giver=a, thing=o)),
)


# ---- stories.


def _story(task: str, rng: random.Random) -> Item:
    """Two facts, a question where one can be asked, and so on: one of a story's five questions."""
    facts, world, events = [], World(), _events(task, rng)
    left = rng.randrange(_ASKED)
    while True:
        for _ in range(2):
            kind, arguments = next(events)
            getattr(world, kind)(*arguments)
            facts.append(_worded(task, kind, arguments, rng))
        question = _QUESTIONS[task](world, rng) if rng.random() < _PATIENCE.get(task, 1) else None
        if question:
            if not left:
                return Item(tuple(facts), question, solve(facts, question))
            left -= 1


def _events(task: str, rng: random.Random) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What happens: each time a person, at random, does one of the kinds of things that can be done there."""
    people = GIVERS if task == "qa5" else WALKERS
    at = {who: rng.choice(PLACES) for who in people}
    things = {} if task == "qa1" else {thing: rng.choice(PLACES) for thing in OBJECTS}  # a place or a holder
    while True:
        who = rng.choice(people)
        options = {"move": [(who, place) for place in PLACES if place != at[who]]}
        options["grab"] = [(who, thing) for thing, where in things.items() if where == at[who]]
        options["drop"] = held = [(who, thing) for thing, where in things.items() if where == who]
        if task == "qa5":
            near = [other for other in people if other != who and at[other] == at[who]]
            options["give"] = [(*pair, taker) for pair in held for taker in near]
        able = [kind for kind, found in options.items() if found]
        kind = rng.choices(able, [_WEIGHTS[kind] for kind in able])[0]
        arguments = rng.choice(options[kind])
        if kind == "move":
            at[who] = arguments[1]
        else:
            things[arguments[1]] = {"grab": who, "drop": at[who]}.get(kind, arguments[-1])
        yield kind, arguments


def _worded(task: str, kind: str, arguments: tuple[str, ...], rng: random.Random) -> str:
    who, what = arguments[:2]
    if kind == "move":
        return f"{who} {rng.choice(_MOVES)} to the {what}."
    if kind == "give":
        return f"{who} {rng.choice(_GIVES)} the {what} to {arguments[2]}."
    there = " there" if rng.random() < _THERE[kind][task] else ""
    return f"{who} {rng.choice(_GRABS if kind == 'grab' else _DROPS)} the {what}{there}."


def _where_is_who(world: World, rng: random.Random) -> str | None:
    return f"Where is {rng.choice(sorted(world.at))}?"


def _asked_about(world: World, rng: random.Random, task: str, known: Sequence[str]) -> str | None:
    """One of the objects `known` to be somewhere, if one is of the sort that is drawn: held or dropped."""
    dropped = rng.random() < _DROPPED[task]
    fit = [thing for thing in known if (world.holder[thing] is None) == dropped]
    return rng.choice(fit) if fit else None


def _where_is_what(world: World, rng: random.Random) -> str | None:
    thing = _asked_about(world, rng, "qa2", [thing for thing in sorted(world.holder) if world.where(thing)])
    return thing and f"Where is the {thing}?"


def _where_was(world: World, rng: random.Random) -> str | None:
    """Mostly about an object's last place but one, as in the original."""
    thing = _asked_about(world, rng, "qa3", [thing for thing in OBJECTS if len(world.path[thing]) > 1])
    if thing is None:
        return None
    back = 1
    while rng.random() < 0.2 and back < len(world.path[thing]) - 1:
        back += 1
    return f"Where was the {thing} before the {world.path[thing][-back]}?"


def _who_gave(world: World, rng: random.Random) -> str | None:
    """About the latest gift."""
    if not world.gives:
        return None
    giver, thing, taker = world.gives[-1]
    forms = (
        (f"What did {giver} give to {taker}?",),
        (f"Who gave the {thing}?", f"Who gave the {thing} to {taker}?"),
        (f"Who received the {thing}?", f"Who did {giver} give the {thing} to?"),
    )
    return rng.choice(rng.choice(forms))


_QUESTIONS = {"qa1": _where_is_who, "qa2": _where_is_what, "qa3": _where_was, "qa5": _who_gave}


def _relations(rng: random.Random) -> Item:
    """Three places in a row, told of in two sentences; the middle one is the reference in two of three."""
    one, middle, other = rng.sample(PLACES, 3)
    direction = rng.choice(tuple(OPPOSITE))
    pairs = [(one, direction, middle), (other, OPPOSITE[direction], middle)]

    def turned(place: str, d: str, reference: str) -> tuple[str, str, str]:
        return (place, d, reference) if rng.random() < 2 / 3 else (reference, OPPOSITE[d], place)

    told = [turned(*pair) for pair in rng.sample(pairs, 2)]
    answer, d, place = turned(*rng.choice(pairs))
    forms = (f"What is {d} of the {place}?", f"What is the {place} {OPPOSITE[d]} of?")
    facts = tuple(f"The {a} is {way} of the {b}." for a, way, b in told)
    return Item(facts, rng.choice(forms), answer)
