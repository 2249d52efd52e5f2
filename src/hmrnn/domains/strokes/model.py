"""The model of pen strokes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from hmrnn.domains.network import recurrent
from hmrnn.domains.strokes.config import StrokeModelConfig
from hmrnn.domains.strokes.data.points import Points
from hmrnn.domains.strokes.evaluation import log_likelihoods
from hmrnn.domains.strokes.generation import generate_points
from hmrnn.domains.strokes.structure import StrokeSegmentation, segment_points
from hmrnn.dropout import drop
from hmrnn.mixture import MixtureHead, PointDensity
from hmrnn.output import OutputEmbedding
from hmrnn.recurrent import Recurrent
from hmrnn.sequence import HMLSTMOutput, HMLSTMState
from hmrnn.storage.pretrained import Pretrained

POINT_GAIN = 0.5  # of layer normalisation in a model of strokes, at the start of training


def point_embedding(size: int) -> nn.Linear:
    """(..., 3) -> (..., size), with a start as that of a symbol's embedding.

    Smaller weights would make points almost nothing, and layer normalisation would magnify it: gradients of 1e9 were
    measured. There is no bias: a constant part of the input is, to a detector, a bias that learns much too fast.
    """
    embedding = nn.Linear(3, size, bias=False)
    nn.init.normal_(embedding.weight)
    return embedding


@torch.no_grad()
def start_gains(rnn: Recurrent, gain: float) -> None:
    """Sets the gains of layer normalisation.

    With smaller ones hidden states are smaller, and so is what a boundary changes: the straight-through gradient that
    goes round through the detectors does not grow (docs/log.md).
    """
    for name, parameter in rnn.named_parameters():
        if "gain" in name:
            parameter.fill_(gain)


@dataclass(frozen=True)
class StrokeModelOutput:
    density: PointDensity  # (T, B): of the point after each step, in normalised coordinates
    rnn: HMLSTMOutput


class StrokeModel(Pretrained):
    """Predicts the next point of a pen: a linear embedding of the normalised point, a recurrent network, the gated
    output module, and a mixture of Gaussians.

    Takes and gives points in the data's own units: mean and deviation of the offsets it was trained on belong to it.
    """

    kind = "strokes"
    config: StrokeModelConfig
    mean: Tensor  # (3,): of dx and dy; 0 for the pen
    deviation: Tensor  # (3,): the same; 1 for the pen

    def __init__(self, config: StrokeModelConfig | None = None, *, engine: str = "auto") -> None:
        super().__init__()
        self.config = config or StrokeModelConfig()
        self.embedding = point_embedding(self.config.embedding_size)
        self.rnn = recurrent(self.config, engine)
        start_gains(self.rnn, POINT_GAIN)
        self.output = OutputEmbedding(self.config.hidden_sizes, self.config.output_size)
        self.head = MixtureHead(self.config.output_size, self.config.components, self.config.smallest_sigma)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("deviation", torch.ones(3))

    def normalise_as(self, lines: Sequence[Points]) -> None:
        """Takes mean and deviation of the offsets of these lines as its own. A line's first point has no offset."""
        offsets = np.concatenate([line[1:, :2] for line in lines]).astype(np.float64)
        deviation = offsets.std(0)
        if not (deviation > 0).all():
            raise ValueError("all points lie on a horizontal or a vertical line: there is nothing to predict")
        self.mean[:2] = torch.from_numpy(offsets.mean(0))
        self.deviation[:2] = torch.from_numpy(deviation)

    def embed(self, points: Tensor) -> Tensor:
        """(..., 3) -> (..., embedding_size): what the recurrent network gets."""
        return cast(Tensor, self.embedding(self.normalised(points)))

    def normalised(self, points: Tensor) -> Tensor:
        """(..., 3) -> (..., 3): the coordinates in which densities are given."""
        return (points.to(self.mean.dtype) - self.mean) / self.deviation

    def in_units(self, normalised: Tensor) -> Tensor:
        """(..., 3) -> (..., 3): back to the data's own units."""
        return normalised * self.deviation + self.mean

    def forward(
        self,
        points: Tensor,
        state: HMLSTMState | None = None,
        lengths: Tensor | None = None,
        slope: float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[StrokeModelOutput, HMLSTMState]:
        """points: (T, B, 3): dx, dy, pen. The rest as in `HMLSTM`. An HRNN's boundaries are where the pen is lifted."""
        boundaries = points[..., 2:] if self.config.model == "hrnn" else None
        x = self.embed(points)
        if self.training:
            x = drop(x, self.config.embedding_dropout, generator)
        out, state = self.rnn(x, state, lengths, boundaries, slope, generator)
        h_e = self.output(out.steps, bfloat16=self.rnn.rounds_products)
        if self.training:
            h_e = drop(h_e, self.config.output_dropout, generator, each_step=True)
        return StrokeModelOutput(self.head.density(h_e), out), state

    def log_likelihood(self, points: Points) -> float:
        """The log-likelihood in nats of a line from its second point on, in normalised coordinates."""
        return float(log_likelihoods(self, [points])[0])

    def generate(
        self, prime: Points | None = None, max_new: int = 650, *, bias: float = 0.0, seed: int | None = None
    ) -> Points:
        """What follows the points of `prime`; without, a new line."""
        made = generate_points(self, prime, max_new, bias, seed)
        return np.array([point.point for point in made if point.new], dtype=np.float32).reshape(-1, 3)

    def segment(self, points: Points, *, vectors: bool = False) -> StrokeSegmentation:
        """The segments that the layers found in a line, and every step; on request with the segments' vectors."""
        return segment_points(self, points, vectors=vectors)

    @classmethod
    def without_weights(cls, directory: Path, config: StrokeModelConfig, engine: str) -> StrokeModel:
        return cls(config, engine=engine)
