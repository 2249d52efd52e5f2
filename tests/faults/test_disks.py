"""Disks that are full or read-only, files that vanish, and files that come back different."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.faults.fuzz import own_cache
from support.faults.runs import DAMAGE, FLAGS, PARTS, call, copy, reason, refused, succeeded, weights_of

from hmrnn.domains.strokes.data.lines import iam_lines
from hmrnn.storage.cache import SETTLED
from hmrnn.training.board import Board

KINDS = ("text", "strokes", "series")
MANY = [3, pytest.param(100, marks=pytest.mark.faults)]  # pieces of damage


@contextmanager
def mounted(*arguments: str | Path, at: Path) -> Iterator[Path]:
    """A file system of its own; where that is not permitted, the test is skipped."""
    done = subprocess.run(["mount", *arguments, at], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file may become larger: like a full disk, but anyone may ask for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="session")
def gone_on(runs, tmp_path_factory) -> dict[str, Path]:
    """The runs after another epoch, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("gone on")
    for name in KINDS:
        succeeded("train", name, "--resume", shutil.copytree(runs[name], folder / name), "--epochs", "2")
    return {name: folder / name for name in KINDS}


# Full


@pytest.mark.parametrize(
    "most", [10_000, *(pytest.param(most, marks=pytest.mark.faults) for most in (0, 3000, 25_000))]
)
def test_no_room_for_a_checkpoint(runs, gone_on, tmp_path, name, most):
    run = copy(runs[name], tmp_path)
    before = (run / "training.safetensors").read_bytes()
    with small_files(most):
        refused("train", name, "--resume", run, "--epochs", "2", because=os.strerror(errno.EFBIG))
    assert (run / "training.safetensors").read_bytes() == before
    succeeded("eval", run)
    succeeded("train", name, "--resume", run, "--epochs", "2")
    assert weights_of(run) == weights_of(gone_on[name])


def test_no_room_for_a_new_run_or_for_the_cache(folder, tmp_path, name):
    shutil.copy(folder / FLAGS[name][1], tmp_path / "unseen")
    with small_files(100):
        told = refused("train", name, *FLAGS[name], "--data", tmp_path / "unseen", "--out", tmp_path / "run")
    assert os.strerror(errno.EFBIG) in told
    assert str(tmp_path / "run") in told or "cache" in told or "/data/" in told, "it says where there is no room"
    succeeded("train", name, *FLAGS[name], "--data", tmp_path / "unseen", "--out", tmp_path / "run")


@pytest.mark.parametrize("left", [4096, *(pytest.param(left, marks=pytest.mark.faults) for left in (0, 20_480))])
def test_a_full_disk(runs, gone_on, tmp_path, name, left):
    """A real one, of 2 MB, with so many bytes left."""
    with mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs", at=tmp_path) as disk:
        run = copy(runs[name], disk)
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            file.write(bytes(shutil.disk_usage(disk).free - left))
        told = refused("train", name, "--resume", run, "--epochs", "2", because=os.strerror(errno.ENOSPC))
        assert str(run) in told, "it says which disk is full"
        ballast.unlink()
        succeeded("train", name, "--resume", run, "--epochs", "2")
        assert weights_of(run) == weights_of(gone_on[name])


def test_every_write_names_its_file_and_leaves_nothing_half(runs, tmp_path, name):
    """TensorBoard's events, figures and drawings, on a disk that fills up."""
    run, longer, out = copy(runs[name], tmp_path), copy(runs[name], tmp_path), tmp_path / "out"
    with small_files(300):
        told = refused("train", name, "--resume", run, "--epochs", "2", "--tensorboard")
    assert str(run) in told
    with small_files(20_000):
        told = refused("train", name, "--resume", longer, "--epochs", "99", "--tensorboard")
    assert str(longer) in told
    drawn = [["figure", run, "--out", out], ["figure", run, "--kind", "training", "--out", out / "one.png"]]
    drawn += [["plot", run, "--out", out / "curves.pdf"]]
    if name != "text":
        drawn += [["generate", run, "--out", out / f"line.{ending}"] for ending in ("svg", "png")]
    for command in drawn:
        out.mkdir()
        with small_files(500):
            refused(*command, because=str(out))
        assert list(out.iterdir()) == []
        out.rmdir()


def test_events_that_can_not_be_written_are_named(tmp_path):
    """Of the file of TensorBoard alone: in a run, metrics.jsonl is full before it."""
    with small_files(300):
        board = Board(tmp_path, 0)
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as told:
            board.show(1, rates=[0.5] * 100)
        assert told.value.filename == str(board.path)
    board.close()


# Read-only, or gone


def test_a_read_only_run_can_be_used_but_not_trained(runs, tmp_path, name):
    run = copy(runs[name], tmp_path)
    with mounted("-o", "bind,ro", run, at=run):
        succeeded("eval", run)
        succeeded("score", run)
        succeeded("generate", run, "--max-new", "3")
        refused("train", name, "--resume", run, "--epochs", "2", because=os.strerror(errno.EROFS))
        refused("train", name, *FLAGS[name], "--data", runs[name].parent / FLAGS[name][1], "--out", run / "new")


@pytest.mark.parametrize(
    ("where", "because"),
    [("/proc/run", "/proc/run"), ("/dev/null/run", "/dev/null: this is a file, and must be a folder")],
)
def test_a_place_where_no_run_can_be(folder, name, where, because):
    refused("train", name, *FLAGS[name], "--out", where, cwd=folder, because=because)


def test_data_that_has_vanished_or_changed(runs, folder, tmp_path, name):
    data = tmp_path / "data"
    shutil.copy(folder / FLAGS[name][1], data)
    succeeded("train", name, *FLAGS[name], "--data", data, "--out", tmp_path / "run")
    whole = data.read_bytes()
    data.write_bytes(whole + whole.splitlines(keepends=True)[-1])
    for command in (["eval"], ["score"], ["train", name, "--resume"]):
        assert "changed" in refused(*command, tmp_path / "run", because=str(data))
    data.unlink()
    for command in (["eval"], ["score"], ["train", name, "--resume"]):
        assert "no such file" in refused(*command, tmp_path / "run", because=str(data))
    succeeded("generate", tmp_path / "run", "--max-new", "3")


@pytest.mark.parametrize("how", ["in place", "renamed"])
def test_data_that_has_changed_but_kept_its_size_and_time(runs, folder, tmp_path, name, how):
    """As `rsync -t` and `cp -p` leave it."""
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copy(folder / FLAGS[name][1], data)
    long_ago = time.time() - 1000
    os.utime(data, (long_ago, long_ago))
    time.sleep(SETTLED + 0.1)  # so that what is known of it is kept
    succeeded("train", name, *FLAGS[name], "--data", data, "--out", run)
    before, whole = data.stat(), data.read_bytes()
    first, *rest = whole.splitlines(keepends=True)  # the first tells the columns of a series
    other = b"".join([first, *rest[::-1]])
    assert len(other) == len(whole) != other
    changed = data if how == "in place" else tmp_path / "other"
    changed.write_bytes(other)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed.replace(data)
    assert (data.stat().st_size, data.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    for command in (["eval"], ["score"], ["train", name, "--epochs", "2", "--resume"]):
        assert "changed" in refused(*command, run, because=str(data))
    data.write_bytes(whole)
    for command in (["eval"], ["score"], ["train", name, "--epochs", "2", "--resume"]):
        succeeded(*command, run)


# Different


def measured(run: Path) -> str:
    """What an evaluation says, but for the clock."""
    answer = json.loads(succeeded("eval", run, "--json").stdout)
    return str({key: value for key, value in answer.items() if key not in ("run", "seconds")})


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("many", MANY)
def test_a_damaged_model_is_refused_or_measures_the_same(runs, tmp_path, name, part, how, many):
    run = copy(runs[name], tmp_path)
    path = run / "best" / part
    if not path.exists():
        pytest.skip(f"a model of {name} has none")
    whole, expected, chance, noticed = path.read_bytes(), measured(run), random.Random(0), 0
    for _ in range(many):
        path.write_bytes(DAMAGE[how](whole, chance))
        done = call("eval", run, "--json")
        noticed += done.returncode != 0
        if done.returncode:
            assert str(path.parent) in reason(done.stderr)
        else:
            assert measured(run) == expected
    assert noticed > 0.9 * many
    path.write_bytes(whole)
    assert measured(run) == expected


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("part", ["training.safetensors", "config.json", "model.safetensors", "metrics.jsonl"])
@pytest.mark.parametrize("many", [1, pytest.param(40, marks=pytest.mark.faults)])
def test_a_damaged_run_is_refused_or_goes_on_the_same(runs, gone_on, tmp_path, name, part, how, many):
    chance = random.Random(1)
    for _ in range(many):
        run = copy(runs[name], tmp_path)
        (run / part).write_bytes(DAMAGE[how]((run / part).read_bytes(), chance))
        done = call("train", name, "--resume", run, "--epochs", "2")
        if done.returncode:
            assert str(run) in reason(done.stderr)
            assert part in ("training.safetensors", "config.json"), "the others are written anew"
        else:
            assert weights_of(run) == weights_of(gone_on[name])
        shutil.rmtree(run)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("many", MANY)
def test_a_damaged_cache_is_made_again(runs, tmp_path, monkeypatch, how, many):
    data = own_cache(tmp_path / "cache") / "data"
    monkeypatch.setenv("HMRNN_CACHE", str(data.parent))
    expected, chance = measured(runs["text"]), random.Random(2)
    for _ in range(many):
        for path in (path for path in data.rglob("*") if path.is_file()):
            path.write_bytes(DAMAGE[how](path.read_bytes(), chance))
            assert measured(runs["text"]) == expected


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("many", MANY)
def test_a_damaged_cache_of_handwriting_is_made_again(tmp_path, monkeypatch, how, many):
    monkeypatch.setenv("HMRNN_CACHE", str(own_cache(tmp_path / "cache")))
    data = tmp_path / "lineStrokes"
    data.mkdir()
    for i in range(3):
        xml = "".join(f'<Point x="{x}" y="{x * i % 5}"/>' for x in range(9))
        (data / f"a01-00{i}-01.xml").write_text(f"<S><StrokeSet><Stroke>{xml}</Stroke></StrokeSet></S>")
    whole, chance = iam_lines(data), random.Random(3)
    points = whole.points.tobytes()
    for _ in range(many):
        for path in (path for path in (tmp_path / "cache" / "data").rglob("*") if path.is_file()):
            path.write_bytes(DAMAGE[how](path.read_bytes(), chance))
            again = iam_lines(data)
            assert again.names == whole.names
            assert again.points.tobytes() == points
            assert again.fingerprint == whole.fingerprint
