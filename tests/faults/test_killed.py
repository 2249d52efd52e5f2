"""Processes that are killed, stopped, or two at once."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.faults import mortal
from support.faults.runs import FLAGS, call, copy, refused, succeeded, weights_of

from hmrnn.training.checkpoint import load_progress, locked

PER_EPOCH = {"text": 44, "strokes": 10, "series": 17}  # updates, at least
DEATHS = 40
CLOCKS = ("minutes", "symbols_per_second", "points_per_second", "steps_per_second")


def metrics(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in CLOCKS} for line in lines]


def long(name: str, updates: int) -> list[str]:
    """Flags of a run with so many updates, and a checkpoint every few of them."""
    epochs = str(math.ceil(updates / PER_EPOCH[name]))
    return [*FLAGS[name], "--epochs", epochs, "--patience", "999", "--checkpoint-minutes", "0.0005"]


# tests/test_processes.py has a quick part of the next test and of that of SIGTERM.
@pytest.mark.faults
def test_killed_at_random_moments_it_comes_to_the_same_weights(folder, tmp_path, name):
    flags = long(name, (DEATHS + 2) * (mortal.MOST + 20))
    succeeded("train", name, *flags, "--out", tmp_path / "straight", cwd=folder)
    arguments = [mortal.__file__, tmp_path / "killed", str(DEATHS), "1", name, *flags]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=3600)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    assert Counter(told["ends"]) == {"killed": DEATHS // 2, "killed in a write": DEATHS // 2}
    assert told["status"] == 0
    for part in (".", "best"):
        assert weights_of(tmp_path / "straight" / part) == weights_of(tmp_path / "killed" / part)
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "killed")
    assert not [path for path in (tmp_path / "killed").rglob(".*") if path.name != ".lock"], "what was half written"


def test_two_processes_can_not_train_into_one_run(runs, folder, tmp_path, name):
    run = copy(runs[name], tmp_path)
    before = weights_of(run)
    with locked(run):
        refused("train", name, "--resume", run, "--epochs", "2", because="another process is training into this run")
        refused("train", name, *FLAGS[name], "--out", run, cwd=folder, because="another process is training")
        succeeded("eval", run)
    assert weights_of(run) == before
    succeeded("train", name, "--resume", run, "--epochs", "2")
    assert weights_of(run) != before


@pytest.mark.faults
def test_a_second_process_is_refused_and_sigterm_writes_a_checkpoint(folder, tmp_path, name):
    """A cluster's preemption. The run goes on from there, to the weights of one that was never stopped."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "hmrnn", "train", name]
    arguments = [*command, *FLAGS[name], "--epochs", "100000", "--patience", "99999", "--out", run]
    with subprocess.Popen(arguments, cwd=folder, stdout=-1, stderr=-1, text=True) as process:
        end = time.monotonic() + 600
        while mortal.lines_in(run / "metrics.jsonl") < 15:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        refused("train", name, "--resume", run, because="another process is training into this run")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err
    assert f"--resume {run}" in out
    update = load_progress(run)["update"]
    assert update == max(record["update"] for record in metrics(run)) >= 10
    epochs = str(update // PER_EPOCH[name] + 2)
    succeeded("train", name, "--resume", run, "--epochs", epochs)
    flags = [*FLAGS[name], "--epochs", epochs, "--patience", "99999"]
    succeeded("train", name, *flags, "--out", tmp_path / "straight", cwd=folder)
    assert weights_of(run) == weights_of(tmp_path / "straight")


def test_a_run_without_its_first_checkpoint_can_be_started_again(runs, folder, tmp_path, name):
    run = copy(runs[name], tmp_path)
    for path in [run / "training.safetensors", *(run / "best").iterdir()]:
        path.unlink()
    (run / "best").rmdir()
    assert "nothing to resume" in refused("train", name, "--resume", run)
    done = call("train", name, *FLAGS[name], "--out", run, cwd=folder)
    assert done.returncode == 0, done.stderr
