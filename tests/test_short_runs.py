"""Runs of minutes: their bounds, their checkpoints, what is said of one that has ended, and a bar that fits."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest
from support.commands import run
from support.small_runs import UPDATES, Killed, killed_at, settings

from hmrnn.config import NEVER
from hmrnn.training import loop
from hmrnn.training.checkpoint import load_progress, load_run
from hmrnn.training.loop import Training
from hmrnn.training.metrics import Reporter
from hmrnn.training.run import train_run
from hmrnn.training.schedules import Checkpoints

FLAGS = "--batch-size 4 --window 10 --hidden-sizes 4 4 --output-size 4 --embedding-size 4"
SMALL = FLAGS.split()


def test_minutes_alone_lift_the_epochs(text_file, tmp_path, monkeypatch):
    new = ["--data", str(text_file), "--out", "run", *SMALL]
    assert run("train", "text", *new, "--minutes", "0.001", cwd=tmp_path).returncode == 0
    trained = load_run(tmp_path / "run").config.training
    assert (trained.epochs, trained.minutes) == (NEVER, 0.001)

    def bounds(*arguments: str) -> tuple[float, float | None]:
        asked = []

        def refused(run, *more, **how):
            asked.append(run.training)
            raise ValueError

        monkeypatch.setattr("hmrnn.training.run.train_run", refused)
        run("train", "text", *arguments, cwd=tmp_path)
        return asked[0].epochs, asked[0].minutes

    assert bounds("--resume", "run") == (NEVER, 0.001), "as it was"
    assert bounds("--resume", "run", "--minutes", "2") == (NEVER, 2)
    assert bounds("--resume", "run", "--epochs=3") == (3, None)
    assert bounds("--resume", "run", "--epochs", "3", "--minutes", "2") == (3, 2)
    assert bounds(*new) == (10, None), "those of the preset"
    assert bounds(*new, "--epochs", "3", "--minutes", "2") == (3, 2)


def test_checkpoints_come_early_and_take_little_time():
    checkpoints = Checkpoints(None, now=100.0)
    assert not checkpoints.due(104.9, cost=0.01, validation=False)
    assert checkpoints.due(105.1, cost=0.01, validation=False)
    assert checkpoints.due(100.5, cost=0.01, validation=True)
    assert not checkpoints.due(149.0, cost=1.0, validation=False), "that would be more than 2 % of the time"
    assert not checkpoints.due(149.0, cost=1.0, validation=True)
    assert checkpoints.due(150.1, cost=1.0, validation=False)
    checkpoints.latest = 3700.0  # an hour later
    assert not checkpoints.due(3880.0, cost=0.01, validation=False)
    assert checkpoints.due(3900.0, cost=0.01, validation=False)
    checkpoints.latest = 90_000.0  # a day later
    assert checkpoints.due(90_301.0, cost=0.01, validation=False)
    given = Checkpoints(5.0, now=100.0)
    assert given.due(100.1, cost=1.0, validation=True)
    assert (given.due(399.0, 1.0, False), given.due(401.0, 1.0, False)) == (False, True)


def test_a_run_that_is_killed_loses_seconds(text_file, tmp_path, monkeypatch):
    """An update takes a second by this clock, and an epoch ten minutes."""
    seconds, make = 0.0, killed_at(30)

    def update(self, stop, checkpoint):
        nonlocal seconds
        seconds += 1.0
        return make(self, stop, checkpoint)

    # the loop's own name for it, not the clock of the whole process: servers of other tests live by that
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: seconds))
    monkeypatch.setattr(Training, "make_update", update)
    with pytest.raises(Killed):
        train_run(settings(text_file, epochs=60.0, validate_every=50.0), tmp_path / "run")
    assert 30 - load_progress(tmp_path / "run")["update"] <= 7


def test_a_finished_run_says_what_to_give(text_file, tmp_path, monkeypatch):
    new = ["--data", str(text_file), "--out", "run", *SMALL, "--epochs", "1.5", "--cooldown", "0.5"]
    assert run("train", "text", *new, cwd=tmp_path).returncode == 0
    with monkeypatch.context() as patch:
        patch.setattr(Training, "validate", lambda self: pytest.fail("nothing has changed that could be validated"))
        done = run("train", "text", "--resume", "run", cwd=tmp_path)
    assert re.fullmatch(
        r"nothing was done: .*\(1\.5 epochs, .*\).*--epochs N or --minutes N\n",
        done.stdout,
    )
    assert "cooled" not in done.stderr
    again = run("train", "text", "--resume", "run", "--epochs", "3", cwd=tmp_path)
    assert again.returncode == 0
    assert re.search(r"warning: the learning rate .*\b0,.*\b0\.004\b", again.stderr)


def test_a_run_that_has_converged_does_not_go_on(text_file, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "hmrnn.training.schedules.LearningRate.after", lambda self, loss: setattr(self, "finished", True)
    )
    new = ["--data", str(text_file), "--out", "run", *SMALL, "--epochs", "9"]
    assert "validation has stopped improving" in run("train", "text", *new, cwd=tmp_path).stdout
    assert "with a larger --patience" in run("train", "text", "--resume", "run", "--epochs", "99", cwd=tmp_path).stdout


def test_a_run_is_marked_as_ended_once_it_was_validated(text_file, tmp_path, monkeypatch):
    """Killed in its last validation, it makes that up."""
    halfway = settings(text_file, epochs=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "validate", lambda self: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train_run(halfway, tmp_path / "run")
    assert load_progress(tmp_path / "run")["update"] < UPDATES / 2
    assert train_run(halfway, tmp_path / "run", resume=True).best < 10


def test_an_engine_is_asked_for_only_if_it_was(text_file, tmp_path):
    new = ["--data", str(text_file), "--out", "run", *SMALL, "--epochs", "0.2"]
    first = run("train", "text", *new, cwd=tmp_path).stderr
    assert "asked for" not in first
    again = run("train", "text", "--resume", "run", "--epochs", "0.4", cwd=tmp_path).stderr
    assert re.search(r"engine \w+ \(as before\)", again)
    asked = run("train", "text", "--resume", "run", "--epochs", "0.5", "--engine", "events", cwd=tmp_path).stderr
    assert "engine events (asked for)" in asked


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_fits_80_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda stream: (80, 24))
    with Reporter(tmp_path, True, False, 0, 0.0) as reporter:
        reporter.bar.mininterval = 0.0
        reporter.progress(0.5, "epoch 12.34, 1.234 bits, 24,456 symbols/s, z .21 .04")
    shown = [line for line in re.split("[\r\n]", screen.getvalue()) if line]
    assert any("24,456 symbols/s, z .21 .04" in line for line in shown)
    assert max(map(len, shown)) <= 80
