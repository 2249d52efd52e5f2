"""Runs from strangers, made by a seed: every command answers or refuses, in bounded time and memory, and touches
nothing outside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.faults.runs import FLAGS, all_finite, bounded, call, copy, kind, reason
from support.faults.strangers import Stranger

# What is imported while a command runs would count as its own.
from hmrnn.domains.series import figures as _series  # noqa: F401
from hmrnn.domains.strokes import figures as _strokes  # noqa: F401
from hmrnn.domains.text import figures as _text  # noqa: F401
from hmrnn.show import curves as _curves  # noqa: F401
from hmrnn.show import training as _training  # noqa: F401

SHARE = 50  # runs of a test: so that a seed that fails is soon found
QUICK, ALL = 100, 2000
KINDS = ("text", "strokes", "bytes", "series")
OTHER = {"text": "strokes", "strokes": "text", "bytes": "text", "series": "strokes"}


def commands(run: Path, kind: str, out: Path, data: Path) -> list[list[str | Path]]:
    return [
        ["eval", run],
        ["eval", run, "--checkpoint", "last"],
        ["score", run],
        ["generate", run, "--max-new", "5"],
        ["segment", run, data],
        ["plot", run, "--out", out / "curves.svg"],
        ["figure", run, "--kind", "training", "--out", out / "training.svg"],
        ["train", kind, "--resume", run, "--epochs", "1.1", "--tensorboard"],
    ]


def content(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def parts() -> list[object]:
    """The first are of `make test`."""
    numbers = range(0, ALL, SHARE)
    return [pytest.param(n, marks=[pytest.mark.faults] if n >= QUICK else []) for n in numbers]


@pytest.mark.parametrize("first", parts())
def test_runs_from_strangers(runs, folder, tmp_path, first):
    refusals = tried = 0
    for seed in range(first, first + SHARE):
        name = KINDS[seed % len(KINDS)]
        run, outside, out = copy(runs[name], tmp_path), tmp_path / "outside", tmp_path / "out"
        shutil.copytree(runs[name], outside)
        out.mkdir()
        done = Stranger(run, runs[OTHER[name]], outside, seed).spoil()
        before = content(outside)
        for command in commands(run, kind(name), out, folder / FLAGS[name][1]):
            with bounded():
                answered = call(*command)
            what = (seed, done, command)
            assert answered.returncode in (0, 1, 2), (what, answered.stderr)
            assert "Traceback" not in answered.stderr, (what, answered.stderr)
            asked_for = command[0] in ("generate", "segment")  # its text goes into a pipe as it is
            assert "\x1b" not in answered.stderr + ("" if asked_for else answered.stdout), what
            if answered.returncode:
                reason(answered.stderr)
            refusals += answered.returncode != 0
            tried += 1
            assert content(outside) == before, what
            assert {path.name for path in out.iterdir()} <= {"curves.svg", "training.svg"}, what
        if done and not any("model.safetensors" in one for one in done):
            assert all_finite_where_it_can_be(run), (seed, done)
        for place in (run, outside, out):
            shutil.rmtree(place)
    assert tried / 5 < refusals < tried, "some are refused, and some are still of use"


def all_finite_where_it_can_be(run: Path) -> bool:
    return any(path.is_symlink() or not path.is_file() for path in run.rglob("model.safetensors")) or all_finite(run)
