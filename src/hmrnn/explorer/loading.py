"""The runs that an explorer shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hmrnn.cli.common import best_or_last
from hmrnn.config import ReadingConfig
from hmrnn.devices import resolve
from hmrnn.domains.strokes.explorer import StrokeRun
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.domains.text.explorer import TextRun
from hmrnn.domains.text.model import TextModel
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.runs import Run
from hmrnn.storage.pretrained import kind_of, read_config


def load(directories: Sequence[Path], memory: Memory, reading: ReadingConfig) -> list[Run[Any]]:
    """One run, or two of one kind. From here on they are known by their number."""
    kinds = {kind_of(read_config(directory)[0]) for directory in directories}
    if len(kinds) > 1:
        raise ValueError("only runs of one kind can be compared: one of these reads text and the other strokes")
    # One thread for one user: on the few cores of a desktop others can use the rest, and threads that wait for each
    # other within a step gain nothing.
    torch.set_num_threads(1)
    how: Any = {"engine": reading.engine, "precision": reading.precision, "device": resolve(reading.device)}
    runs: list[Run[Any]] = []
    for number, directory in enumerate(directories):
        name, place = directory.resolve().name, best_or_last(directory, reading)
        if kinds == {"text"}:
            model = TextModel.from_pretrained(place, **how)
            runs.append(TextRun(number, name, model, memory, reading.on_unknown))
        else:
            runs.append(
                StrokeRun(
                    number,
                    name,
                    StrokeModel.from_pretrained(place, **how),
                    memory,
                )
            )
    return runs
