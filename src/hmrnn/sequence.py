"""What a recurrent network takes along and gives back: its state, its output, and values that rarely change.

T  time steps      B  batch rows      L  layers      H_l  units of layer l
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Operation(IntEnum):
    """What a layer did at a time step."""

    UPDATE = 0
    COPY = 1
    FLUSH = 2


UPDATE, COPY, FLUSH = Operation.UPDATE, Operation.COPY, Operation.FLUSH


@dataclass(frozen=True)
class Piecewise:
    """A sequence of vectors in which one vector may stand at many time steps: each distinct one is kept once."""

    values: Tensor  # (N, H)
    index: Tensor  # (T, B) or any other shape; int64 below N: which value stands there

    @staticmethod
    def from_dense(dense: Tensor) -> Piecewise:
        """Every step of (..., H) is a value of its own."""
        values = dense.reshape(-1, dense.shape[-1])
        return Piecewise(values, torch.arange(len(values), device=dense.device).view(dense.shape[:-1]))

    def dense(self) -> Tensor:
        """(..., H): the sequence written out."""
        # embedding() is indexing whose backward adds up in parallel
        return F.embedding(self.index, self.values)

    def map(self, f: Callable[[Tensor], Tensor]) -> Piecewise:
        """f: (N, H) -> (N, K), applied once to each distinct value."""
        return Piecewise(f(self.values), self.index)


@dataclass(frozen=True)
class HMLSTMState:
    """The state after a time step. A clockwork RNN has no c, and keeps its clock in z; a plain LSTM has no z."""

    h: tuple[Tensor, ...]  # L times (B, H_l)
    c: tuple[Tensor, ...]  # L times (B, H_l)
    z: Tensor  # (B, L-1)

    def detach(self) -> HMLSTMState:
        """Cuts the graph, as at the end of a window of truncated backpropagation."""
        return self._map(lambda tensor: tensor.detach())

    def to(self, *args: Any, **kwargs: Any) -> HMLSTMState:
        """As `Tensor.to`: a device, a dtype, or both."""
        return self._map(lambda tensor: tensor.to(*args, **kwargs))

    def select(self, rows: Tensor | slice | list[int]) -> HMLSTMState:
        """The state of some batch rows, by index, mask or slice."""
        return self._map(lambda tensor: tensor[rows])

    def _map(self, f: Callable[[Tensor], Tensor]) -> HMLSTMState:
        return HMLSTMState(tuple(map(f, self.h)), tuple(map(f, self.c)), f(self.z))


@dataclass(frozen=True)
class HMLSTMOutput:
    """What every layer did at every step. (T, B) stands for (B, T) with `batch_first`, and for (B,) out of `step()`."""

    steps: tuple[Piecewise, ...]  # L times (T, B, H_l): hidden states, each distinct one once
    z: Tensor  # (T, B, L-1): boundaries, 0 or 1 (or between, if soft); 0 at padded steps
    operations: Tensor  # (T, B, L) int8: UPDATE, COPY or FLUSH; a soft boundary counts from 0.5

    @cached_property
    def h(self) -> tuple[Tensor, ...]:  # L times (T, B, H_l)
        """The hidden states, written out."""
        return tuple(steps.dense() for steps in self.steps)
