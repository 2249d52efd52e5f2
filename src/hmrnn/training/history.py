"""What metrics.jsonl tells of a run: its losses, update by update, and its validations."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmrnn.config import Measure, RunConfig
from hmrnn.domains import DOMAINS
from hmrnn.storage.files import lines_of
from hmrnn.training.checkpoint import LONGEST_LINE, load_run

LARGEST = 1e15  # number that is drawn
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Losses:
    """Losses in the order in which they were measured. One that was not finite is NaN."""

    update: Numbers
    epoch: Numbers
    minutes: Numbers
    loss: Numbers

    @property
    def finite(self) -> Losses:
        """Those that are."""
        kept = np.isfinite(self.loss)
        return Losses(self.update[kept], self.epoch[kept], self.minutes[kept], self.loss[kept])


@dataclass(frozen=True)
class History:
    """How a run went."""

    directory: Path
    config: RunConfig
    processes: int  # that trained together
    training: Losses  # of each update
    validation: Losses

    @property
    def measure(self) -> Measure:
        return DOMAINS[self.config.kind].measure_of(self.config)

    @property
    def steps_per_update(self) -> int | None:
        """Of all processes; None if updates read different numbers of steps."""
        own = DOMAINS[self.config.kind].steps_per_update(self.config)
        return None if own is None else own * self.processes

    def summary(self) -> dict[str, Any]:
        """How far it is, and its last and best validation: null if there is none, or if it was not finite."""
        ends = [own for own in (self.training, self.validation) if len(own.loss)]
        last = max(ends, key=lambda own: float(own.update[-1]))
        validations, finite = self.validation.loss, self.validation.finite.loss
        return {
            "run": str(self.directory),
            "update": int(last.update[-1]),
            "epoch": float(last.epoch[-1]),
            "minutes": float(last.minutes[-1]),
            f"valid_{self.measure.name}": float(validations[-1]) if len(validations) else None,
            f"best_{self.measure.name}": float(finite.min()) if len(finite) else None,
        }


def read_history(directory: Path) -> History:
    """From config.json and metrics.jsonl alone: the weights need not be there."""
    config = load_run(directory, files=False).config
    records, path = read_metrics(directory), directory / "metrics.jsonl"
    name = DOMAINS[config.kind].measure.name
    training, validation = losses(records, name, path), losses(records, f"valid_{name}", path)
    if not len(training.finite.loss) and not len(validation.finite.loss):
        raise ValueError(f"{path}: there is no loss in {name} in it yet that could be drawn")
    return History(directory, config, processes(config, records), training, validation)


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """The records of a run."""
    path = directory / "metrics.jsonl"
    if not os.path.lexists(path):
        raise ValueError(
            f"{directory}: there is no metrics.jsonl here, the record of training: this is not a training run"
        )
    records = []
    for number, line in enumerate(lines_of(path, LONGEST_LINE), 1):
        try:
            records.append({**json.loads(line.decode())})
        except (ValueError, TypeError, RecursionError):
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                break  # the last one, which a process is just writing, or was when it was killed
            raise ValueError(f"{path}: line {number} is not a record") from None
    return records


def losses(records: Sequence[Mapping[str, Any]], name: str, path: Path) -> Losses:
    """Those of this name."""
    rows = []
    for line, record in enumerate(records, 1):
        if name not in record:
            continue
        row = {key: number(record.get(key)) for key in ("update", "epoch", "minutes", name)}
        for key, value in row.items():
            if value is None or (key != name and not value >= 0):
                raise ValueError(f"{path}: line {line}: {key} can't be {str(record.get(key))[:80]!r}")
        rows.append(list(row.values()))
    return Losses(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def number(value: Any) -> float | None:
    """None for what is no number. NaN, what is as good as infinite, and null, which stands for both, are NaN."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= LARGEST else math.nan


def can_be_drawn(value: Any) -> bool:
    """Whether it is a number, and finite."""
    found = number(value)
    return found is not None and math.isfinite(found)


def processes(config: RunConfig, records: Sequence[Mapping[str, Any]]) -> int:
    """How many trained together, which config.json does not say. At the first update the speed is not yet a mean, so
    that the steps that all of them read are speed times time."""
    first, domain = records[0] if records else {}, DOMAINS[config.kind]
    own = domain.steps_per_update(config)
    if own is None or first.get("update") != 1:
        return 1
    speed, minutes = number(first.get(f"{domain.measure.step}_per_second")), number(first.get("minutes"))
    share = (speed or 0.0) * (minutes or 0.0) * 60 / own
    return max(1, round(share)) if math.isfinite(share) else 1
