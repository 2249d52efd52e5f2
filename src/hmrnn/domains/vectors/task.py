"""Next-vector prediction as a task to train on: the loss of each window of some lines, and validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hmrnn.config import Measure, TrainingConfig
from hmrnn.domains.vectors.data import LineData, can_be_predicted
from hmrnn.domains.vectors.evaluation import score_lines
from hmrnn.domains.vectors.model import VectorModel
from hmrnn.sequence import HMLSTMState
from hmrnn.storage.pretrained import Pretrained
from hmrnn.training.batches import (
    NO_LINE,
    Line,
    LineBatches,
    Window,
    cut,
)
from hmrnn.training.distributed import Processes
from hmrnn.training.task import Loss, Validation

RATE = 0.25  # at which the first detector is to fire, if no other is given


class Objective(nn.Module):
    """The model and its loss in one module: distributed training hooks into its forward pass."""

    def __init__(self, model: VectorModel[Any]) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, window: Window, state: HMLSTMState | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, HMLSTMState]:
        """The loss in nats, how often each detector fired (L-1,), both summed over the points; how wide the density of
        each point was (T, B); and the state after."""
        out, state = self.model(window.points[:-1], state, window.lengths, generator=generator)
        nats = -out.density.log_prob(self.model.normalised(window.points[1:])).where(window.counted, 0.0)
        with torch.no_grad():
            spread = out.density.spread()
        return nats.sum(), out.rnn.z.detach().sum((0, 1)), spread, state


class VectorTask:
    """Lines, some side by side, window by window, with the state carried along within a line."""

    measure: Measure

    def __init__(
        self,
        model: VectorModel[Any],
        train: Sequence[Line],
        data: LineData,
        training: TrainingConfig,
        processes: Processes,
        late_window: tuple[int, int] | None = None,
    ) -> None:
        """`train` are the lines to train on, as the domain takes them out of the data."""
        self.model, self.train, self.valid, self.about_data = model, train, data.split("valid"), data.description()
        if not can_be_predicted(self.valid):
            raise ValueError("all numbers are missing in the validation part: there is nothing to predict")
        # no symbols to count
        self.rates: Sequence[float] = (RATE,) if training.target_rate == "auto" else ()
        lengths = np.array([len(line) for line in train])
        # More rows than lines would be empty, and cost memory.
        self.rows, self.processes = min(training.batch_size, math.ceil(len(lengths) / processes.world)), processes
        rows, self.seed = self.rows * processes.world, training.seed
        self.batches = LineBatches(lengths, rows, training.window, training.seed, late_window)
        self.epochs = self.batches.epochs
        self.points = int(lengths.sum())
        self.objective = processes.wrap(Objective(model))
        self.state: HMLSTMState | None = None

    def vary(self, window: Window, update: int, rows: npt.NDArray[np.int64], start: int) -> None:
        """Changes what is read in training, if a domain wants that: the window of these lines from step `start` on."""

    def loss(self, update: int, generator: torch.Generator) -> Loss:
        rows, start, end = self.batches.at(update)
        lines = self.lines(rows)
        count = sum(min(max(0, len(line) - 1 - start), end - start) for line in lines)
        mine = slice(self.processes.rank * self.rows, (self.processes.rank + 1) * self.rows)
        window = cut(lines[mine], start, end)
        self.vary(window, update, rows[mine], start)
        window = window.to(self.model.mean.device)
        state = None if start == 0 else self.state
        nats, fired, each, state = self.objective(window, state, generator)
        self.state = state.detach()
        # Gradients are averaged over the processes, which may have unequal numbers of points.
        share = self.processes.world / count
        return Loss(nats * share, fired * share, partial(each.unsqueeze, -1), count)

    def lines(self, rows: npt.NDArray[np.int64]) -> list[Line]:
        nothing = self.train[0][:0]
        return [nothing if row == NO_LINE else self.train[row] for row in rows]

    @torch.no_grad()
    def read(self, model: Pretrained, window: int, state: HMLSTMState | None) -> HMLSTMState:
        assert isinstance(model, VectorModel)
        rows, start, end = self.batches.at(window % self.epochs.first)
        lines = cut(self.lines(rows), start, end).to(model.mean.device)
        _, state = model(lines.points[:-1], None if start == 0 else state, lines.lengths)
        return state

    def validate(self, model: Pretrained, show: bool) -> Validation:
        assert isinstance(model, VectorModel)
        points = sum(len(line) - 1 for line in self.valid)
        nats, rates = score_lines(model, self.valid, show=show)
        return Validation(-float(nats.sum()) / points, rates)

    def forget(self) -> None:
        """Starts the lines' next window without a past."""
        self.state = None

    def description(self) -> str:
        return f"{self.about_data}; {self.points:,} {self.measure.step} to train on"
