"""The text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import torch
from torch import Tensor, nn

from hmrnn.baselines.hrnn import LOOKBACK, text_boundaries
from hmrnn.domains.network import recurrent
from hmrnn.domains.text.config import TextModelConfig
from hmrnn.domains.text.data.streams import Streams
from hmrnn.domains.text.data.symbols import Symbols
from hmrnn.domains.text.evaluation import bits_per_character
from hmrnn.domains.text.generation import Sampling, generate
from hmrnn.domains.text.structure import Segmentation, segment
from hmrnn.dropout import drop
from hmrnn.output import OutputEmbedding, SoftmaxHead
from hmrnn.sequence import HMLSTMOutput, HMLSTMState, Piecewise, register
from hmrnn.storage.files import MOST_JSON, read_bytes
from hmrnn.storage.pretrained import Pretrained


@dataclass(frozen=True)
class TextModelOutput:
    """The output of a `TextModel`.

    Attributes:
        logits: (T, B, symbols) unnormalised log-probabilities of the symbol after each step.
        rnn: The output of the recurrent network.
    """

    logits: Tensor
    rnn: HMLSTMOutput


register(TextModelOutput, "logits", "rnn")


class TextModel(Pretrained):
    """A model that predicts the next symbol of a text: embedding, recurrent network and gated output module.

    Args:
        symbols: The symbol table, for instance `Symbols.of(text)`.
        config: Sizes and kind of the network. By default those of the paper's model for Penn Treebank.
        engine: Engine of the recurrent network, see `HMLSTM`.
    """

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

    @property
    def delay(self) -> int:
        """The number of symbols after the end of a segment at which its detector fires: 0 or 1."""
        return self.config.boundary_delay

    def forward(
        self,
        symbols: Tensor,
        state: HMLSTMState | None = None,
        lengths: Tensor | None = None,
        boundaries: Tensor | None = None,
        slope: float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[TextModelOutput, HMLSTMState]:
        """Predicts the symbol after each step.

        Args:
            symbols: (T, B) int64, numbers of symbols.
            state: The state to start from; zeros by default.
            lengths: (B,) number of valid steps of each row.
            boundaries: (T, B, L-1) boundaries to use instead of the detectors'.
            slope: Slope of the detectors in this call.
            generator: Source of random numbers for sampled boundaries and dropout.

        Returns:
            The output, with `logits` of shape (T, B, symbols), and the state after the last step.
        """
        embedded, bfloat16 = self.embed(symbols), self.rnn.rounds_products
        dropped = self.config.embedding_dropout if self.training else 0.0
        x = drop(embedded.dense(), dropped, generator) if dropped else embedded
        out, state = self.rnn(x, state, lengths, boundaries, slope, generator)
        h_e = self.output(out.steps, bfloat16=bfloat16)
        if self.training:
            h_e = drop(h_e, self.config.output_dropout, generator, each_step=True)
        return TextModelOutput(self.head(h_e, bfloat16=bfloat16), out), state

    def embed(self, symbols: Tensor) -> Piecewise:
        """Embeds symbols, (...) int64, as the recurrent network reads them: (..., embedding_size)."""
        return Piecewise(self.embedding.weight, symbols)

    def boundaries(self, symbols: Tensor, context: int = 0) -> Tensor | None:
        """Returns the boundaries of words and sentences for an HRNN; None for any other model.

        Args:
            symbols: (T, B) int64, numbers of symbols.
            context: How many of the first symbols only serve as context.

        Returns:
            (T - context, B, L-1).
        """
        if self.config.model != "hrnn":
            return None
        detectors = self.rnn.num_layers - 1
        if detectors > 2:
            raise ValueError(f"a text gives boundaries for 3 layers (words, sentences); this HRNN has {detectors + 1}")
        rows = [text_boundaries(self.symbols.text(row))[context:, :detectors] for row in symbols.T.tolist()]
        return torch.stack(rows, dim=1).to(self.embedding.weight.device)

    def boundaries_of(self, streams: Streams, start: int, end: int) -> Tensor | None:
        """Returns the boundaries of steps `start` to `end` of streams."""
        past = max(0, start - LOOKBACK)
        return self.boundaries(streams.read(past, end), start - past) if self.config.model == "hrnn" else None

    def bits_per_character(self, text: str | bytes, window: int | None = None) -> float:
        """Computes the mean of -log2 p(next symbol) over a text, from its second symbol on.

        The text is read as one sequence, `window` symbols at a time.
        """
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
        """Generates text.

        Args:
            prompt: Text to continue.
            max_new: Number of symbols to generate.
            temperature: Below 1, likely symbols become likelier; 0 always takes the likeliest.
            top_k: Sample only from this many likeliest symbols.
            top_p: Sample only from the likeliest symbols that together have this probability.
            seed: Random seed.

        Returns:
            The generated text, without the prompt.
        """
        made = generate(self, prompt, max_new, Sampling(temperature, top_k, top_p), seed)
        return self.symbols.decode(symbol.number for symbol in made if symbol.new)

    @overload
    def segment(self, text: str | bytes, *, vectors: bool = False) -> Segmentation: ...
    @overload
    def segment(self, text: list[str] | list[bytes], *, vectors: bool = False) -> list[Segmentation]: ...
    def segment(
        self, text: str | bytes | list[str] | list[bytes], *, vectors: bool = False
    ) -> Segmentation | list[Segmentation]:
        """Finds the segments of every layer in a text.

        Args:
            text: A text, or a list of texts. Each is read from a zero state.
            vectors: Include the vector of each closed segment: the hidden state of its layer at the boundary.

        Returns:
            A `Segmentation` for each text: `layers`, `tree()`, and `steps` with every step of every layer.
        """
        if isinstance(text, list):
            return [segment(self, own, vectors=vectors) for own in text]
        return segment(self, text, vectors=vectors)

    def files(self) -> Mapping[str, str]:
        return {"symbols.json": self.symbols.to_json()}

    @classmethod
    def without_weights(cls, directory: Path, config: TextModelConfig, engine: str) -> TextModel:
        return cls(read_symbols(directory), config, engine=engine)


def read_symbols(directory: Path) -> Symbols:
    path = directory / "symbols.json"
    content = read_bytes(path, MOST_JSON)
    try:
        return Symbols.from_json(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
