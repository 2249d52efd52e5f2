"""Steering: keeps detectors from firing always or never while the layers above them know nothing yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hmrnn.config import TrainingConfig
from hmrnn.hmlstm import HMLSTM
from hmrnn.recurrent import Recurrent
from hmrnn.sequence import COPY, HMLSTMOutput, HMLSTMState

FORCE = 0.4  # the share of the way to its target that a detector's bias is moved after an update


class Steering:
    """Moves the bias of each detector towards the one with which it would have fired at its target rate.

    That bias is known exactly: a detector fires where s_z > 0, so it is the quantile of s_z that is to become 0. (The
    rate itself does not tell: a detector that fires always may be just above 0 at its lowest, or far.)
    The force is full for half of `steered_updates`, then fades to nothing.
    """

    def __init__(self, config: TrainingConfig, rnn: Recurrent) -> None:
        self.config, self.rnn = config, rnn
        detects = isinstance(rnn, HMLSTM) and all(w.b_z is None or w.b_z.requires_grad for w in rnn.weights())
        self.targets = [] if config.target_rate is None or not detects else targets(config.target_rate, rnn)
        self.excess = [0.0] * len(self.targets)  # of each detector's bias, in the latest window

    def force(self, update: int) -> float:
        if not self.targets or update >= self.config.steered_updates:
            return 0.0
        return FORCE * min(1.0, 2 * (1 - update / self.config.steered_updates))

    @contextmanager
    def watching(self, update: int) -> Iterator[None]:
        """Looks at what the network computes in the meantime, if detectors are steered in this update."""
        if self.force(update) == 0:
            yield
            return
        handle = self.rnn.register_forward_hook(self._look)
        try:
            yield
        finally:
            handle.remove()

    @torch.no_grad()
    def _look(self, rnn: nn.Module, inputs: tuple[Any, ...], outputs: tuple[HMLSTMOutput, HMLSTMState]) -> None:
        assert isinstance(rnn, HMLSTM)
        x, before = (*inputs, None)[:2]
        self.excess = excesses(rnn, x, before, outputs[0], self.targets)

    def steer(self, excess: Sequence[float], update: int) -> None:
        """After an update, with the excess as all processes saw it."""
        force = self.force(update)
        if force > 0:
            self.rnn.shift_detectors([-force * value for value in excess])


def targets(rate: float, rnn: Recurrent) -> list[float]:
    """How often each detector is to fire: each as rarely, among the boundaries below it, as the one below."""
    return [rate ** (l + 1) for l in range(rnn.num_layers - 1)]


def excesses(
    rnn: HMLSTM, x: torch.Tensor, before: HMLSTMState | None, out: HMLSTMOutput, rates: Sequence[float]
) -> list[float]:
    """By how much the bias of each detector is too high for its rate, of all steps of this window."""
    sums = rnn.detector_sums(x, before, out)
    counted = int((out.operations[..., 0] != COPY).sum())  # the lowest layer copies at padded steps only
    found = []
    for l, rate in enumerate(rates):
        # Where a layer copies, its boundary is held at 0 whatever the detector says.
        asked = out.operations[..., l if rnn.copy_boundary == "hold" else 0] != COPY
        values = sums[..., l][asked].double()
        share = rate * counted / max(1, len(values))  # of the steps at which it is asked
        found.append(float(values.quantile(max(0.0, 1 - share))) if len(values) else 0.0)
    return found
