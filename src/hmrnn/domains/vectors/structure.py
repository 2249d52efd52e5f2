"""The segments that a model found in a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hmrnn.domains.vectors.reading import read_on
from hmrnn.structure.operations import Steps
from hmrnn.structure.reading import Place, Read
from hmrnn.structure.segments import Found, by_layer
from hmrnn.training.batches import Line

if TYPE_CHECKING:
    from hmrnn.domains.vectors.model import VectorModel

PIECE = 8192  # steps that are read in one call: a long line needs no more memory for what lies between


@dataclass(frozen=True, repr=False)
class LineSegmentation(Found):
    """A line, and all that a model made of it."""

    points: Line


def segment_points(model: VectorModel[Any], points: Line, *, vectors: bool = False) -> LineSegmentation:
    """All about a line."""
    parts = [read.steps(hidden=vectors) for read in follow(model, points)]
    return model.segmentation(Steps.joined(parts), by_layer(parts, None), points)


def follow(model: VectorModel[Any], points: Line) -> Iterator[Read]:
    """Reads a line piece by piece."""
    if len(points) == 0:
        raise ValueError("the line has no points: there is nothing to segment")
    place = Place.start(model)
    for piece in torch.from_numpy(np.array(points, dtype=np.float32)).split(PIECE):
        read = read_on(model, piece, place)
        yield read
        place = read.after
