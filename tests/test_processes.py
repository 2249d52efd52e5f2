"""Training in processes of their own, as users run it: killed, interrupted, two at a time."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import recorded_updates, taught
from support.small_runs import (
    LONG_RUN,
    REGULARISED,
    UPDATES,
    command,
    lines_in,
    metrics,
    same_weights,
    torchrun,
    wait_for,
)

from hmrnn.training import checkpoint
from hmrnn.training.history import read_history
from hmrnn.training.teachers import TEACHER


def test_kill_9_at_random_moments(text_file, tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    subprocess.run(command(text_file, *LONG_RUN, "--out", str(straight)), check=True, capture_output=True)
    chance = random.Random(1)
    for attempt in range(2):  # tests/faults has 40
        where = ["--resume", str(killed)] if attempt else [*LONG_RUN, "--out", str(killed)]
        arguments = [sys.executable, "-m", "hmrnn", "train", "text", *where] if attempt else command(text_file, *where)
        before = lines_in(killed / "metrics.jsonl")
        process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_for(lambda: lines_in(killed / "metrics.jsonl") > before + 20 or process.poll() is not None)  # noqa: B023
        time.sleep(chance.random() * 0.2)
        assert process.poll() is None, "it was to be killed while it trains"
        process.kill()
        process.wait()
    done = subprocess.run(
        [sys.executable, "-m", "hmrnn", "train", "text", "--resume", str(killed)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "restored: weights" in done.stderr
    assert same_weights(straight, killed)
    assert same_weights(straight / "best", killed / "best")
    assert metrics(straight) == metrics(killed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_by_a_signal(text_file, tmp_path, number):
    run = tmp_path / "run"
    arguments = command(text_file, "--epochs", "10000", "--checkpoint-minutes", "99", "--out", str(run))
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: lines_in(run / "metrics.jsonl") > 20)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert f"hmrnn train text --resume {run}" in out
    update = checkpoint.load_progress(run)["update"]
    assert update == max(record["update"] for record in metrics(run))
    assert update > 20
    epochs = str((update + 30) / UPDATES)
    resumed = [sys.executable, "-m", "hmrnn", "train", "text", "--resume", str(run), "--epochs", epochs]
    subprocess.run(resumed, check=True, capture_output=True)
    straight = command(text_file, "--epochs", epochs, "--checkpoint-minutes", "99", "--out", str(tmp_path / "straight"))
    subprocess.run(straight, check=True, capture_output=True)
    assert same_weights(run, tmp_path / "straight")


@pytest.mark.parametrize("bias", ["0.0", "-3.0"])
def test_two_processes_take_the_steps_of_one(text_file, tmp_path, bias):
    """2 x 2 streams against 1 x 4, in float64: every gradient of every update, and the weights after them.

    With a bias of -3 no detector ever fires, and layers 2 and 3 only COPY: that must not hang it.
    """
    script = recorded_updates.__file__  # unguided: the mean of two processes' quantiles is not the quantile of both
    subprocess.run([sys.executable, script, str(text_file), str(tmp_path / "one.pt"), "4", bias, "0"], check=True)
    done = torchrun(script, str(text_file), str(tmp_path / "two.pt"), "2", bias, "0")
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("one.pt", "two.pt"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
    fired = torch.stack([one[f"rates {update}"] for update in range(recorded_updates.UPDATES)])
    assert (fired == 0).all() if bias == "-3.0" else (fired > 0).any()


def test_two_processes_guide_alike(text_file, tmp_path):
    """Each sees the detectors at work on its own streams; both must move them by the same."""
    done = torchrun(recorded_updates.__file__, str(text_file), str(tmp_path / "run"), "2", "-3.0", "100")
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / name, weights_only=True) for name in ("run", "run.1"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    fired = torch.stack([first[f"rates {update}"] for update in range(recorded_updates.UPDATES)])
    assert (fired[0] == 0).all()
    assert fired[-1, 0] > 0, "steered from a bias with which no detector fires"


def test_two_processes_have_one_teacher(text_file, tmp_path):
    """The first counts, and leaves it in the run."""
    done = torchrun(taught.__file__, str(text_file), str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    first, second = (np.load(tmp_path / f"run.{rank}.npz") for rank in (0, 1))
    assert first.files == second.files
    assert all((first[name] == second[name]).all() for name in first.files)
    kept = load_file(tmp_path / "run" / TEACHER)
    assert all((kept[name] == first[name]).all() for name in kept)


def test_two_processes_go_on_exactly(text_file, tmp_path):
    """With sampled boundaries and every regulariser: each process has random numbers of its own."""
    flags = ["--batch-size", "2", "--patience", "99", "--boundary", "sample"]
    flags += [f"--{name.replace('_', '-')}={value}" for name, value in REGULARISED.items()]

    def train(*more: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
        return torchrun(*command(text_file, *flags, *more)[1:], processes=processes)

    straight = train("--epochs", "1.5", "--out", str(tmp_path / "straight"))
    assert straight.returncode == 0, straight.stderr
    assert straight.stdout.count("all epochs are done") == 1, "one process speaks"
    assert train("--epochs", "0.7", "--out", str(tmp_path / "parts")).returncode == 0
    done = train("--epochs", "1.5", "--resume", str(tmp_path / "parts"))
    assert done.returncode == 0, done.stderr
    assert same_weights(tmp_path / "straight", tmp_path / "parts")
    assert same_weights(tmp_path / "straight" / "best", tmp_path / "parts" / "best")
    assert read_history(tmp_path / "parts").steps_per_update == 2 * 2 * 10, "by the speed of the first update"
    one, other = checkpoint.load_progress(tmp_path / "straight")["random"]
    assert not torch.equal(one, other)
    refused = train("--epochs", "2", "--resume", str(tmp_path / "parts"), processes=1)
    assert refused.returncode != 0
    assert "trained by 2 processes" in refused.stderr
    taken = train("--epochs", "2", "--out", str(tmp_path / "parts"))
    assert taken.returncode != 0
    said = taken.stderr.split("torch.distributed")[0]  # then torchrun itself has its say
    assert "holds a run: --resume" in said
    assert "Traceback" not in said.split("holds a run")[0]
    assert "Connection closed" not in taken.stderr
