"""Sequences of different lengths, read side by side and window by window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmrnn.data.strokes import Points


@dataclass(frozen=True)
class Window:
    """A stretch of some lines: the points, and those to predict from them."""

    points: Tensor  # (T + 1, B, 3): padded with zeros
    lengths: Tensor  # (B,): how many points of each line are followed by one to predict

    @property
    def count(self) -> int:
        """Points to predict."""
        return int(self.lengths.sum())

    @property
    def counted(self) -> Tensor:
        """(T, B): which steps predict a point."""
        return torch.arange(len(self.points) - 1).unsqueeze(1) < self.lengths


def cut(lines: Sequence[Points], start: int, end: int) -> Window:
    """Steps `start` to `end` of lines, and the points to predict from them."""
    parts = [line[start : end + 1] for line in lines]
    points = np.zeros((end - start + 1, len(lines), 3), dtype=np.float32)
    for row, part in enumerate(parts):
        points[: len(part), row] = part
    return Window(torch.from_numpy(points), torch.tensor([max(0, len(part) - 1) for part in parts]))


def windows(longest: int, most: int) -> list[tuple[int, int]]:
    """Steps `start` to `end` of each window over lines of up to `longest` points: alike in size, `most` at most."""
    steps = max(1, longest - 1)
    size = math.ceil(steps / math.ceil(steps / most))
    return [(start, min(start + size, steps)) for start in range(0, steps, size)]


NO_LINE = -1


class LineBatches:
    """Lines to train on, in batches of lines of about the same length, each read window by window.

    Which lines read side by side, and so the number of windows, is the same in each epoch; the order of the batches is
    not. Everything follows from the number of an update: there is nothing to remember.
    """

    def __init__(self, lengths: npt.NDArray[np.int64], rows: int, window: int, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(lengths))  # lines of one length, in any order
        order = order[np.argsort(lengths[order], kind="stable")]
        missing = -len(order) % rows
        self.batches = np.concatenate([order, np.full(missing, NO_LINE)]).reshape(-1, rows)
        self.windows = [windows(int(lengths[batch[batch != NO_LINE]].max()), window) for batch in self.batches]
        self.seed = seed
        self.updates_per_epoch = sum(map(len, self.windows))
        self._epoch = -1  # whose order of batches this is, and the number of updates after each
        self._order: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._ends: npt.NDArray[np.int64] = self._order

    def at(self, update: int) -> tuple[npt.NDArray[np.int64], int, int]:
        """The lines of an update, of which some may be NO_LINE, and the first and one past the last of its steps."""
        epoch, place = divmod(update, self.updates_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, epoch]).permutation(len(self.batches))
            self._ends = np.cumsum([len(self.windows[batch]) for batch in self._order])
        turn = int(np.searchsorted(self._ends, place, side="right"))
        batch = self._order[turn]
        start, end = self.windows[batch][place - self._ends[turn]]  # counted from the end of the batch
        return self.batches[batch], start, end
