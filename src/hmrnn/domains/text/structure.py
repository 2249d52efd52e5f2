"""The segments that a model found in a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hmrnn.domains.text.data.symbols import Symbols
from hmrnn.domains.text.reading import PIECE, read_on
from hmrnn.structure.operations import Steps
from hmrnn.structure.reading import Place, Read
from hmrnn.structure.segments import LONGEST_TEXT, Found, by_layer

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel


@dataclass(frozen=True, repr=False)
class Segmentation(Found):
    """The segments that a model found in a text, with every step of every layer."""

    table: Symbols  # by which its inputs are numbered

    @property
    def symbols(self) -> list[str]:
        """The symbols of the text. Bytes from 128 on are lone surrogates, as in `Symbols`."""
        return self.table.listed(self.steps.inputs)

    @property
    def text(self) -> str:
        """The symbols as one string, tokens with spaces between them."""
        return self.table.text(self.steps.inputs)

    def text_of(self, start: int, end: int) -> str | None:
        return self.table.decode(self.steps.inputs[start:end]) if end - start <= LONGEST_TEXT else None

    def _repr_html_(self) -> str:
        from hmrnn.domains.text.inline import segments_html

        return segments_html(self)


def segment(model: TextModel, text: str | bytes, *, vectors: bool = False) -> Segmentation:
    """All about a text that fits into memory."""
    return segment_numbers(model, model.symbols.encode(text), vectors=vectors)


def segment_numbers(model: TextModel, numbers: Tensor, *, vectors: bool = False) -> Segmentation:
    """The same of a text that is given by the numbers of its symbols, (T,)."""
    parts = [read.steps(hidden=vectors) for read in follow(model, numbers.split(PIECE))]
    if not parts:
        raise ValueError("the text is empty: there is nothing to segment")
    return Segmentation(Steps.joined(parts), by_layer(parts, model.symbols.decode, model.delay), model.symbols)


def follow(model: TextModel, pieces: Iterable[Tensor]) -> Iterator[Read]:
    """Reads a text piece by piece, each (T,) int64, in memory that does not grow."""
    place, generator = Place.start(model), torch.Generator(model.embedding.weight.device).manual_seed(0)
    for numbers in pieces:
        if len(numbers) > 0:
            read = read_on(model, numbers, place, generator)
            yield read
            place = read.after
