"""Small runs on text, in this process and in others, for the tests of training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import torch
from safetensors.torch import load_file

from hmrnn.config import TrainingConfig
from hmrnn.domains.text.config import TextDataConfig, TextModelConfig, TextRunConfig
from hmrnn.training.loop import Training

UPDATES = 12  # in an epoch of the text below
CLOCKS = ("minutes", "symbols_per_second")


# Every regulariser at once.
DROPOUT = {"weight_drop": 0.3, "embedding_dropout": 0.2, "dropout": 0.2, "output_dropout": 0.2}
REGULARISED = {**DROPOUT, "weight_decay": 0.1, "average": 0.9, "warmup": 5}


def settings(text_file: Path, **changes) -> TextRunConfig:
    shape = {"embedding_size": 5, "hidden_sizes": (8, 7, 6), "output_size": 9}
    shape |= {"precision": "float32"}  # the same numbers on every processor
    names = [name.name for name in fields(TextModelConfig) if name.name in changes]
    model = TextModelConfig(**(shape | {name: changes.pop(name) for name in names}))
    defaults = {"batch_size": 4, "window": 10, "learning_rate": 0.01, "epochs": 2.0, "patience": 9}
    return TextRunConfig(TextDataConfig(str(text_file)), model, TrainingConfig(**{**defaults, **changes}))


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def metrics(directory: Path) -> list[dict]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in CLOCKS} for line in lines]


class Killed(BaseException):
    """Stands for a process that ends on the spot."""


def killed_at(update):
    make = Training.make_update

    def mortal(self, stop, checkpoint):
        if self.update == update:
            raise Killed
        return make(self, stop, checkpoint)

    return mortal


def command(text_file: Path, *more: str) -> list[str]:
    """Without a cooldown, so that a run may be resumed with more epochs and still be the same."""
    flags = "--batch-size 4 --window 10 --learning-rate 0.01 --hidden-sizes 8 7 6 --output-size 9 --embedding-size 5"
    start = [sys.executable, "-m", "hmrnn", "train", "text", *flags.split(), "--cooldown", "0"]
    return [*start, "--data", str(text_file), *more]


LONG_RUN = ("--epochs", "60", "--validate-every", "5", "--patience", "99", "--checkpoint-minutes", "0.0005")


def lines_in(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def wait_for(condition, seconds=600.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def torchrun(*arguments: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, *arguments], capture_output=True, text=True, check=False, timeout=600, env=environment
    )
