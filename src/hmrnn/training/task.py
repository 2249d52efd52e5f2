"""What the training loop asks of a task, whatever is learnt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hmrnn.config import Measure
from hmrnn.sequence import HMLSTMState
from hmrnn.storage.pretrained import Pretrained
from hmrnn.training.batches import Epochs


@dataclass(frozen=True)
class Loss:
    """What one update learns from."""

    mean: Tensor  # of what all processes read, once it is averaged over them; in nats
    rates: Tensor  # (L-1,): how often each detector fired
    uncertainty: Callable[[], Tensor]  # (T, B, 1 or more): of what comes after each step, by ever more of the past
    steps: int  # symbols or points that all processes read


class Validation(NamedTuple):
    loss: float  # in the task's measure
    rates: tuple[float, ...]  # how often each detector fired


class Task(Protocol):
    @property
    def model(self) -> Pretrained: ...

    @property
    def measure(self) -> Measure: ...

    @property
    def epochs(self) -> Epochs: ...

    rows: int
    """Sequences that this process reads side by side."""

    rates: Sequence[float]
    """At which segments end, of each layer that the data tells of; none if it does not tell."""

    state: HMLSTMState | None
    """Carried from one window to the next."""

    def loss(self, update: int, generator: torch.Generator) -> Loss:
        """The loss of an update's window."""

    def read(self, model: Pretrained, window: int, state: HMLSTMState | None) -> HMLSTMState:
        """Has a model of this kind read one of the first windows of training, without a gradient."""

    def validate(self, model: Pretrained, show: bool) -> Validation:
        """How well a model of this kind predicts the validation part."""

    def forget(self) -> None:
        """Starts the next window without a past."""

    def description(self) -> str:
        """What there is to learn from, in a line."""
