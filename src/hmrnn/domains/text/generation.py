"""Text from a model, symbol by symbol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hmrnn.domains.text.config import OnUnknown
from hmrnn.domains.text.data.symbols import TEXT
from hmrnn.domains.text.native import TextStream
from hmrnn.domains.text.reading import PIECE, read_on, unseen
from hmrnn.errors import check_not_negative, check_type
from hmrnn.structure.reading import Place, PredictsNothing, Read

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel


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
        check_not_negative("temperature", self.temperature)
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1; got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is a probability above 0; got {self.top_p}")

    def probabilities(self, logits: Tensor) -> Tensor:
        """(symbols,) float64, from unnormalised log-probabilities."""
        logits = logits.double()
        if logits.isnan().any():
            raise PredictsNothing
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

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> int:
        return int(torch.multinomial(self.probabilities(logits), 1, generator=generator))


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
    check_type("prompt", prompt, TEXT, "a text (str or bytes)")
    check_not_negative("max_new", max_new)
    sampling = sampling or Sampling()
    generator = torch.Generator()  # on the CPU: the same text on every device
    _ = generator.seed() if seed is None else generator.manual_seed(seed)
    numbers = model.symbols.encode(prompt, on_unknown)
    place = Place.start(model) if len(numbers) else unseen(model)
    for part in numbers.split(PIECE) if len(numbers) else ():
        read = read_on(model, part, place, generator)
        place = read.after
        yield from symbols_of(read, new=False)
    stream = TextStream.of(model, place.state, generator)
    if stream is None:
        for read in islice(generate_on(model, place, sampling, generator), max_new):
            yield from symbols_of(read, new=True)
        return
    logits = place.expected[0].cpu()
    for _ in range(max_new):
        number = sampling.draw(logits, generator)
        yield Generated(number, stream.read(number), True)
        logits = stream.logits


def generate_on(
    model: TextModel, place: Place, sampling: Sampling, generator: torch.Generator | None = None
) -> Iterator[Read]:
    """Draws symbol after symbol, without end: each is read before the next is drawn."""
    while True:
        drawn = torch.tensor([sampling.draw(place.expected[0].cpu(), generator)])
        read = read_on(model, drawn, place, generator)
        yield read
        place = read.after


def symbols_of(read: Read, new: bool) -> list[Generated]:
    pairs = zip(read.inputs.tolist(), read.z.tolist(), strict=True)
    return [Generated(number, tuple(z), new) for number, z in pairs]
