"""Guidance: leads detectors while the weights are still on the move, and lets go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmrnn.config import TrainingConfig
from hmrnn.devices import widest
from hmrnn.hmlstm import HMLSTM
from hmrnn.recurrent import Recurrent
from hmrnn.sequence import COPY, HMLSTMOutput, HMLSTMState

FORCE = 0.4  # the share of the way to its target that a detector's bias is moved after an update
SHARPNESS = 16.0  # of s_z as a log-odds: its weights lie in a small ball, and still it should be sure
GROUP = 4  # segments of a layer in one of the layer above, as far as guidance goes
RAREST = 0.01  # of the rates that detectors are guided to
HELD_BACK = 0.01  # what is left of a slope that is held back: without any, z~ would be 1/2 whatever s_z is
HELD_BACK_BY = 1000  # updates, in which it falls to that in a line


class Seen(NamedTuple):
    """What the network made of the window at hand, and s_z of every detector, (T, B, L-1)."""

    out: HMLSTMOutput
    sums: Tensor


class Guidance:
    """Three things, which last as long as the learning rate, or for `guided_updates`.

    Steering: the bias of each detector is moved towards the one with which it would have fired at its target rate.
    That bias is known exactly: a detector fires where s_z > 0, so it is the quantile of s_z that is to become 0. (The
    rate itself does not tell: a detector that fires always may be just above 0 at its lowest, or far.) It does not go
    through the optimiser, so its strength falls with the learning rate; or in the second half of `guided_updates`.

    Imitation, with `uncertainty_weight`: a loss by which detectors learn to fire where segments end, by what a teacher
    counted in the text, or where it is least certain what comes next. It shapes the detectors alone: hidden states are
    constants to it.

    Holding back, along with imitation: of the straight-through gradient, more and more in the first updates. It is done
    by a smaller slope, so what is left is felt at every s_z, and not only where |s_z| < 1.
    """

    def __init__(self, config: TrainingConfig, rnn: Recurrent, rates: Sequence[float] = ()) -> None:
        """`rates` were read off the data, of as many layers as it told of; without any, `config.target_rate` counts."""
        self.config, self.rnn = config, rnn
        if not rates and config.target_rate != "auto":
            rates = [config.target_rate]
        self.targets = targets(rates, rnn.num_layers - 1) if rates and decides(rnn) else []
        self.seen: Seen | None = None
        self.excess: list[float | Tensor] = [0.0] * len(self.targets)  # of each detector's bias, in the latest window

    def strength(self, update: int, learning_rate: float) -> float:
        """Of steering in an update, 0 to 1. At 0 there is no guidance."""
        if not self.targets:
            return 0.0
        last = self.config.guided_updates
        if last is None:
            return learning_rate / self.config.learning_rate
        return min(1.0, 2 * (1 - update / last)) if update < last else 0.0

    @contextmanager
    def watching(self, update: int, strength: float) -> Iterator[None]:
        """Looks at what the network computes in the meantime, if detectors are guided at all, and sets its slope."""
        if strength == 0:
            yield
            return
        handle, slope = self.rnn.register_forward_hook(self._look), self.rnn.slope
        if self.config.uncertainty_weight > 0:
            self.rnn.slope *= max(HELD_BACK, 1 - update / HELD_BACK_BY)
        try:
            yield
        finally:
            handle.remove()
            self.rnn.slope = slope

    def _look(self, rnn: nn.Module, inputs: tuple[Any, ...], outputs: tuple[HMLSTMOutput, HMLSTMState]) -> None:
        assert isinstance(rnn, HMLSTM)
        self.seen = seen_in_call(rnn, inputs, outputs)
        self.excess = [*excesses(rnn, self.seen, self.targets)]

    def loss(self, uncertainty: Callable[[], Tensor]) -> Tensor | float:
        """What detectors have to learn from how uncertain it was after each step what comes, (T, B, 1 or more)."""
        weight = self.config.uncertainty_weight
        seen, self.seen = self.seen, None
        if weight == 0 or seen is None or not isinstance(self.rnn, HMLSTM):
            return 0.0
        return weight * imitation(self.rnn, seen, uncertainty(), self.targets)

    def steer(self, excess: Sequence[float], strength: float) -> None:
        """After an update, with the excess as all processes saw it."""
        if strength > 0:
            self.rnn.shift_detectors([-FORCE * strength * value for value in excess])


def seen_in_call(rnn: HMLSTM, inputs: tuple[Any, ...], outputs: tuple[HMLSTMOutput, HMLSTMState]) -> Seen:
    """From what a forward hook is given."""
    x, before = (*inputs, None)[:2]
    return Seen(outputs[0], rnn.detector_sums(x, before, outputs[0]))


@contextmanager
def matching(rnn: Recurrent, rates: Sequence[float]) -> Iterator[None]:
    """Moves the biases of the detectors, with each call in the meantime, to those with which they fire at these rates.

    Each call tells what the biases should have been for it. After n calls they are about the mean of what they told.
    """
    calls = 0

    def look(rnn: nn.Module, inputs: tuple[Any, ...], outputs: tuple[HMLSTMOutput, HMLSTMState]) -> None:
        nonlocal calls
        calls += 1
        assert isinstance(rnn, HMLSTM)
        excess = excesses(rnn, seen_in_call(rnn, inputs, outputs), rates)
        rnn.shift_detectors([-value / calls for value in excess])

    handle = rnn.register_forward_hook(look)
    try:
        yield
    finally:
        handle.remove()


def decides(rnn: Recurrent) -> bool:
    """Whether it has detectors that learn, and fire where s_z > 0. One that samples does so elsewhere, too."""
    learns = isinstance(rnn, HMLSTM) and all(w.b_z is None or w.b_z.requires_grad for w in rnn.weights())
    return learns and rnn.boundary == "step"


def targets(rates: Sequence[float], detectors: int) -> list[float]:
    """How often each detector is to fire: at these rates, and each above their last a quarter as often as the one
    below, but not so rarely that it learns nothing."""
    wanted = list(rates[:detectors])
    while len(wanted) < detectors:
        wanted.append(wanted[-1] / GROUP)
    return [min(rates[0], max(rate, RAREST)) for rate in wanted]


def asked(rnn: HMLSTM, out: HMLSTMOutput, l: int) -> Tensor:
    """(T, B) bool: where detector l decides. Where a layer copies, a boundary is held at 0 whatever it says."""
    return out.operations[..., l if rnn.copy_boundary == "hold" else 0] != COPY


def level(rate: float, out: HMLSTMOutput, count: Tensor) -> Tensor:
    """The quantile, of `count` values, that must be passed for a detector to fire at this rate of all steps."""
    steps = (out.operations[..., 0] != COPY).sum().to(count)  # the lowest layer copies at padded steps only
    return (1 - rate * steps / count).clamp_min(0)


def passed_by(rate: float, values: Tensor, where: Tensor, out: HMLSTMOutput) -> Tensor:
    """(): what a detector must pass to fire at this rate of all steps, of its `values` at some; 0 if there are none.

    `values[where].quantile(…)`, to the bit, but no GPU is asked how many they are: those elsewhere go to the end.
    """
    ranked = values.where(where, float("inf")).flatten().sort().values
    count = where.sum().to(ranked)
    rank = level(rate, out, count) * (count - 1)
    low, high = (ranked.take(place.long().clamp_min(0)) for place in (rank.floor(), rank.ceil()))
    return torch.lerp(low, high, rank - rank.floor()).where(count > 0, 0)


def excesses(rnn: HMLSTM, seen: Seen, rates: Sequence[float]) -> list[Tensor]:
    """By how much the bias of each detector is too high for its rate, of all steps of this window."""
    sums = seen.sums.detach().to(widest(seen.sums.device))
    return [passed_by(rate, sums[..., l], asked(rnn, seen.out, l), seen.out) for l, rate in enumerate(rates)]


def imitation(rnn: HMLSTM, seen: Seen, uncertainty: Tensor, rates: Sequence[float]) -> Tensor:
    """How far detectors are from firing where it is least certain what comes next, of the steps at which they decide.

    The first goes by the first kind of uncertainty, the next by the next, and those above the last kind by that.
    """
    total = seen.sums.new_zeros(())
    for l, rate in enumerate(rates):
        where = asked(rnn, seen.out, l)
        felt = uncertainty[..., min(l, uncertainty.shape[-1] - 1)].to(widest(uncertainty.device))
        wanted = felt >= passed_by(rate, felt, where, seen.out)
        log_odds = SHARPNESS * seen.sums[..., l]
        total = total + cross_entropy(log_odds, wanted.to(log_odds.dtype), where)
    return total


def cross_entropy(log_odds: Tensor, wanted: Tensor, where: Tensor) -> Tensor:
    """(): the mean over some places; 0 if there are none."""
    if log_odds.device.type == "cpu":  # to pick places is to ask how many they are: on a CPU that costs nothing
        some = bool(where.any())
        return F.binary_cross_entropy_with_logits(log_odds[where], wanted[where]) if some else log_odds.new_zeros(())
    return cross_entropy_of_all(log_odds, wanted, where)


def cross_entropy_of_all(log_odds: Tensor, wanted: Tensor, where: Tensor) -> Tensor:
    """The same, without picking: nobody is asked how many places they are."""
    each = F.binary_cross_entropy_with_logits(log_odds, wanted, reduction="none")
    return each.where(where, 0).sum() / where.sum().clamp_min(1)
