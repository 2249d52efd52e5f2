"""The segments that a model found in a line of handwriting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hmrnn.domains.strokes.data.points import Points
from hmrnn.dropout import evaluating
from hmrnn.structure.operations import Steps, steps_of
from hmrnn.structure.segments import Found, by_layer

if TYPE_CHECKING:
    from hmrnn.domains.strokes.model import StrokeModel


@dataclass(frozen=True)
class StrokeSegmentation(Found):
    """A line of handwriting, and all that a model made of it."""

    points: Points


def segment_points(model: StrokeModel, points: Points, *, vectors: bool = False) -> StrokeSegmentation:
    """All about a line of handwriting."""
    if len(points) == 0:
        raise ValueError("the line has no points: there is nothing to segment")
    steps = follow_points(model, points, hidden=vectors)
    return StrokeSegmentation(steps, by_layer([steps], None), points)


@torch.no_grad()
def follow_points(model: StrokeModel, points: Points, hidden: bool = False) -> Steps:
    """Reads a line of handwriting."""
    read = torch.from_numpy(np.array(points, dtype=np.float32))
    device = model.mean.device
    x = read.unsqueeze(1).to(device)
    with evaluating(model):
        out, _ = model(x, generator=torch.Generator(device).manual_seed(0))
    log_p = out.density[:-1].log_prob(model.normalised(x[1:]))[:, 0].double().cpu()
    surprisal = torch.cat([torch.full((1,), math.nan, dtype=torch.float64), -log_p])
    return steps_of(model, 0, read, out.rnn, model.rnn.initial_state(1), surprisal, hidden)
