"""The teacher of a run's detectors: made once, before the first update, and kept in the run."""

from __future__ import annotations

from pathlib import Path

import torch

from hmrnn.config import RunConfig
from hmrnn.domains import DOMAINS
from hmrnn.guidance.branching import Branching
from hmrnn.storage.tensors import read_tensors, write_tensors

TEACHER = "teacher.safetensors"
MOST_TEACHER = 1 << 28  # bytes of its file


def save_teacher(directory: Path, teacher: Branching) -> None:
    write_tensors(directory / TEACHER, {name: torch.tensor(own) for name, own in teacher.state_dict().items()})


def load_teacher(directory: Path, run: RunConfig) -> Branching | None:
    """That of a run which has one: runs that were begun before there were any have a rate, and none."""
    path = directory / TEACHER
    if not DOMAINS[run.kind].is_taught(run):
        return None
    if not path.exists():
        if run.training.target_rate == "auto":
            raise ValueError(f"{path} is missing: it tells what the detectors of this run learn")
        return None
    state, _ = read_tensors(path, MOST_TEACHER)
    try:
        return Branching.from_state_dict({name: values.numpy() for name, values in state.items()})
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: damaged, or not written by hmrnn: {error}") from None
