"""Whole models: embedding, recurrent network and output module, and how they are kept on disk."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from hmrnn.baselines import HRNN, LSTM, ClockworkRNN, text_boundaries
from hmrnn.boundary import Boundary, CopyBoundary
from hmrnn.data.text import Symbols
from hmrnn.files import write_atomically
from hmrnn.hmlstm import HMLSTM
from hmrnn.output import OutputEmbedding, SoftmaxHead
from hmrnn.recurrent import Recurrent, check_size
from hmrnn.sequence import HMLSTMOutput, HMLSTMState

FORMAT_VERSION = 1
RecurrentKind = Literal["hm-lstm", "lstm", "clockwork", "hrnn"]


@dataclass(frozen=True)
class TextModelConfig:
    """The shape of a text model."""

    model: RecurrentKind = "hm-lstm"
    """The recurrent network: the HM-LSTM, or a baseline."""
    embedding_size: int = 128
    """Size of the input embedding."""
    hidden_sizes: tuple[int, ...] = (512, 512, 512)
    """Units of each layer, the lowest first."""
    output_size: int = 512
    """Size of the output embedding."""
    layer_norm: bool = True
    """Layer normalisation; the clockwork RNN always has it."""
    boundary: Boundary = "step"
    """How an HM-LSTM makes boundaries."""
    copy_boundary: CopyBoundary = "hold"
    """What an HM-LSTM's detector does in a COPY step."""
    boundary_bias: float | tuple[float, ...] = 0.0
    """Start value of the detectors' biases."""
    slope: float = 1.0
    """Slope of the detectors."""

    def __post_init__(self) -> None:
        for name in ("embedding_size", "output_size"):
            check_size(name, getattr(self, name))

    def recurrent(self, engine: str) -> Recurrent:
        """Builds the recurrent network."""
        size, hidden = self.embedding_size, self.hidden_sizes
        if self.model == "lstm":
            return LSTM(size, hidden, layer_norm=self.layer_norm, engine=engine)
        if self.model == "clockwork":
            return ClockworkRNN(size, hidden)
        if self.model == "hrnn":
            return HRNN(size, hidden, layer_norm=self.layer_norm, engine=engine)
        if self.model == "hm-lstm":
            return HMLSTM(
                size,
                hidden,
                layer_norm=self.layer_norm,
                boundary=self.boundary,
                copy_boundary=self.copy_boundary,
                boundary_bias=self.boundary_bias,
                slope=self.slope,
                engine=engine,
            )
        raise ValueError(f"model must be one of hm-lstm, lstm, clockwork, hrnn; got {self.model!r}")


@dataclass(frozen=True)
class TextModelOutput:
    logits: Tensor  # (T, B, symbols): unnormalised log-probabilities of the symbol after each step
    rnn: HMLSTMOutput


class TextModel(nn.Module):
    """Predicts the next symbol of a text: a linear embedding, a recurrent network, the gated output module."""

    def __init__(self, symbols: Symbols, config: TextModelConfig | None = None, *, engine: str = "auto") -> None:
        super().__init__()
        self.symbols = symbols
        self.config = config or TextModelConfig()
        self.embedding = nn.Embedding(len(symbols), self.config.embedding_size)
        self.rnn = self.config.recurrent(engine)
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
        out, state = self.rnn(self.embedding(symbols), state, lengths, boundaries, slope, generator)
        return TextModelOutput(self.head(self.output(out.steps)), out), state

    def boundaries(self, text: str) -> Tensor | None:
        """(T, 1, L-1) for a model that must be given boundaries, which are those of words and sentences; else None."""
        if self.config.model != "hrnn":
            return None
        detectors = self.rnn.num_layers - 1
        if detectors > 2:
            raise ValueError(f"a text gives boundaries for 3 layers (words, sentences); this HRNN has {detectors + 1}")
        return text_boundaries(text)[:, None, :detectors]

    @torch.no_grad()
    def bits_per_character(self, text: str, window: int = 1000) -> float:
        """The mean of -log2 p(next symbol), from the second symbol on, with the state carried along."""
        if len(text) < 2:
            raise ValueError(f"text must have at least 2 symbols, one to predict from the other; got {len(text)}")
        check_size("window", window)
        device = self.embedding.weight.device
        symbols = self.symbols.encode(text).to(device)
        boundaries = self.boundaries(text)
        nats, state = 0.0, None
        for start in range(0, len(symbols) - 1, window):
            end = min(start + window, len(symbols) - 1)
            given = None if boundaries is None else boundaries[start:end].to(device)
            out, state = self(symbols[start:end, None], state, boundaries=given)
            logits, targets = out.logits[:, 0].float(), symbols[start + 1 : end + 1]
            nats += F.cross_entropy(logits, targets, reduction="sum").item()
        return nats / math.log(2) / (len(symbols) - 1)

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes config.json, symbols.json and model.safetensors."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "format_version": FORMAT_VERSION,
            "kind": "text",
            **asdict(replace(self.config, slope=self.rnn.slope)),
        }
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        write_atomically(directory / "model.safetensors", save(weights))
        write_atomically(directory / "symbols.json", self.symbols.to_json())
        write_atomically(directory / "config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, directory: str | Path, *, engine: str = "auto") -> TextModel:
        """Reads what `save_pretrained` wrote. Nothing in the files is executed."""
        directory = Path(directory)
        config = read_config(directory / "config.json")
        try:
            symbols = Symbols.from_json((directory / "symbols.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{directory / 'symbols.json'}: {error}") from None
        # Built without memory first: a config that asks for more than the weights hold costs nothing.
        with torch.device("meta"):
            model = cls(symbols, config, engine=engine)
        path = directory / "model.safetensors"
        try:
            # Copied out of the file's pages: tensors at odd addresses take other paths through the matrix library, and
            # give other last bits, than those that were saved.
            weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
            model.load_state_dict(weights, assign=True)
        except (RuntimeError, SafetensorError) as error:
            raise ValueError(f"{path} does not fit {directory / 'config.json'}: {error}") from None
        return model


def read_config(path: Path) -> TextModelConfig:
    try:
        content: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the config of a model: {error}") from None
    version, kind = content.pop("format_version", None), content.pop("kind", None)
    if version != FORMAT_VERSION:
        raise ValueError(f"{path}: format_version {version!r} is not {FORMAT_VERSION}, the one that this hmrnn reads")
    if kind != "text":
        raise ValueError(f"{path}: this is a model of kind {kind!r}, not 'text'")
    unknown = set(content) - {field.name for field in fields(TextModelConfig)}
    if unknown:
        raise ValueError(f"{path}: unknown setting {', '.join(sorted(unknown))}")
    settings: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
    return TextModelConfig(**settings)
