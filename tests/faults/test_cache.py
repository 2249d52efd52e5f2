"""A cache that someone else may have written to."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from support.faults.fuzz import own_cache
from support.faults.runs import reason, succeeded

from faults.test_disks import measured
from hmrnn.domains.strokes.data.lines import iam_lines
from hmrnn.engines.native import build
from hmrnn.storage import cache
from hmrnn.storage.files import sealed, sha256_of

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Where the library lies, in a cache of its own; the compiler is a stub that leaves a mark in it."""
    monkeypatch.setenv("HMRNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "SHIPPED", tmp_path)
    monkeypatch.setattr(build, "_run", lambda command: Path(command[-1]).write_text("built"))
    return build.find()


def test_a_library_of_another_user_is_not_loaded(library):
    assert library.read_text() == "built"
    library.write_text("ours")
    assert build.find().read_text() == "ours"
    if os.geteuid() == 0:
        os.chown(library, NOBODY, -1)
        assert build.find().read_text() == "built"
        assert library.stat().st_uid == 0
    for mode in (0o777, 0o775):
        library.write_text("by anyone")
        library.chmod(mode)
        assert build.find().read_text() == "built"
    library.unlink()
    (library.parent / "planted").write_text("planted")
    library.symlink_to(library.parent / "planted")
    assert build.find().read_text() == "built"
    assert (library.parent / "planted").read_text() == "planted"


@needs_root
@pytest.mark.parametrize("which", ["cache", "cache/native"])
def test_a_cache_of_another_user_is_refused(library, tmp_path, which):
    os.chown(tmp_path / which, NOBODY, -1)
    with pytest.raises(build.Unavailable, match="belongs to another user"):
        build.find()


@pytest.mark.parametrize("which", ["cache", "cache/native"])
def test_a_cache_that_anyone_may_write_to_is_refused(library, tmp_path, which):
    (tmp_path / which).chmod(0o777)
    with pytest.raises(build.Unavailable, match="anyone may write"):
        build.find()
    (tmp_path / which).chmod(0o1777)  # as /tmp is: what is in it belongs to its owners
    (tmp_path / "cache" / "native").chmod(0o755)
    assert build.find() == library


def test_a_cache_from_a_careless_umask_is_used(library):
    library.parent.chmod(0o775)
    library.write_text("ours")
    assert build.find().read_text() == "ours"
    assert not library.parent.stat().st_mode & stat.S_IWGRP


@needs_root
def test_data_in_a_cache_of_another_user_is_made_again(runs, tmp_path, monkeypatch):
    data = own_cache(tmp_path / "cache") / "data"
    monkeypatch.setenv("HMRNN_CACHE", str(data.parent))
    expected = measured(runs["text"])
    for path in [path for path in data.rglob("*") if path != data]:
        os.chown(path, NOBODY, -1)
        assert measured(runs["text"]) == expected
    data.chmod(0o777)
    assert "anyone may write" in reason(commands_told(runs["text"]))


def commands_told(run: Path) -> str:
    from support.faults.runs import call

    return call("eval", run).stderr


def resealed(folder: Path, numbers: bytes, **changes: object) -> None:
    """A cache whose checksums fit."""
    meta = json.loads((folder / "meta.json").read_text())
    del meta["checksum"]
    (folder / "numbers.bin").write_bytes(numbers)
    meta |= changes
    meta["fingerprint"] = sha256_of(folder / "numbers.bin", str(meta["symbols"]))
    (folder / "meta.json").write_text(json.dumps(sealed(meta)))


POISON: dict[str, dict[str, object]] = {
    "splits without end": {"splits": {"train": [0, 10**18], "valid": [0, 1], "test": [0, 1]}},
    "splits of another kind": {"splits": {"train": 0}},
    "no splits": {"splits": None},
    "negative": {"splits": {"train": [-5, 3900], "valid": [3900, 3950], "test": [3950, 4000]}},
    "numbers of no symbol": {},
    "another type": {"dtype": "float64"},
    "a list": {"symbols": []},
    "no numbers": {},
}


@pytest.mark.parametrize("what", POISON)
def test_a_poisoned_cache_is_made_again(runs, tmp_path, monkeypatch, what):
    """Its checksums fit, and its content does not."""
    data = own_cache(tmp_path / "cache") / "data"
    monkeypatch.setenv("HMRNN_CACHE", str(data.parent))
    expected = measured(runs["text"])
    (folder,) = (path.parent for path in data.rglob("meta.json"))
    whole = (folder / "numbers.bin").read_bytes()
    numbers = {"numbers of no symbol": bytes([255]) * len(whole), "no numbers": b""}.get(what, whole)
    resealed(folder, numbers, **POISON[what])
    assert measured(runs["text"]) == expected
    succeeded("score", runs["text"])


def test_a_poisoned_cache_of_handwriting_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("HMRNN_CACHE", str(own_cache(tmp_path / "cache")))
    data = tmp_path / "lineStrokes"
    data.mkdir()
    for i in range(3):
        xml = "".join(f'<Point x="{x}" y="{x * i % 5}"/>' for x in range(9))
        (data / f"a01-00{i}-01.xml").write_text(f"<S><StrokeSet><Stroke>{xml}</Stroke></StrokeSet></S>")
    whole = iam_lines(data)
    names, ends, points = list(whole.names), whole.ends.tolist(), np.array(whole.points)
    (folder,) = (path.parent for path in (tmp_path / "cache").rglob("meta.json"))
    spoilt = [(names, [0, 20, 9, 27], points), (names[:2], ends, points), (names, [0, 9, 18, 10**9], points)]
    spoilt += [(names, ends, np.full_like(points, np.inf)), (names, [5, 9, 18, 27], points), (names, [], points)]
    for wrong_names, wrong_ends, wrong_points in spoilt:
        (folder / "points.bin").write_bytes(wrong_points.tobytes())
        meta: dict[str, object] = {"names": wrong_names, "ends": wrong_ends, "damaged": []}
        meta["fingerprint"] = sha256_of(folder / "points.bin", json.dumps([wrong_names, wrong_ends]))
        (folder / "meta.json").write_text(json.dumps(sealed(meta)))
        again = iam_lines(data)
        assert (again.names, again.points.tobytes()) == (names, points.tobytes())
        assert again.ends.tolist() == ends


def test_what_is_known_of_files_goes_by_their_content(tmp_path, monkeypatch):
    monkeypatch.setenv("HMRNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SETTLED", -1.0)
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("content")
    other.write_text("content")
    assert cache.content_of([one]) == cache.content_of([other])
    read = []
    monkeypatch.setattr(cache, "sha256_of", lambda path: read.append(path) or sha256_of(path))
    cache.content_of([one])
    assert read == [], "nothing about it has changed"
    one.write_text("changed")
    assert cache.content_of([one]) != cache.content_of([other])
    assert read == [one]
