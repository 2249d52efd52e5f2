from __future__ import annotations

import os
import stat

import pytest

from hmrnn.config import KEPT_INPUT
from hmrnn.domains import DOMAINS
from hmrnn.storage import files
from hmrnn.storage.files import write_atomically
from hmrnn.training.checkpoint import remove_leftovers


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


@pytest.mark.parametrize("by_descriptor", [True, False])
def test_no_link_in_a_run_is_followed(tmp_path, monkeypatch, by_descriptor):
    """Also not on systems that can't open files relative to the descriptor of their folder."""
    if not by_descriptor:
        monkeypatch.setattr(files, "BY_DESCRIPTOR", False)
        monkeypatch.setattr(files, "NO_LINK", 0)
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        folder.mkdir()
    (other / "file").write_text("dear to me")
    (run / "file").symlink_to(other / "file")
    (run / "best").symlink_to(other)
    for attempt in (
        lambda: files.read_bytes(run / "file", 100),
        lambda: files.appending(run / "file"),
        lambda: list(files.lines_of(run / "file", 100)),
        lambda: files.read_bytes(run / "best" / "file", 100),
        lambda: write_atomically(run / "best" / "file", "new"),
        lambda: files.remove(run / "best" / "file"),
        lambda: files.names_in(run / "best"),
        lambda: files.make_folder(run / "best"),
    ):
        with pytest.raises(ValueError, match="this is a link"):
            attempt()
    write_atomically(run / "file", "new")  # in place of the link
    assert [path.name for path in other.iterdir()] == ["file"]
    assert (other / "file").read_text() == "dear to me"
    assert files.read_bytes(run / "file", 100) == b"new"
    files.remove(run / "file")
    files.remove(run / "nothing")
    assert files.names_in(run / "nothing") == []


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="this system can't name files by a folder's descriptor")
def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(tmp_path):
    best, moved, other = (tmp_path / name for name in ("best", "moved", "other"))
    best.mkdir()
    other.mkdir()
    with files.writing(best / "file") as file:
        best.rename(moved)
        best.symlink_to(other)
        file.write(b"new")
    assert [path.name for path in moved.iterdir()] == ["file"]
    assert not list(other.iterdir())


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 1 << 40)
    with pytest.raises(ValueError, match="file: too large"):
        files.read_json(tmp_path / "file")


def test_the_mode_is_that_of_an_ordinary_file(tmp_path):
    (tmp_path / "ordinary").touch()
    write_atomically(tmp_path / "ours", b"")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)


def test_what_a_killed_process_was_just_writing_is_removed(tmp_path):
    """Of every file of a run, of any domain."""
    own = {"config.json", "model.safetensors", "training.safetensors", "teacher.safetensors", "metrics.jsonl"}
    for name in own.union({KEPT_INPUT}, *(domain.files for domain in DOMAINS.values())):
        (tmp_path / f".{name}.0123abcd").touch()
    (tmp_path / ".mine").touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".mine"]
