"""A model of sequences of vectors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from hmrnn.config import ModelConfig
from hmrnn.domains.network import recurrent
from hmrnn.domains.vectors.evaluation import log_likelihoods
from hmrnn.domains.vectors.generation import generate_points
from hmrnn.domains.vectors.mixture import FAR, Density
from hmrnn.domains.vectors.structure import LineSegmentation, segment_points
from hmrnn.dropout import drop
from hmrnn.output import OutputEmbedding
from hmrnn.recurrent import Recurrent
from hmrnn.sequence import HMLSTMOutput, HMLSTMState
from hmrnn.storage.pretrained import Pretrained
from hmrnn.structure.operations import Steps
from hmrnn.structure.segments import Segment
from hmrnn.training.batches import Line

OwnDensity = TypeVar("OwnDensity", bound=Density)

GAIN = 0.5  # of layer normalisation in a model of vectors, at the start of training


def vector_embedding(inputs: int, size: int) -> nn.Linear:
    """(..., inputs) -> (..., size), with a start as that of a symbol's embedding.

    Smaller weights would make points almost nothing, and layer normalisation would magnify it: gradients of 1e9 were
    measured. There is no bias: a constant part of the input is, to a detector, a bias that learns much too fast.
    """
    embedding = nn.Linear(inputs, size, bias=False)
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
class VectorModelOutput(Generic[OwnDensity]):
    density: OwnDensity  # (T, B): of the vector after each step, in normalised coordinates
    rnn: HMLSTMOutput


class VectorModel(Pretrained, Generic[OwnDensity]):
    """A model that predicts the density of the next vector of a sequence.

    It embeds the normalised vector linearly, and has a recurrent network, the gated output module and a mixture density
    head. It reads and generates vectors in the units of the data: their mean and deviation are part of the model.
    """

    mean: Tensor  # (D,)
    deviation: Tensor  # (D,)
    head: Any  # its `density` takes (..., output_size)

    def __init__(self, config: ModelConfig, width: int, inputs: int, engine: str) -> None:
        """`width` numbers are a vector, and `inputs` what is embedded of it."""
        super().__init__()
        self.config = config
        self.embedding = vector_embedding(inputs, config.embedding_size)
        self.rnn = recurrent(config, engine)
        start_gains(self.rnn, GAIN)
        self.output = OutputEmbedding(config.hidden_sizes, config.output_size)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))

    @property
    def start(self) -> Line:
        """(1, D): what a line begins with that is made from nothing."""
        return np.zeros((1, len(self.mean)), dtype=np.float32)

    def embed(self, points: Tensor) -> Tensor:
        """Embeds vectors, (..., D), as the recurrent network reads them: (..., embedding_size)."""
        return cast(Tensor, self.embedding(self.normalised(points)))

    def normalised(self, points: Tensor) -> Tensor:
        """Normalises vectors, (..., D). Densities are in these coordinates. Values are clipped at FAR, beyond which a
        network's numbers would overflow."""
        far = min(FAR, torch.finfo(self.mean.dtype).max)  # float16 ends before it
        return ((points.to(self.mean.dtype) - self.mean) / self.deviation).clamp(-far, far)

    def in_units(self, normalised: Tensor) -> Tensor:
        """Maps normalised vectors, (..., D), back to the units of the data."""
        return normalised * self.deviation + self.mean

    def boundaries(self, points: Tensor) -> Tensor | None:
        """Returns the boundaries, (T, B, L-1), for a model that needs given ones; None for any other."""
        return None

    def forward(
        self,
        points: Tensor,
        state: HMLSTMState | None = None,
        lengths: Tensor | None = None,
        slope: float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[VectorModelOutput[OwnDensity], HMLSTMState]:
        """Predicts the vector after each step.

        Args:
            points: (T, B, D) vectors in the units of the data.
            state: The state to start from; zeros by default.
            lengths: (B,) number of valid steps of each row.
            slope: Slope of the detectors in this call.
            generator: Source of random numbers for sampled boundaries and dropout.

        Returns:
            The output, with the `density` of the next vector at each step, and the state after the last step.
        """
        x = self.embed(points)
        if self.training:
            x = drop(x, self.config.embedding_dropout, generator)
        out, state = self.rnn(x, state, lengths, self.boundaries(points), slope, generator)
        h_e = self.output(out.steps, bfloat16=self.rnn.rounds_products)
        if self.training:
            h_e = drop(h_e, self.config.output_dropout, generator, each_step=True)
        return VectorModelOutput(self.head.density(h_e), out), state

    def segmentation(self, steps: Steps, layers: tuple[tuple[Segment, ...], ...], points: Line) -> LineSegmentation:
        """Makes the result of `segment`. Each domain has its own drawing in a notebook."""
        return LineSegmentation(steps, layers, points)

    def checked(self, points: Line) -> Line:
        """(T, D) float32, of an array, a tensor or a list of vectors, in which None is missing."""
        given: Any = points
        if isinstance(points, Tensor):
            given = (points.float() if points.is_floating_point() else points).numpy(force=True)
        wanted = f"a sequence must be numbers of shape (T, {len(self.mean)})"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of complex numbers NumPy would drop a part
                values = np.asarray(given, dtype=np.float64 if isinstance(given, (list, tuple)) else None)
        except (ValueError, TypeError, OverflowError, Warning):  # NumPy's sentence knows nothing of sequences
            raise ValueError(f"{wanted}; got lists of unequal length, or of something other than numbers") from None
        if values.ndim != 2 or values.shape[1] != len(self.mean) or values.dtype.kind not in "fiub":
            raise ValueError(f"{wanted}; got {values.dtype} of shape {values.shape}")
        with np.errstate(over="ignore"):  # what is too far away is put at FAR
            return values.astype(np.float32, copy=False)

    def log_likelihood(self, points: Line) -> float:
        """Computes the log-likelihood of a sequence, (T, D), in nats: from its second vector on, and normalised."""
        return float(log_likelihoods(self, [self.checked(points)])[0])

    def generate(
        self, prime: Line | None = None, max_new: int = 650, *, bias: float = 0.0, seed: int | None = None
    ) -> Line:
        """Generates vectors.

        Args:
            prime: (T, D) sequence to continue. Without one, a new sequence begins.
            max_new: Number of vectors to generate.
            bias: Sharpens the mixture: 0 samples the model itself, larger values are less varied.
            seed: Random seed.

        Returns:
            (max_new, D) float32, in the units of the data.
        """
        made = generate_points(self, None if prime is None else self.checked(prime), max_new, bias, seed)
        return np.array([point.point for point in made if point.new], dtype=np.float32).reshape(-1, len(self.mean))

    def segment(self, points: Line, *, vectors: bool = False) -> LineSegmentation:
        """Finds the segments of every layer in a sequence, (T, D).

        With `vectors`, each closed segment has one: the hidden state of its layer at the boundary.
        """
        return segment_points(self, self.checked(points), vectors=vectors)
