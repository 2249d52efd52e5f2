"""The model of pen strokes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hmrnn.domains.strokes.config import StrokeModelConfig
from hmrnn.domains.strokes.data.points import Points
from hmrnn.domains.strokes.inline import StrokeSegmentation
from hmrnn.domains.strokes.mixture import MixtureHead, PointDensity
from hmrnn.domains.vectors.model import VectorModel, VectorModelOutput
from hmrnn.structure.operations import Steps
from hmrnn.structure.segments import Segment
from hmrnn.training.batches import Line

StrokeModelOutput: TypeAlias = VectorModelOutput[PointDensity]


class StrokeModel(VectorModel[PointDensity]):
    """Predicts the next point of a pen: dx, dy, and whether it is lifted. The density is a mixture of Gaussians.

    Mean and deviation of the pen are 0 and 1. An HRNN's boundaries are where the pen is lifted, and a line that is made
    from nothing begins with the pen on the paper, nowhere in particular.
    """

    kind = "strokes"
    config: StrokeModelConfig

    def __init__(self, config: StrokeModelConfig | None = None, *, engine: str = "auto") -> None:
        config = config or StrokeModelConfig()
        super().__init__(config, 3, 3, engine)
        self.head = MixtureHead(config.output_size, config.components, config.smallest_sigma)

    def segmentation(self, steps: Steps, layers: tuple[tuple[Segment, ...], ...], points: Line) -> StrokeSegmentation:
        return StrokeSegmentation(steps, layers, points)

    def normalise_as(self, lines: Sequence[Points]) -> None:
        """Takes mean and deviation of the offsets of these lines as its own. A line's first point has no offset."""
        offsets = np.concatenate([line[1:, :2] for line in lines]).astype(np.float64)
        deviation = offsets.std(0)
        if not (deviation > 0).all():
            raise ValueError("all points lie on a horizontal or a vertical line: there is nothing to predict")
        self.mean[:2] = torch.from_numpy(offsets.mean(0))
        self.deviation[:2] = torch.from_numpy(deviation)

    def boundaries(self, points: Tensor) -> Tensor | None:
        return points[..., 2:] if self.config.model == "hrnn" else None

    @classmethod
    def without_weights(cls, directory: Path, config: StrokeModelConfig, engine: str) -> StrokeModel:
        return cls(config, engine=engine)
