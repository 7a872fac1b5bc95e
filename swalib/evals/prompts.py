"""The paper's six short tasks as lm-eval words and scores them: its own task definitions, on our items."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files

import numpy as np

from swalib import items
from swalib.evals.likelihood import Item, common
from swalib.evals.mmlu import mmlu_examples
from swalib.items import Document
from swalib.models import Loaded

HARNESS = "0.4.13"  # lm-eval's version that the stored rows were worded with
DELIMITER = "\n\n"  # between worked examples, lm-eval's default
_YAML = {
    "arc_challenge": "arc/arc_challenge.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "piqa": "piqa/piqa.yaml",
    "winogrande": "winogrande/default.yaml",
}
Template = Callable[[list[dict]], str]


@dataclass(frozen=True)
class Prompt:
    """One question, as texts.

    Args:
        place: of the item in its task's file, or in the hub's split.
        contexts, continuations: one of each for every choice.
        gold: index of the right choice.
        chars: length of each choice, by which acc_norm divides.
        shots: worked examples that stand before it.
    """

    place: int
    contexts: tuple[str, ...]
    continuations: tuple[str, ...]
    gold: int
    chars: tuple[int, ...]
    shots: int


def prompts(
    name: str,
    shots: int,
    first: int,
    count: int,
    seed: int = 0,
    source: str | None = None,
    template: Template | None = None,
) -> list[Prompt]:
    """Items `first` .. `first + count - 1` of a task, in an order drawn with `seed`, as lm-eval words them.

    Worked examples are MMLU's own development questions; elsewhere, on our files, which have no training
    split, the first of the last 50 items, which are never scored. From the hub they are lm-eval's own.

    Args:
        source: where the items come from (`swalib.items.SOURCES`), or "toy": a dozen made-up ones.
        template: a chat template, messages to text, as lm-eval applies it; None for plain text.

    Raises:
        ValueError: no such task or source, more items asked for than there are, a number of shots that can't
            be had, or an item that is also a worked example.
        DataUnavailable: the items cannot be had.
        RuntimeError: another version of lm-eval is installed, which may word items otherwise.
    """
    _check_harness()
    if shots < 0 or first < 0 or count < 1:
        raise ValueError(f"nothing to ask: {count} items from {first} on, with {shots} shots")
    if source == "toy":
        pool, examples = _toy(name)
    elif items.source_of(name, source) == "hub":
        return _words_from_hub(name, shots, first, count, seed, template)
    else:
        pool, examples = _pool(name)
    places = _chosen(name, len(pool), first, count, seed)
    found = {}
    for subject, group in _by_subject(pool, places).items():
        shown = examples(subject)
        if shots > len(shown) and name != "mmlu":
            raise ValueError(f"{name} has {len(shown)} worked examples, not {shots}")
        few = min(shots, len(shown))  # three of MMLU's subjects have fewer than five whole ones
        documents = [pool[place] for place in group]
        _check_apart(name, documents, shown[:few])
        task = _task(name, subject, documents, shown, few)
        found.update(zip(group, _words(task, documents, group, few, template), strict=True))
    return [found[place] for place in places]


def tokens(loaded: Loaded, prompt: Prompt) -> Item:
    """The prompt as token ids, split where lm-eval splits it, with its worked examples as the header.

    Raises:
        ValueError: the tokenizer merges the end of a context with its continuation, so that no token is the
            first one to score.
    """
    bos = () if loaded.bos is None else (loaded.bos,)

    def encode(text: str) -> tuple[int, ...]:
        return (*bos, *loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

    rows, starts = [], []
    for context, continuation in zip(prompt.contexts, prompt.continuations, strict=True):
        stripped = context.rstrip()
        whole = encode(context + continuation)
        start = len(encode(stripped))
        if whole[:start] != encode(stripped):
            raise ValueError(
                f"the tokenizer merges the end of {stripped[-20:]!r} with {continuation[:20]!r}: their "
                "log-likelihoods can't be told apart; leave this item out, or use another tokenizer"
            )
        rows.append(whole)
        starts.append(start)
    header = encode(prompt.contexts[0][: max(prompt.contexts[0].rfind(DELIMITER), 0)])
    return Item(tuple(rows), tuple(starts), common(header, *rows))


def _check_harness() -> None:
    found = version("lm_eval")
    if found != HARNESS:
        raise RuntimeError(
            f"lm-eval {found} is installed, and items are worded with another: pip install lm-eval=={HARNESS}"
        )


def _chosen(name: str, size: int, first: int, count: int, seed: int) -> list[int]:
    if first + count > size:
        raise ValueError(f"{name} has {size} items to score, {first + count} were asked for")
    return np.random.default_rng(seed).permutation(size)[first : first + count].tolist()


def _pool(name: str) -> tuple[list[Document], Callable[[str], list[Document]]]:
    """The documents that may be scored, and the worked examples of a subject."""
    documents = items.documents(name)
    if name == "mmlu":
        return documents, lambda subject: list(mmlu_examples()[subject])
    return documents[: -items.HELD_OUT], lambda _: documents[-items.HELD_OUT :]


def _by_subject(pool: Sequence[Document], places: Sequence[int]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for place in places:
        groups.setdefault(str(pool[place].get("subject", "")), []).append(place)
    return groups


def _check_apart(name: str, scored: Sequence[Document], shown: Sequence[Document]) -> None:
    seen = {json.dumps(document, sort_keys=True) for document in shown}
    both = [document for document in scored if json.dumps(document, sort_keys=True) in seen]
    if both:
        raise ValueError(
            f"{len(both)} scored items of {name} are also its worked examples: hold them out of the file"
        )


def _task(name: str, subject: str, scored: list[Document], shown: list[Document], shots: int):
    """lm-eval's task with these documents in place of its download."""
    import datasets
    from lm_eval.api.task import ConfigurableTask

    config = _config(name, subject)
    split = config.get("test_split") or config["validation_split"]
    splits = {split: datasets.Dataset.from_list(scored), "examples": datasets.Dataset.from_list(shown)}
    config |= {
        "training_split": None,
        "fewshot_split": "examples",
        "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": shots,
    }
    if name == "hellaswag":
        config["process_docs"] = _unlabelled

    class OnOurItems(ConfigurableTask):
        def download(self, *_, **__) -> None:
            self.dataset = splits

    return OnOurItems(config=config)


def _config(name: str, subject: str) -> dict:
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    file = f"mmlu/default/mmlu_{subject}.yaml" if name == "mmlu" else _YAML[name]
    return dict(load_yaml(files(lm_eval.tasks).joinpath(file), resolve_func=True))


def _unlabelled(documents):
    """lm-eval's cleaning of HellaSwag without the activity label, its last sentence capitalised as there."""
    import datasets
    from lm_eval.tasks.hellaswag.utils import preprocess

    def clean(document: Document) -> Document:
        head, mark, last = re.fullmatch(r"(?:(.*[.!?])(\s+))?(.*)", document["ctx"], re.DOTALL).groups("")
        query = preprocess(head + mark + last[:1].upper() + last[1:])
        choices = [preprocess(ending) for ending in document["endings"]]
        return document | {"query": query, "choices": choices}

    return datasets.Dataset.from_list([clean(document) for document in documents])


def _words(
    task, documents: list[Document], places: Sequence[int], shots: int, template: Template | None
) -> Iterator[Prompt]:
    docs = list(task.eval_docs)
    for place, doc in zip(places, docs, strict=True):
        yield _prompt(task, doc, place, shots, template)


def _prompt(task, doc: Document, place: int, shots: int, template: Template | None) -> Prompt:
    chat = {"apply_chat_template": template is not None, "chat_template": _template(template)}
    context = task.fewshot_context(doc, shots, fewshot_as_multiturn=template is not None, **chat)
    requests = task.construct_requests(doc=doc, ctx=context, metadata=(task.config.task, place, 1), **chat)
    contexts, continuations = zip(*(request.args for request in requests), strict=True)
    choices = task.doc_to_choice(doc)
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    return Prompt(place, contexts, continuations, int(gold), tuple(map(len, choices)), shots)


def _template(template: Template | None):
    return None if template is None else lambda messages, add_generation_prompt=True: template(messages)


def _words_from_hub(
    name: str, shots: int, first: int, count: int, seed: int, template: Template | None
) -> list[Prompt]:
    """Through lm-eval's own downloads, worked examples drawn as it draws them."""
    from lm_eval.tasks import TaskManager, get_task_dict

    tasks = [task for task in _flat(get_task_dict([name], TaskManager()))]
    documents = [(task, place, doc) for task in tasks for place, doc in enumerate(task.eval_docs)]
    chosen = _chosen(name, len(documents), first, count, seed)
    for task in tasks:
        task.set_fewshot_seed(seed)
    return [_prompt(task, doc, place, shots, template) for task, place, doc in (documents[n] for n in chosen)]


def _flat(tasks: dict) -> Iterator:
    for entry in tasks.values():
        yield from _flat(entry) if isinstance(entry, dict) else [entry]


def _toy(name: str) -> tuple[list[Document], Callable[[str], list[Document]]]:
    """A dozen made-up items of a task's form, for tests and toy runs; and five worked examples."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 3)) for _ in range(200)]

    def text(size: int) -> str:
        return " ".join(rng.choice(words, size))

    made = {
        "mmlu": lambda: {
            "question": text(4),
            "subject": "astronomy",
            "choices": [text(1) for _ in range(4)],
            "answer": int(rng.integers(4)),
        },
        "hellaswag": lambda: {
            "ctx": f"{text(5)}. {text(1)}",
            "endings": [text(3) for _ in range(4)],
            "label": str(rng.integers(4)),
        },
        "piqa": lambda: {"goal": text(4), "sol1": text(3), "sol2": text(4), "label": int(rng.integers(2))},
        "winogrande": lambda: {
            "sentence": f"{text(3)} _ {text(3)}.",
            "option1": text(1),
            "option2": text(1),
            "answer": str(rng.integers(1, 3)),
        },
    }
    arc = {"text": [], "label": list("ABCD")}
    make = made.get(
        name,
        lambda: {
            "question": text(5),
            "choices": arc | {"text": [text(2) for _ in range(4)]},
            "answerKey": "ABCD"[rng.integers(4)],
        },
    )
    scored, shown = [make() for _ in range(12)], [make() for _ in range(5)]
    return scored, lambda _: shown
