"""Next-point prediction as a task to train on: the loss of each window of some lines, and validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hmrnn.domains.strokes.config import MEASURE, StrokeRunConfig
from hmrnn.domains.strokes.data.lines import StrokeData
from hmrnn.domains.strokes.data.points import Points
from hmrnn.domains.strokes.evaluation import score_lines
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.sequence import HMLSTMState
from hmrnn.storage.pretrained import Pretrained
from hmrnn.training.batches import (
    NO_LINE,
    LineBatches,
    Window,
    cut,
)
from hmrnn.training.distributed import Processes
from hmrnn.training.task import Loss, Validation

RATE = 0.25  # at which the first detector is to fire, if no other is given
SCALES = 1  # keeps the random numbers for these apart from those for the order of lines


class Objective(nn.Module):
    """The model and its loss in one module: distributed training hooks into its forward pass."""

    def __init__(self, model: StrokeModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, window: Window, state: HMLSTMState | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, HMLSTMState]:
        """The loss in nats, how often each detector fired (L-1,), both summed over the points; the loss of each point
        (T, B), since a mixture's entropy has no closed form; and the state after."""
        out, state = self.model(window.points[:-1], state, window.lengths, generator=generator)
        nats = -out.density.log_prob(self.model.normalised(window.points[1:])).where(window.counted, 0.0)
        return nats.sum(), out.rnn.z.detach().sum((0, 1)), nats.detach(), state


class StrokeTask:
    """Lines of handwriting, some side by side, window by window, with the state carried along within a line."""

    measure = MEASURE

    def __init__(self, model: StrokeModel, data: StrokeData, run: StrokeRunConfig, processes: Processes) -> None:
        self.model = model
        # strokes have no symbols to count
        self.rates: Sequence[float] = (RATE,) if run.training.target_rate == "auto" else ()
        self.train, self.valid = data.split("train"), data.split("valid")
        self.told = data.told()
        lengths = data.lines.lengths[data.numbers("train")]
        # More rows than lines would be empty, and cost memory.
        self.rows, self.processes = min(run.training.batch_size, math.ceil(len(lengths) / processes.world)), processes
        rows, training = self.rows * processes.world, run.training
        self.batches = LineBatches(lengths, rows, training.window, training.seed, run.data.late_window)
        self.epochs = self.batches.epochs
        self.points = int(lengths.sum())
        self.scaling, self.seed = run.data.scaling, run.training.seed
        self.objective = processes.wrap(Objective(model))
        self.state: HMLSTMState | None = None

    def loss(self, update: int, generator: torch.Generator) -> Loss:
        rows, start, end = self.batches.at(update)
        lines = self.lines(rows)
        count = sum(min(max(0, len(line) - 1 - start), end - start) for line in lines)
        mine = slice(self.processes.rank * self.rows, (self.processes.rank + 1) * self.rows)
        window = cut(lines[mine], start, end)
        window.points[..., :2] *= self.scales(update, rows[mine])
        window = window.to(self.model.mean.device)
        state = None if start == 0 else self.state
        nats, fired, each, state = self.objective(window, state, generator)
        self.state = state.detach()
        # Gradients are averaged over the processes, which may have unequal numbers of points.
        share = self.processes.world / count
        return Loss(nats * share, fired * share, partial(each.unsqueeze, -1), count)

    def lines(self, rows: npt.NDArray[np.int64]) -> list[Points]:
        nothing = self.train[0][:0]
        return [nothing if row == NO_LINE else self.train[row] for row in rows]

    @torch.no_grad()
    def read(self, model: Pretrained, window: int, state: HMLSTMState | None) -> HMLSTMState:
        assert isinstance(model, StrokeModel)
        rows, start, end = self.batches.at(window % self.epochs.first)
        lines = cut(self.lines(rows), start, end).to(model.mean.device)
        _, state = model(lines.points[:-1], None if start == 0 else state, lines.lengths)
        return state

    def scales(self, update: int, rows: npt.NDArray[np.int64]) -> Tensor:
        """(B, 1): by how much each line is made larger in this update's epoch."""
        epoch, _ = self.epochs.place(update)
        every = np.random.default_rng([self.seed, epoch, SCALES]).uniform(-1, 1, len(self.train))
        return torch.from_numpy(1 + self.scaling * every[rows]).float().unsqueeze(1)

    def validate(self, model: Pretrained, show: bool) -> Validation:
        assert isinstance(model, StrokeModel)
        points = sum(len(line) - 1 for line in self.valid)
        nats, rates = score_lines(model, self.valid, show=show)
        return Validation(-float(nats.sum()) / points, rates)

    def forget(self) -> None:
        """Starts the lines' next window without a past."""
        self.state = None

    def description(self) -> str:
        return f"{self.told}; {self.points:,} points to train on"
