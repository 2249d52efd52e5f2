from __future__ import annotations

import os
import stat

import pytest

from hmrnn.storage.files import write_atomically


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_, **__: (_ for _ in ()).throw(OSError("disk gone")))
    with pytest.raises(OSError, match="disk gone"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "no litter"


def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """Else a power cut may leave an empty file under it."""
    done, fsync, replace = [], os.fsync, os.replace

    def flushed(handle):
        done.append(("flushed", os.fstat(handle).st_size))
        fsync(handle)

    def renamed(source, target, **folders):
        done.append(("renamed", target))
        replace(source, target, **folders)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomically(tmp_path / "file", "content")
    assert done == [("flushed", len("content")), ("renamed", "file")]


def test_the_mode_is_that_of_an_ordinary_file(tmp_path):
    (tmp_path / "ordinary").touch()
    write_atomically(tmp_path / "ours", b"")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)
