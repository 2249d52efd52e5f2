"""Sequences of different lengths, read side by side and window by window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Line: TypeAlias = npt.NDArray[np.float32]
"""(T, D): a sequence of vectors: the points of a line of handwriting, the rows of a series."""


@dataclass(frozen=True)
class Window:
    """A stretch of some lines: the points, and those to predict from them."""

    points: Tensor  # (T + 1, B, D): padded with zeros
    lengths: Tensor  # (B,): how many points of each line are followed by one to predict

    @property
    def count(self) -> int:
        """Points to predict."""
        return int(self.lengths.sum())

    @property
    def counted(self) -> Tensor:
        """(T, B): which steps predict a point."""
        return torch.arange(len(self.points) - 1, device=self.lengths.device).unsqueeze(1) < self.lengths

    def to(self, device: torch.device) -> Window:
        return Window(*(part.to(device, non_blocking=True) for part in (self.points, self.lengths)))


def cut(lines: Sequence[Line], start: int, end: int) -> Window:
    """Steps `start` to `end` of lines, and the points to predict from them."""
    parts = [line[start : end + 1] for line in lines]
    points = np.zeros((end - start + 1, len(lines), lines[0].shape[1]), dtype=np.float32)
    for row, part in enumerate(parts):
        points[: len(part), row] = part
    return Window(torch.from_numpy(points), torch.tensor([max(0, len(part) - 1) for part in parts]))


def windows(longest: int, most: int) -> list[tuple[int, int]]:
    """Steps `start` to `end` of each window over lines of up to `longest` points: alike in size, `most` at most."""
    steps = max(1, longest - 1)
    size = math.ceil(steps / math.ceil(steps / most))
    return [(start, min(start + size, steps)) for start in range(0, steps, size)]


@dataclass(frozen=True)
class Epochs:
    """How many updates make an epoch: `first`; and `late` from epoch `late_from` on, if that is given."""

    first: int
    late_from: int = 0
    late: int | None = None

    def _part(self, update: int) -> tuple[int, int, int]:
        """Of the part of the run that an update belongs to: epochs and updates before it, and updates of an epoch."""
        before = self.late_from * self.first
        return (0, 0, self.first) if self.late is None or update < before else (self.late_from, before, self.late)

    def at(self, update: int) -> float:
        """How many epochs are done after so many updates."""
        epochs, before, each = self._part(update)
        return epochs + (update - before) / each

    def place(self, update: int) -> tuple[int, int]:
        """The number of the epoch that an update belongs to, and that of the update in it."""
        epochs, before, each = self._part(update)
        epoch, place = divmod(update - before, each)
        return epochs + epoch, place

    def updates(self, epochs: float) -> int:
        """How many updates so many epochs take."""
        if self.late is None or epochs <= self.late_from:
            return math.ceil(epochs * self.first)
        return self.late_from * self.first + math.ceil((epochs - self.late_from) * self.late)

    def is_multiple(self, update: int, epochs: float) -> bool:
        """Whether something that happens every so many epochs is due after so many updates."""
        _, before, each = self._part(update)
        return (update - before) % max(1, round(epochs * each)) == 0


NO_LINE = -1


class LineBatches:
    """Lines to train on, in batches of lines of about the same length, each read window by window.

    Which lines read side by side is the same in each epoch, and so is the number of windows, unless they get longer:
    `late` gives the epoch and the window then. The order of the batches is another in each epoch. Everything follows
    from the number of an update: there is nothing to remember.
    """

    def __init__(
        self, lengths: npt.NDArray[np.int64], rows: int, window: int, seed: int, late: tuple[int, int] | None = None
    ) -> None:
        order = np.random.default_rng(seed).permutation(len(lengths))  # lines of one length, in any order
        order = order[np.argsort(lengths[order], kind="stable")]
        missing = -len(order) % rows
        self.batches = np.concatenate([order, np.full(missing, NO_LINE)]).reshape(-1, rows)
        longest = [int(lengths[batch[batch != NO_LINE]].max()) for batch in self.batches]
        self.windows = [windows(points, window) for points in longest]
        self.late_windows = [windows(points, late[1]) for points in longest] if late else self.windows
        self.seed = seed
        first, later = (sum(map(len, cuts)) for cuts in (self.windows, self.late_windows))
        self.epochs = Epochs(first, late[0], later) if late else Epochs(first)
        self._epoch = -1  # whose order of batches this is, and the number of updates after each
        self._order: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._ends: npt.NDArray[np.int64] = self._order

    def at(self, update: int) -> tuple[npt.NDArray[np.int64], int, int]:
        """The lines of an update, of which some may be NO_LINE, and the first and one past the last of its steps."""
        epoch, place = self.epochs.place(update)
        windows = self.windows if self.epochs.late is None or epoch < self.epochs.late_from else self.late_windows
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, epoch]).permutation(len(self.batches))
            self._ends = np.cumsum([len(windows[batch]) for batch in self._order])
        turn = int(np.searchsorted(self._ends, place, side="right"))
        batch = self._order[turn]
        start, end = windows[batch][place - self._ends[turn]]  # counted from the end of the batch
        return self.batches[batch], start, end
