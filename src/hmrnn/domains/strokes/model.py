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
    """A model that predicts the next point of a pen: dx, dy, and whether the pen is lifted.

    The density is a mixture of bivariate Gaussians and a Bernoulli variable. The pen is not normalised. The boundaries
    of an HRNN are the lifts of the pen.

    Args:
        config: Sizes and kind of the network. By default those of the paper's model for IAM-OnDB.
        engine: Engine of the recurrent network, see `HMLSTM`.
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
        """Normalises by the mean and deviation of the offsets of these lines, as in training."""
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
