"""Whole models: embedding, recurrent network and output module, and how they are kept on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from hmrnn.baselines import HRNN, LSTM, ClockworkRNN, text_boundaries
from hmrnn.baselines.hrnn import LOOKBACK
from hmrnn.config import TextModelConfig, from_json
from hmrnn.data.streams import Streams
from hmrnn.data.text import Symbols
from hmrnn.evaluation import bits_per_character
from hmrnn.files import write_atomically
from hmrnn.generation import Sampling, generate
from hmrnn.hmlstm import HMLSTM
from hmrnn.output import OutputEmbedding, SoftmaxHead
from hmrnn.recurrent import Recurrent
from hmrnn.sequence import HMLSTMOutput, HMLSTMState
from hmrnn.structure.segments import Segmentation, segment

FORMAT_VERSION = 1


def recurrent(config: TextModelConfig, engine: str) -> Recurrent:
    """Builds the recurrent network of a model."""
    size, hidden = config.embedding_size, config.hidden_sizes
    if config.model == "lstm":
        return LSTM(size, hidden, layer_norm=config.layer_norm, engine=engine)
    if config.model == "clockwork":
        return ClockworkRNN(size, hidden)
    if config.model == "hrnn":
        return HRNN(size, hidden, layer_norm=config.layer_norm, engine=engine)
    if config.model == "hm-lstm":
        return HMLSTM(
            size,
            hidden,
            layer_norm=config.layer_norm,
            boundary=config.boundary,
            copy_boundary=config.copy_boundary,
            boundary_bias=config.boundary_bias,
            slope=config.slope,
            engine=engine,
        )
    raise ValueError(f"model must be one of hm-lstm, lstm, clockwork, hrnn; got {config.model!r}")


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
        out, state = self.rnn(self.embedding(symbols), state, lengths, boundaries, slope, generator)
        return TextModelOutput(self.head(self.output(out.steps)), out), state

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

    def save_pretrained(self, directory: str | Path, **notes: Any) -> None:
        """Writes config.json, symbols.json and model.safetensors. `notes` go into config.json, too."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "format_version": FORMAT_VERSION,
            "kind": "text",
            **asdict(replace(self.config, slope=self.rnn.slope)),
            **notes,
        }
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        write_atomically(directory / "model.safetensors", save(weights))
        write_atomically(directory / "symbols.json", self.symbols.to_json())
        write_atomically(directory / "config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, directory: str | Path, *, engine: str = "auto") -> TextModel:
        """Reads what `save_pretrained` wrote. Nothing in the files is executed."""
        directory = Path(directory)
        config = read_config(directory)[0]
        symbols = read_symbols(directory)
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


NOTES = ("data", "training", "fingerprint", "data_dir")  # what a training run adds to its model's config.json


def read_config(directory: Path) -> tuple[TextModelConfig, dict[str, Any]]:
    """The model's config, and the notes beside it."""
    path = directory / "config.json"
    if not path.is_file():
        raise ValueError(f"{directory}: there is no config.json here: this is not a run")
    try:
        content: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the config of a model: {error}") from None
    version, kind = content.pop("format_version", None), content.pop("kind", None)
    if version != FORMAT_VERSION:
        raise ValueError(f"{path}: format_version {version!r} is not {FORMAT_VERSION}, the one that this hmrnn reads")
    if kind != "text":
        raise ValueError(f"{path}: this is a model of kind {kind!r}, not 'text'")
    notes = {name: content.pop(name) for name in NOTES if name in content}
    return from_json(TextModelConfig, content, str(path)), notes


def read_symbols(directory: Path) -> Symbols:
    path = directory / "symbols.json"
    try:
        return Symbols.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
