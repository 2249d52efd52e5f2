"""The boundary detector: from its pre-activation s_z to a boundary z, and the slope that is annealed.

    z~ = hardsigm(s_z) = max(0, min(1, (a*s_z + 1) / 2))         a: the slope
    z  = bound(z~)        step: z~ > 0.5     sample: Bernoulli(z~)     soft: z~ itself

The gradient of `bound` is that of `hardsigm` (straight-through): a/2 where |a*s_z| < 1, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hmrnn.config import BOUNDARIES


def hard_sigmoid(s: Tensor, slope: float | Tensor) -> Tensor:
    """max(0, min(1, (slope*s + 1) / 2)), whose derivative at the two corners is 0.

    1 of NaN: the layer above then reads a state that is NaN. A COPY would leave it finite and wrong.
    """
    # Not clamp(): its derivative at the corners is 1, and s = b_z = ±1 exactly is what a detector that has
    # seen nothing but zeros gets.
    a_s = slope * s
    return torch.where(a_s.abs() < 1, (a_s + 1) / 2, (~(a_s <= 0)).to(s.dtype))


def bound(z_tilde: Tensor, boundary: str, uniform: Tensor | None = None) -> Tensor:
    """The boundary z of a detector value z~ in [0, 1]. `uniform` decides the samples, and only `sample` uses it."""
    if boundary == "soft":
        return z_tilde
    # The bracket is exactly zero, so z is exactly 0 or 1; its derivative is the straight-through gradient.
    return fires(z_tilde, boundary, uniform).to(z_tilde.dtype) + (z_tilde - z_tilde.detach())


def fires(z_tilde: Tensor, boundary: str, uniform: Tensor | None = None) -> Tensor:
    """Whether a detector fires, for the kinds of boundaries that are 0 or 1."""
    if boundary == "step":
        return z_tilde > 0.5
    if boundary == "sample":
        if uniform is None:
            raise ValueError("boundary='sample' needs uniform random numbers, one for each detector value")
        return uniform < z_tilde
    raise ValueError(f"boundary must be one of {', '.join(BOUNDARIES)}; got {boundary!r}")


@dataclass(frozen=True)
class SlopeSchedule:
    """Slope annealing: a = min(limit, 1 + per_epoch * epoch), with the epoch counted from 0."""

    per_epoch: float
    """How much the slope grows in an epoch."""
    limit: float
    """Where it stops."""

    def __call__(self, epoch: float) -> float:
        return min(self.limit, 1.0 + self.per_epoch * epoch)


PTB_SLOPE = SlopeSchedule(per_epoch=0.04, limit=5.0)
HANDWRITING_SLOPE = SlopeSchedule(per_epoch=0.004, limit=3.0)
