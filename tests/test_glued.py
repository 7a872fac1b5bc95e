"""A page of prose shows a chapter's own numbers, or the build says which one is missing."""

import json

import pytest

from swalib.glued import fill, glued
from swalib.notebooks import BookError

CHAPTERS = {"05_needles": {"within": 18, "share": 9.1666, "told": "66 of 79"}, "06_babilong": {}}


def test_roles_take_the_value_in_their_format():
    page = "{glue:text}`05_needles/within` of 72, {glue:text}`05_needles/share:.1f` %"
    assert fill(page, CHAPTERS) == "18 of 72, 9.2 %"
    assert fill("**{glue:text}`05_needles/told`**", CHAPTERS) == "**66 of 79**"
    own = "{glue:text}`within` and {glue:text}`share:.1f` belong to the page itself"
    assert fill(own, CHAPTERS) == own


@pytest.mark.parametrize("role", ["05_needles/absent", "06_babilong/within", "09_none/within"])
def test_a_value_that_no_chapter_glued_is_named(role):
    chapter, name = role.split("/")
    with pytest.raises(BookError, match=f"no value '{name}' was glued in {chapter}"):
        fill(f"{{glue:text}}`{role}`", CHAPTERS)


def test_a_format_that_does_not_fit_is_named():
    with pytest.raises(BookError, match=r"05_needles/told:\.1f.* can't be shown"):
        fill("{glue:text}`05_needles/told:.1f`", CHAPTERS)


def test_glued_reads_what_a_chapter_displayed(tmp_path):
    prefix = "application/papermill.record/"

    def output(name, shown):
        return {
            "output_type": "display_data",
            "data": {f"{prefix}text/plain": shown},
            "metadata": {"scrapbook": {"name": name, "mime_prefix": prefix}},
        }

    plain = {"output_type": "display_data", "data": {"text/plain": "3"}, "metadata": {}}
    cells = [
        {"cell_type": "markdown", "source": "x"},
        {"cell_type": "code", "outputs": [output("share", "9.25"), plain, output("told", "'66 of 79'")]},
        {"cell_type": "code", "outputs": [output("count", ["1", "8"])]},
    ]
    path = tmp_path / "05_needles.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    assert glued(path) == {"share": 9.25, "told": "66 of 79", "count": 18}
