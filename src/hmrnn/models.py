"""Whole models: embedding, recurrent network and output module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hmrnn.baselines import HRNN, LSTM, ClockworkRNN, text_boundaries
from hmrnn.baselines.hrnn import LOOKBACK
from hmrnn.config import ModelConfig, StrokeModelConfig, TextModelConfig
from hmrnn.data.streams import Streams
from hmrnn.data.strokes import Points
from hmrnn.data.text import Symbols
from hmrnn.dropout import drop
from hmrnn.evaluation import bits_per_character, log_likelihoods
from hmrnn.files import check_regular
from hmrnn.generation import Sampling, generate
from hmrnn.hmlstm import HMLSTM
from hmrnn.mixture import MixtureHead, PointDensity
from hmrnn.output import OutputEmbedding, SoftmaxHead
from hmrnn.pretrained import Pretrained
from hmrnn.recurrent import Recurrent
from hmrnn.sequence import HMLSTMOutput, HMLSTMState, Piecewise
from hmrnn.stroke_generation import generate_points
from hmrnn.structure.segments import Segmentation, StrokeSegmentation, segment, segment_points

POINT_GAIN = 0.5  # of layer normalisation in a model of strokes, at the start of training


def recurrent(config: ModelConfig, engine: str) -> Recurrent:
    """Builds the recurrent network of a model."""
    size, hidden = config.embedding_size, config.hidden_sizes
    if config.model == "clockwork":
        return ClockworkRNN(size, hidden)
    shared: dict[str, Any] = {
        "layer_norm": config.layer_norm,
        "dropout": config.dropout,
        "weight_drop": config.weight_drop,
        "precision": config.precision,
        "engine": engine,
    }
    if config.model in ("lstm", "hrnn"):
        return (LSTM if config.model == "lstm" else HRNN)(size, hidden, **shared)
    if config.model == "hm-lstm":
        return HMLSTM(
            size,
            hidden,
            boundary=config.boundary,
            copy_boundary=config.copy_boundary,
            boundary_bias=config.boundary_bias,
            slope=config.slope,
            **shared,
        )
    raise ValueError(f"model must be one of hm-lstm, lstm, clockwork, hrnn; got {config.model!r}")


@dataclass(frozen=True)
class TextModelOutput:
    logits: Tensor  # (T, B, symbols): unnormalised log-probabilities of the symbol after each step
    rnn: HMLSTMOutput


class TextModel(Pretrained):
    """Predicts the next symbol of a text: a linear embedding, a recurrent network, the gated output module."""

    kind = "text"
    config: TextModelConfig

    def __init__(self, symbols: Symbols, config: TextModelConfig | None = None, *, engine: str = "auto") -> None:
        super().__init__()
        self.symbols = symbols
        self.config = config or TextModelConfig()
        self.embedding = nn.Embedding(len(symbols), self.config.embedding_size)
        self.rnn = recurrent(self.config, engine)
        self.output = OutputEmbedding(self.config.hidden_sizes, self.config.output_size)
        self.head = SoftmaxHead(self.config.output_size, len(symbols))

    def forward(
        self,
        symbols: Tensor,
        state: HMLSTMState | None = None,
        lengths: Tensor | None = None,
        boundaries: Tensor | None = None,
        slope: float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[TextModelOutput, HMLSTMState]:
        """symbols: (T, B) int64. The rest as in `HMLSTM`."""
        embedded, bfloat16 = self.embed(symbols), self.rnn.rounds_products
        dropped = self.config.embedding_dropout if self.training else 0.0
        x = drop(embedded.dense(), dropped, generator) if dropped else embedded
        out, state = self.rnn(x, state, lengths, boundaries, slope, generator)
        h_e = self.output(out.steps, bfloat16=bfloat16)
        if self.training:
            h_e = drop(h_e, self.config.output_dropout, generator, each_step=True)
        return TextModelOutput(self.head(h_e, bfloat16=bfloat16), out), state

    def embed(self, symbols: Tensor) -> Piecewise:
        """(...) int64 -> (..., embedding_size): what the recurrent network gets."""
        return Piecewise(self.embedding.weight, symbols)

    def boundaries(self, symbols: Tensor, context: int = 0) -> Tensor | None:
        """(T - context, B, L-1) for a model that must be given boundaries, which are those of words and sentences.

        symbols: (T, B), the first `context` of them what came before. None for a model that needs none.
        """
        if self.config.model != "hrnn":
            return None
        detectors = self.rnn.num_layers - 1
        if detectors > 2:
            raise ValueError(f"a text gives boundaries for 3 layers (words, sentences); this HRNN has {detectors + 1}")
        rows = [text_boundaries(self.symbols.text(row))[context:, :detectors] for row in symbols.T.tolist()]
        return torch.stack(rows, dim=1).to(self.embedding.weight.device)

    def boundaries_of(self, streams: Streams, start: int, end: int) -> Tensor | None:
        """The same for steps `start` to `end` of streams."""
        past = max(0, start - LOOKBACK)
        return self.boundaries(streams.read(past, end), start - past) if self.config.model == "hrnn" else None

    def bits_per_character(self, text: str | bytes, window: int | None = None) -> float:
        """The mean of -log2 p(next symbol), from the second symbol on, with the state carried along."""
        return bits_per_character(self, self.symbols.encode(text).numpy(), window=window)

    def generate(
        self,
        prompt: str | bytes = "",
        max_new: int = 500,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> str:
        """What follows the prompt. `hmrnn.generation.generate` gives it symbol by symbol, with the boundaries."""
        made = generate(self, prompt, max_new, Sampling(temperature, top_k, top_p), seed)
        return self.symbols.decode(symbol.number for symbol in made if symbol.new)

    def segment(self, text: str | bytes, *, vectors: bool = False) -> Segmentation:
        """The segments that the layers found in a text, and every step; on request with the segments' vectors."""
        return segment(self, text, vectors=vectors)

    def files(self) -> Mapping[str, str]:
        return {"symbols.json": self.symbols.to_json()}

    @classmethod
    def without_weights(cls, directory: Path, config: TextModelConfig, engine: str) -> TextModel:
        return cls(read_symbols(directory), config, engine=engine)


def read_symbols(directory: Path) -> Symbols:
    path = directory / "symbols.json"
    check_regular(path)
    try:
        return Symbols.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


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
