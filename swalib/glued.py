"""A chapter's numbers on a page of prose: {glue:text}`05_needles/needles_within:.0f`."""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

from swalib.notebooks import BookError

ROLE = re.compile(r"\{glue:text\}`(\d\d_\w+)/(\w+)(?::([^`]+))?`")


def glued(notebook: Path) -> dict[str, str | int | float]:
    """What an executed notebook has glued, by name."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    found = {}
    for output in outputs:
        if record := output.get("metadata", {}).get("scrapbook"):
            shown = output["data"][f"{record['mime_prefix']}text/plain"]
            found[record["name"]] = ast.literal_eval("".join(shown))
    return found


def fill(text: str, chapters: Mapping[str, Mapping[str, str | int | float]]) -> str:
    """`text` with every such role replaced by the value of its chapter, in the format after the colon.

    Raises:
        BookError: no chapter has glued that name, or its value does not take the format.
    """

    def value(role: re.Match) -> str:
        chapter, name, form = role.groups()
        if name not in chapters.get(chapter, {}):
            raise BookError(f"no value {name!r} was glued in {chapter}, but a page shows {role[0]}")
        try:
            return format(chapters[chapter][name], form or "")
        except ValueError as error:
            raise BookError(f"{role[0]} can't be shown: {error}") from None

    return ROLE.sub(value, text)
