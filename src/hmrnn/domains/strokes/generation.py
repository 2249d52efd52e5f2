"""Handwriting from a model, point by point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hmrnn.domains.strokes.data.points import Points
from hmrnn.dropout import evaluating

if TYPE_CHECKING:
    from hmrnn.domains.strokes.model import StrokeModel, StrokeModelOutput

START = np.zeros((1, 3), dtype=np.float32)  # every line begins with the pen on the paper, nowhere in particular


@dataclass(frozen=True)
class GeneratedPoint:
    """A point that was read or made."""

    point: tuple[float, float, float]  # dx, dy, pen, in the data's own units
    z: tuple[bool, ...]  # for each detector, whether it saw a segment end here
    new: bool  # made, and not of what was given


def check_generation(max_new: int, bias: float) -> None:
    if max_new < 0:
        raise ValueError(f"max_new must not be negative; got {max_new}")
    if not 0 <= bias < float("inf"):
        raise ValueError(f"bias must not be negative, and finite; got {bias}")


@torch.no_grad()
def generate_points(
    model: StrokeModel, prime: Points | None, max_new: int, bias: float, seed: int | None
) -> Iterator[GeneratedPoint]:
    """The points of `prime`, and then new ones as they are made; without `prime`, a new line from its first point."""
    check_generation(max_new, bias)
    if prime is not None and len(prime) == 0:
        raise ValueError("there is no point to go on from")
    generator = torch.Generator()  # on the CPU: the same line on every device
    _ = generator.seed() if seed is None else generator.manual_seed(seed)
    state = None
    points = torch.from_numpy(START if prime is None else np.array(prime, dtype=np.float32))
    for i in range(max_new + 1):
        with evaluating(model):
            out, state = model(points.unsqueeze(1).to(model.mean.device), state, generator=generator)
        yield from told(points, out, new=i > 0)
        if i < max_new:
            last = out.density[-1, 0].to("cpu")
            if not last.log_pi.isfinite().any():
                raise ValueError("the model predicts nothing: its weights are not finite")
            drawn = last.biased(bias).sample(generator)
            points = model.in_units(drawn.to(model.mean)).to("cpu", torch.float32).unsqueeze(0)


def told(points: Tensor, out: StrokeModelOutput, new: bool) -> Iterator[GeneratedPoint]:
    fired = (out.rnn.z[:, 0] > 0.5).tolist()
    for (dx, dy, pen), z in zip(points.tolist(), fired, strict=True):
        yield GeneratedPoint((dx, dy, pen), tuple(z), new)
