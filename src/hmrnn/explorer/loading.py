"""The runs that an explorer shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hmrnn.config import ReadingConfig
from hmrnn.domains import DOMAINS
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.runs import Run
from hmrnn.storage.config_json import kind_of, read_config
from hmrnn.storage.pretrained import load_model


def load(directories: Sequence[Path], memory: Memory, reading: ReadingConfig | None = None) -> list[Run[Any]]:
    """One run, or two of one kind. From here on they are known by their number."""
    kinds = {kind_of(read_config(directory)[0]): directory for directory in directories}
    if len(kinds) > 1:
        told = " and ".join(f"{directory} reads {kind}" for kind, directory in kinds.items())
        raise ValueError(f"only runs of one kind can be compared: {told}")
    # One thread for one user: on the few cores of a desktop others can use the rest, and threads that wait for each
    # other within a step gain nothing.
    torch.set_num_threads(1)
    domain = DOMAINS[next(iter(kinds))]
    reading = reading or domain.in_explorer
    runs = []
    for number, directory in enumerate(directories):
        model = load_model(domain.model_class(), directory, reading)
        run = domain.explored(number, directory.resolve().name, model, memory, reading)
        run.directory = directory
        run.described()  # now, and not while a user waits
        runs.append(run)
    return runs
