"""The teacher of a run on text: made once, before the first update, and kept in the run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from hmrnn.domains.text.config import TextRunConfig
from hmrnn.domains.text.data.store import TextData
from hmrnn.guidance.branching import Branching
from hmrnn.storage.files import write_atomically
from hmrnn.storage.pretrained import checksum_of, read_weights

TEACHER = "teacher.safetensors"


def wanted(run: TextRunConfig) -> bool:
    """Whether detectors of such a run are guided by what the text tells."""
    model, training = run.model, run.training
    detects = model.model == "hm-lstm" and model.boundary == "step" and len(model.hidden_sizes) > 1
    return detects and training.guides and (training.target_rate == "auto" or training.uncertainty_weight > 0)


def teacher_of(run: TextRunConfig, data: TextData) -> Branching | None:
    """What the training part tells. A `target_rate` that is a number fixes that of the first layer."""
    if not wanted(run) or len(data.split("train")) < 2:  # so short a text is refused later, with a reason
        return None
    rate = run.training.target_rate
    table = data.symbols.table
    line_end = table.index("\n") if "\n" in table else None
    return Branching.of(data.split("train"), len(data.symbols), line_end, None if rate == "auto" else rate)


def save_teacher(directory: Path, teacher: Branching) -> None:
    state = {name: torch.from_numpy(values) for name, values in teacher.state_dict().items()}
    write_atomically(directory / TEACHER, save(state, {"sha256": checksum_of(state)}))


def load_teacher(directory: Path, run: TextRunConfig) -> Branching | None:
    """That of a run which has one: runs that were begun before there were any have a rate, and none."""
    path = directory / TEACHER
    if not wanted(run):
        return None
    if not path.exists():
        if run.training.target_rate == "auto":
            raise ValueError(f"{path} is missing: it tells what the detectors of this run learn")
        return None
    state = read_weights(path)
    try:
        return Branching.from_state_dict({name: values.numpy() for name, values in state.items()})
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: damaged, or not written by hmrnn: {error}") from None
