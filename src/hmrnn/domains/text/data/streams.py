"""A long text read as contiguous streams side by side, one for each batch row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmrnn.domains.text.data.symbols import Numbers


class Streams:
    """`rows` streams of `steps` steps: stream i starts where stream i-1 ends.

    At each step of a stream a symbol is read and the one after it is to be predicted.
    """

    def __init__(self, numbers: Numbers, rows: range, steps: int, offset: int = 0) -> None:
        """The first stream starts at `offset`."""
        self.numbers = numbers
        self.rows = rows
        self.steps = steps
        self.starts = np.array(rows, dtype=np.int64) * steps + offset

    @staticmethod
    def to_train(numbers: Numbers, batch_size: int, rank: int, world: int, offset: int = 0) -> Streams:
        """All streams have the same length. Each of `world` processes reads `batch_size` of them."""
        steps = (len(numbers) - 1) // (batch_size * world)
        return Streams(numbers, range(rank * batch_size, (rank + 1) * batch_size), steps, offset)

    @staticmethod
    def to_evaluate(numbers: Numbers, rows: int) -> Streams:
        """Every symbol but the first is predicted once. The last streams may be shorter."""
        return Streams(numbers, range(rows), -(-(len(numbers) - 1) // rows))

    def read(self, start: int, end: int) -> Tensor:
        """(end - start, rows) int64: the symbols of these steps. After the end of the text comes its start."""
        return torch.from_numpy(self.symbols(start, end))

    def symbols(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """The same as an array."""
        places = self.starts + np.arange(start, end)[:, None]
        return np.asarray(self.numbers[places % len(self.numbers)], dtype=np.int64)

    def lengths(self, start: int, end: int) -> Tensor:
        """(rows,): how many of these steps have a symbol to predict."""
        left = np.clip(len(self.numbers) - 1 - self.starts, 0, self.steps) - start
        return torch.from_numpy(np.clip(left, 0, end - start))
