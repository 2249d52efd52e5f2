"""Next-point prediction as a task to train on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmrnn.domains.strokes.config import MEASURE, StrokeRunConfig
from hmrnn.domains.strokes.data.lines import StrokeData
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.domains.vectors.task import VectorTask
from hmrnn.training.batches import Window
from hmrnn.training.distributed import Processes

SCALES = 1  # keeps the random numbers for these apart from those for the order of lines


class StrokeTask(VectorTask):
    """Lines of handwriting, each made a little larger or smaller."""

    measure = MEASURE

    def __init__(self, model: StrokeModel, data: StrokeData, run: StrokeRunConfig, processes: Processes) -> None:
        super().__init__(model, data.split("train"), data, run.training, processes, run.data.late_window)
        self.scaling = run.data.scaling

    def vary(self, window: Window, update: int, rows: npt.NDArray[np.int64], start: int) -> None:
        window.points[..., :2] *= self.scales(update, rows)

    def scales(self, update: int, rows: npt.NDArray[np.int64]) -> Tensor:
        """(B, 1): by how much each line is made larger in this update's epoch."""
        epoch, _ = self.epochs.place(update)
        every = np.random.default_rng([self.seed, epoch, SCALES]).uniform(-1, 1, len(self.train))
        return torch.from_numpy(1 + self.scaling * every[rows]).float().unsqueeze(1)
