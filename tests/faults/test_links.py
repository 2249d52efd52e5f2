"""Links in a run: nothing outside it is read, written or removed by them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.faults.runs import FLAGS, bounded, call, copy, reason, refused, succeeded

PARTS = ("config.json", "symbols.json", "columns.json", "model.safetensors", "training.safetensors")
PARTS += ("teacher.safetensors", "metrics.jsonl", ".lock")
INNER = ("best", "tensorboard", "best/config.json", "best/symbols.json", "best/columns.json", "best/model.safetensors")
SLOW = pytest.mark.faults


def content(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Of everything in a folder, and when it was last written."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def commands(run: Path, name: str, out: Path) -> dict[str, list[str | Path]]:
    return {
        "eval": ["eval", run],
        "last": ["eval", run, "--checkpoint", "last"],
        "plot": ["plot", run, "--out", out / "curves.png"],
        "figure": ["figure", run, "--kind", "training", "--out", out / "figure.png"],
        "generate": ["generate", run, "--max-new", "2"],
        "resume": ["train", name, "--resume", run, "--epochs", "2", "--tensorboard"],
    }


OF_A_KIND = {"symbols.json": "text", "teacher.safetensors": "text", "columns.json": "series"}
READ_BY = {  # by which commands each part is opened, not only replaced
    "config.json": ("resume", "eval", "last", "plot", "figure", "generate"),
    "symbols.json": ("eval", "last", "figure", "generate"),
    "columns.json": ("eval", "last", "figure", "generate"),
    "teacher.safetensors": ("resume",),
    "model.safetensors": ("last",),
    "training.safetensors": ("resume",),
    "metrics.jsonl": ("resume", "plot", "figure"),
    ".lock": ("resume",),
    "tensorboard": ("resume",),
    "best": ("resume", "eval", "generate"),
    "best/config.json": ("eval", "generate"),
    "best/symbols.json": ("eval", "generate"),
    "best/columns.json": ("eval", "generate"),
    "best/model.safetensors": ("eval", "generate"),
}


@pytest.mark.parametrize("leads", ["to the same", *(pytest.param(w, marks=SLOW) for w in ("nowhere", "to a folder"))])
@pytest.mark.parametrize("part", [*PARTS, *INNER])
def test_a_link_in_a_run(runs, tmp_path, name, part, leads):
    """Each part in turn is a link to another run's, to a place where nothing is, or to a folder."""
    run, other = copy(runs[name], tmp_path), tmp_path / "other"
    if OF_A_KIND.get(Path(part).name, name) != name:
        pytest.skip(f"a run on {name} has none")
    shutil.copytree(run, other)
    (other / "tensorboard").mkdir()
    (other / ".config.json.left").write_text("by a process that was killed")
    (run / part).unlink() if (run / part).is_file() else shutil.rmtree(run / part, ignore_errors=True)
    (run / part).symlink_to({"to the same": other / part, "nowhere": other / "nothing", "to a folder": other}[leads])
    before = content(other)
    for command, arguments in commands(run, name, tmp_path).items():
        with bounded():
            done = call(*arguments)
        assert content(other) == before, command
        assert not (other / "nothing").exists(), command
        if done.returncode:
            reason(done.stderr, "run")
        assert (done.returncode != 0) == (command in READ_BY[part]), (command, done.stderr)


def test_a_new_run_where_links_lie(folder, tmp_path, name):
    other, run = tmp_path / "other", tmp_path / "run"
    for place in (other, run):
        place.mkdir()
    for part in ("model.safetensors", "symbols.json", "columns.json", "training.safetensors", "teacher.safetensors"):
        (run / part).symlink_to(other / part)
    succeeded("train", name, *FLAGS[name], "--out", run, cwd=folder)  # renamed into their place
    assert list(other.iterdir()) == []
    shutil.rmtree(run)
    for part in ("metrics.jsonl", "best", "tensorboard", "config.json"):
        run.mkdir()
        (run / part).symlink_to(other / part)
        refused("train", name, *FLAGS[name], "--tensorboard", "--out", run, cwd=folder)
        assert list(other.iterdir()) == []
        shutil.rmtree(run)
    (run / "hard").parent.mkdir()
    (other / "own").write_text("dear to me\n")
    os.link(other / "own", run / "metrics.jsonl")  # tar makes these, too
    refused("train", name, *FLAGS[name], "--out", run, cwd=folder, because="metrics.jsonl")
    assert (other / "own").read_text() == "dear to me\n"


def test_the_directory_of_a_run_may_be_a_link(runs, tmp_path, name):
    (tmp_path / "latest").symlink_to(copy(runs[name], tmp_path))
    for arguments in commands(tmp_path / "latest", name, tmp_path).values():
        succeeded(*arguments)
