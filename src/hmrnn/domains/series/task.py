"""Next-step prediction as a task to train on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from hmrnn.domains.series.config import MEASURE, SeriesRunConfig
from hmrnn.domains.series.data.sequences import SeriesData
from hmrnn.domains.series.model import SeriesModel
from hmrnn.domains.vectors.task import VectorTask
from hmrnn.training.batches import Line, Window
from hmrnn.training.distributed import Processes

STARTS = 1  # keeps the random numbers for these apart from those for the order of sequences
FROM_NOTHING = 0.5  # share of the sequences whose first step is missing


class SeriesTask(VectorTask):
    """Sequences, in pieces. Half of them begin with a step of which all is missing, as those do that are made."""

    measure = MEASURE

    def __init__(self, model: SeriesModel, data: SeriesData, run: SeriesRunConfig, processes: Processes) -> None:
        train = [piece for line in data.split("train") for piece in pieces(line, run.data.piece)]
        super().__init__(model, train, data, run.training, processes)

    def vary(self, window: Window, update: int, rows: npt.NDArray[np.int64], start: int) -> None:
        if start == 0:
            epoch, _ = self.epochs.place(update)
            every = np.random.default_rng([self.seed, epoch, STARTS]).random(len(self.train)) < FROM_NOTHING
            window.points[0, torch.from_numpy(every[rows])] = torch.nan


def pieces(line: Line, most: int) -> list[Line]:
    """A sequence in pieces alike in size. The last step of one is the first of the next."""
    count = max(1, -(-(len(line) - 1) // most))
    cuts = np.linspace(0, len(line) - 1, count + 1).astype(int)
    return [line[first : last + 1] for first, last in pairwise(cuts)]
