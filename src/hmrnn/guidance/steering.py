"""Steering: the bias with which a detector would have fired at its target rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hmrnn.devices import widest
from hmrnn.hmlstm import HMLSTM
from hmrnn.recurrent import Call, Recurrent
from hmrnn.sequence import COPY, HMLSTMOutput

GROUP = 4  # segments of a layer in one of the layer above, as far as guidance goes
RAREST, MOST_OFTEN = 0.01, 0.99  # of the rates that detectors are guided to


class Seen(NamedTuple):
    """What a network made of a window, time first, and s_z of every detector, (T, B, L-1)."""

    out: HMLSTMOutput
    sums: Tensor

    @staticmethod
    def of(rnn: HMLSTM, call: Call, out: HMLSTMOutput) -> Seen:
        return Seen(out, rnn.detector_sums(call.x, call.state, out))


def obstacle(rnn: nn.Module) -> str:
    """Why a network's detectors can't be steered, in a line. Empty if they can."""
    if not isinstance(rnn, HMLSTM):
        return f"{type(rnn).__name__} is no HMLSTM: give the network itself, as in Guide(model.rnn, …)"
    if rnn.num_layers == 1:
        return "a network of one layer has no detector"
    if rnn.boundary != "step":
        return (
            f"boundary={rnn.boundary!r} can't be steered: such detectors do not fire exactly where s_z > 0; use 'step'"
        )
    if not all(w.b_z is None or w.b_z.requires_grad for w in rnn.weights()):
        return "its detectors do not learn: requires_grad of b_z is False"
    return ""


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


@contextmanager
def matching(rnn: Recurrent, rates: Sequence[float]) -> Iterator[None]:
    """Moves the biases of the detectors, with each call in the meantime, to those with which they fire at these rates.

    Each call tells what the biases should have been for it. After n calls they are about the mean of what they told.
    """
    calls = 0

    def look(call: Call, out: HMLSTMOutput) -> None:
        nonlocal calls
        calls += 1
        assert isinstance(rnn, HMLSTM)
        rnn.shift_detectors([-value / calls for value in excesses(rnn, Seen.of(rnn, call, out), rates)])

    with rnn.watched(look):
        yield
