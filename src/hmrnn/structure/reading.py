"""A model that reads on: from a place in a sequence over a stretch of it to the next place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmrnn.sequence import HMLSTMOutput, HMLSTMState
from hmrnn.storage.pretrained import Pretrained
from hmrnn.structure.operations import Steps, detector_values, norms


class PredictsNothing(ValueError):
    """A model whose numbers overflow: its weights are too large, whoever made them."""

    def __init__(self) -> None:
        super().__init__("the model predicts nothing: its weights are not finite, or too large")


@dataclass(frozen=True)
class Place:
    """How far a model has come."""

    at: int  # steps that were read
    state: HMLSTMState
    past: Tensor  # the last inputs, as far back as given boundaries need them
    expected: Any = None  # what comes next, as the domain tells it; None at the start

    @staticmethod
    def start(model: Pretrained) -> Place:
        return Place(0, model.rnn.initial_state(1), torch.zeros(0, dtype=torch.int64))

    def generator(self, device: torch.device) -> torch.Generator:
        """For sampled boundaries: the same place draws the same ones."""
        return torch.Generator(device).manual_seed(self.at)


@dataclass(frozen=True)
class Read:
    """A stretch that was read. What only some want to know of it is computed when it is asked for."""

    model: Pretrained
    inputs: Tensor  # (T, …)
    before: Place
    rnn: HMLSTMOutput  # of a batch of one row
    after: Place
    surprisal: Callable[[], Tensor]  # (T,): -log p, given those before it, NaN for the first of the sequence

    @property
    def z(self) -> Tensor:
        """(T, L-1) bool: where a segment of a layer ends."""
        return self.rnn.z[:, 0] > 0.5

    @property
    def operations(self) -> Tensor:
        """(T, L) int8: UPDATE, COPY, FLUSH."""
        return self.rnn.operations[:, 0]

    @torch.no_grad()
    def steps(self, hidden: bool = False) -> Steps:
        """All about every step. `hidden`: with the hidden states."""
        out, before = self.rnn, self.before
        return Steps(
            before.at,
            self.inputs,
            self.operations.cpu(),
            self.z.cpu(),
            detector_values(self.model, self.inputs, out, before.state)[:, 0].cpu(),
            torch.stack([norms(steps)[:, 0] for steps in out.steps], dim=-1).cpu(),
            self.surprisal(),
            tuple(h[:, 0].cpu() for h in out.h) if hidden else None,
        )
