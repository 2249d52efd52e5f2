"""What engines are told besides the call, and what they give back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hmrnn.sequence import HMLSTMState, Piecewise


@dataclass(frozen=True)
class Rules:
    """How boundaries are made, and products."""

    boundary: str  # step, sample or soft
    hold: bool  # no boundary can arise in a COPY step
    uniforms: Tensor | None  # (T, B, L-1) random numbers, for `sample`: drawn once, so that every engine samples alike
    bfloat16: bool = False  # round the operands of matrix products, where the weights are float32
    masks: tuple[Tensor, ...] = ()  # L-1 times (B, H_l), or none: dropout of what W of the layer above multiplies


@dataclass(frozen=True)
class Trace:
    """A call carried out."""

    steps: tuple[Piecewise, ...]  # L times (T, B, H_l)
    z: Tensor  # (T, B, L-1), 0 at padded steps
    state: HMLSTMState
