"""Text from a model, symbol by symbol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hmrnn.domains.text.config import OnUnknown
from hmrnn.domains.text.reading import AT_ONCE, Reader
from hmrnn.engines.native.streams import TextStream

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel

START = ("\n", " ")  # what an empty prompt stands for: the first of these that the model knows


@dataclass(frozen=True)
class Sampling:
    """How the next symbol is drawn."""

    temperature: float = 1.0
    """Below 1 the likely symbols become likelier; 0 always takes the likeliest."""
    top_k: int | None = None
    """Draw from the so many likeliest symbols only."""
    top_p: float | None = None
    """Draw from the likeliest symbols that together have this probability."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must not be negative, and finite; got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1; got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is a probability above 0; got {self.top_p}")

    def probabilities(self, logits: Tensor) -> Tensor:
        """(symbols,) float64, from unnormalised log-probabilities."""
        logits = logits.double()
        if logits.isnan().any():
            raise ValueError("the model predicts nothing: its weights are not finite")
        if self.temperature == 0:
            return (torch.arange(len(logits), device=logits.device) == logits.argmax()).double()
        # The largest becomes 0, so that no temperature, however small, makes infinity minus infinity of it.
        ranked, order = ((logits - logits.max()) / self.temperature).softmax(-1).sort(descending=True, stable=True)
        if self.top_k is not None:
            ranked[self.top_k :] = 0
        if self.top_p is not None:
            before = ranked.cumsum(-1) - ranked
            ranked[before >= self.top_p * ranked.sum()] = 0
        return torch.zeros_like(ranked).scatter(0, order, ranked / ranked.sum())


@dataclass(frozen=True)
class Generated:
    """A symbol that was read or made."""

    number: int
    z: tuple[bool, ...]  # for each detector, whether it saw a segment end here
    new: bool  # made, and not of the prompt


@torch.no_grad()
def generate(
    model: TextModel,
    prompt: str | bytes = "",
    max_new: int = 500,
    sampling: Sampling | None = None,
    seed: int | None = None,
    on_unknown: OnUnknown = "error",
) -> Iterator[Generated]:
    """The symbols of the prompt, and then new ones as they are made."""
    if max_new < 0:
        raise ValueError(f"max_new must not be negative; got {max_new}")
    sampling = sampling or Sampling()
    generator = torch.Generator()  # on the CPU: the same text on every device
    _ = generator.seed() if seed is None else generator.manual_seed(seed)
    numbers = model.symbols.encode(prompt, on_unknown)
    unseen = len(numbers) == 0
    if unseen:
        numbers = model.symbols.encode(next((s for s in START if s in model.symbols.table), model.symbols.table[0]))
    reader = Reader(model, generator)
    for part in numbers.split(AT_ONCE):
        for symbol in read_by(reader, part, new=False):
            if not unseen:
                yield symbol
    logits, stream = reader.logits.cpu(), TextStream.of(model, reader.state, generator)
    for _ in range(max_new):
        drawn = torch.multinomial(sampling.probabilities(logits), 1, generator=generator)
        if stream is None:
            yield from read_by(reader, drawn, new=True)
            logits = reader.logits.cpu()
        else:
            number = int(drawn)
            yield Generated(number, stream.read(number), True)
            logits = stream.logits


def read_by(reader: Reader, numbers: Tensor, new: bool) -> list[Generated]:
    fired = (reader.read(numbers).rnn.z[:, 0] > 0.5).tolist()
    return [Generated(number, tuple(z), new) for number, z in zip(numbers.tolist(), fired, strict=True)]
