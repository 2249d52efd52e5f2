"""The segments that a model found in a line of handwriting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hmrnn.domains.strokes.data.points import Points
from hmrnn.domains.strokes.reading import read_on
from hmrnn.structure.reading import Place
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
    inputs = torch.from_numpy(np.array(points, dtype=np.float32))
    steps = read_on(model, inputs, Place.start(model)).steps(hidden=vectors)
    return StrokeSegmentation(steps, by_layer([steps], None), points)
