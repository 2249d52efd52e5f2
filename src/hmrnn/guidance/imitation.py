"""Imitation: the auxiliary loss by which detectors learn where to fire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from hmrnn.checks import check_values, check_whole
from hmrnn.devices import widest
from hmrnn.guidance.steering import Seen, asked, passed_by
from hmrnn.hmlstm import HMLSTM
from hmrnn.sequence import COPY

SHARPNESS = 16.0  # of s_z as a log-odds: its weights lie in a small ball, and still it should be sure
FURTHEST = 64.0  # of the biases that are looked for, in log-odds
HALVINGS = 20  # of the interval between them: to 1e-4
TIE = 1e-4  # of what the model knows decides between contexts that are alike to the counts


class Teacher(Protocol):
    """What tells detectors where segments end, as `Branching` does."""

    @property
    def rates(self) -> Sequence[float]:
        """At which segments end, of each layer that it tells of."""

    @property
    def delay(self) -> int:
        """Steps after a segment's last one at which a detector is to fire."""

    @property
    def past(self) -> int:
        """Symbols before a window that `evidence` needs to see."""

    def evidence(self, symbols: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """(past + T, B) symbols to (T, B): how much speaks for firing at each step."""


def uncertainties(teacher: Teacher, nearby: npt.NDArray[Any], uncertainty: Tensor) -> Tensor:
    """(T, B, 2): what the first detector learns from, and those above.

    nearby        (past + T, B) symbols
    uncertainty   (T, B): of what comes after each step, by all that the model knows
    """
    local = torch.from_numpy(teacher.evidence(nearby)).to(uncertainty)
    known = torch.cat([uncertainty[: teacher.delay], uncertainty[: len(uncertainty) - teacher.delay]])
    return torch.stack([local + TIE * uncertainty, known], dim=-1)


def inclinations(teacher: Teacher, nearby: npt.NDArray[Any], seen: Seen) -> Tensor:
    """(T, B, L-1): the same without a model's uncertainty. Of steps that are alike to the teacher, each detector is to
    fire where it is most inclined to."""
    local = torch.from_numpy(teacher.evidence(nearby)).to(seen.sums)
    return local.unsqueeze(-1) + TIE * seen.sums.detach().sigmoid()


def extended(teacher: Teacher, symbols: Tensor, seen: Seen) -> npt.NDArray[Any]:
    """(T, B) to (past + T, B): a window whose past nobody knows has its first symbol again.

    A teacher with an `alphabet` must know all symbols but those that stand at padded steps.
    """
    check_whole("symbols", symbols)
    symbols = symbols.detach().cpu()
    alphabet = getattr(teacher, "alphabet", None)
    if alphabet is not None:
        read = seen.out.operations[..., 0].cpu() != COPY  # the lowest layer copies at padded steps only
        must = f"symbols must lie between 0 and {alphabet - 1}, in the teacher's alphabet of {alphabet}"
        check_values(must, symbols, read & ((symbols < 0) | (symbols >= alphabet)))
    numbers: npt.NDArray[Any] = symbols.numpy().astype(np.int64)
    return np.pad(numbers, ((teacher.past, 0), (0, 0)), mode="edge")


def imitation(rnn: HMLSTM, seen: Seen, uncertainty: Tensor, rates: Sequence[float], with_rate: bool = False) -> Tensor:
    """How far detectors are from firing where it is least certain what comes next, of the steps at which they decide.

    The first goes by the first kind of uncertainty, the next by the next, and those above the last kind by that. The
    rate is left to steering, unless it is asked for `with_rate`.
    """
    total = seen.sums.new_zeros(())
    for l, rate in enumerate(rates):
        where = asked(rnn, seen.out, l)
        felt = uncertainty[..., min(l, uncertainty.shape[-1] - 1)].to(widest(uncertainty.device))
        wanted = felt >= passed_by(rate, felt, where, seen.out)
        log_odds = SHARPNESS * seen.sums[..., l]
        wanted = wanted.to(log_odds.dtype)
        if not with_rate:
            log_odds = log_odds + best_bias(log_odds, wanted, where)
        total = total + cross_entropy(log_odds, wanted, where)
    return total


@torch.no_grad()
def best_bias(log_odds: Tensor, wanted: Tensor, where: Tensor) -> Tensor:
    """(): the bias with which the log-odds at some places have the least cross-entropy, by halving an interval.

    How often a detector fires is for steering to decide. A loss that could gain by another bias would work against it:
    steering holds b_z, but a direction that all inputs share is a bias as well, and W_z grows along it until the norm
    ball holds little else.
    """
    low, high = log_odds.new_full((), -FURTHEST), log_odds.new_full((), FURTHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_high = ((log_odds + middle).sigmoid() - wanted).where(where, 0).sum() > 0
        low, high = torch.where(too_high, low, middle), torch.where(too_high, middle, high)
    return (low + high) / 2


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
