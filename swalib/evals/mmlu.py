"""MMLU's worked examples, without a hub: its development questions lie, in another form, inside lm-eval."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from swalib.items import Document


@cache
def mmlu_examples() -> dict[str, tuple[Document, ...]]:
    """MMLU's development questions, which lm-eval carries inside its chain-of-thought prompts.

    Those prompts write four choices as "(A) … (B) …" and the answer as "The answer is (C)."; a question whose
    choices can't be told apart is left out.
    """
    text = files("lm_eval").joinpath("tasks/mmlu/flan_cot_fewshot/_cot_prompts.json").read_text("utf-8")
    found = {}
    for subject, prompt in json.loads(text).items():
        mended = re.sub(r"\n(?=rac\{|actorial\{)", r"\\f", prompt)  # \frac and \factorial have lost their \f
        blocks = re.split(r"\n\nQ: ", mended)[1:]
        read = [_mmlu_example(subject, block) for block in blocks]
        found[subject] = tuple(example for example in read if example)
    return found


_EXAMPLE = re.compile(
    r"(?P<question>.+?)\n\(A\) (?P<a>.+?)\s\(B\) (?P<b>.+?)\s\(C\) (?P<c>.+?)\s\(D\) (?P<d>.+?)\nA: "
    r".*The answer is \((?P<answer>[A-D])\)",
    re.DOTALL,
)


def _mmlu_example(subject: str, block: str) -> Document | None:
    match = _EXAMPLE.match(block)
    if match is None or "(E)" in match["d"]:
        return None
    choices = [match[letter].strip() for letter in "abcd"]
    answer = "ABCD".index(match["answer"])
    return {
        "question": match["question"].strip(),
        "subject": subject,
        "choices": choices,
        "answer": answer,
    }
