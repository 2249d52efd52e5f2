"""The segments that a model found in a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hmrnn.domains.text.reading import AT_ONCE, Reader
from hmrnn.structure.operations import Steps, steps_of
from hmrnn.structure.segments import Found, by_layer

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel


@dataclass(frozen=True)
class Segmentation(Found):
    """A text, and all that a model made of it."""

    text: str  # one character a symbol: of bytes, those from 128 are lone surrogates, as in `Symbols`


def segment(model: TextModel, text: str | bytes, *, vectors: bool = False) -> Segmentation:
    """All about a text that fits into memory."""
    return segment_numbers(model, model.symbols.encode(text), vectors=vectors)


def segment_numbers(model: TextModel, numbers: Tensor, *, vectors: bool = False) -> Segmentation:
    """The same of a text that is given by the numbers of its symbols, (T,)."""
    parts = list(follow(model, numbers.split(AT_ONCE), hidden=vectors))
    if not parts:
        raise ValueError("the text is empty: there is nothing to segment")
    layers = by_layer(parts, model.symbols, model.delay)
    return Segmentation(Steps.joined(parts), layers, model.symbols.text(numbers.tolist()))


@torch.no_grad()
def follow(model: TextModel, pieces: Iterable[Tensor], hidden: bool = False) -> Iterator[Steps]:
    """Reads a text piece by piece, each (T,) int64, in memory that does not grow. `hidden`: with the hidden states."""
    reader = Reader(model, torch.Generator(model.embedding.weight.device).manual_seed(0))
    start, expected = 0, None  # the log-probabilities of what comes next
    for numbers in pieces:
        if len(numbers) == 0:
            continue
        out = reader.read(numbers)
        log_p = out.logits[:, 0].double().log_softmax(-1).cpu()
        before = torch.full_like(log_p[:1], math.nan) if expected is None else expected
        surprisal = -torch.cat([before, log_p[:-1]]).gather(1, numbers.unsqueeze(1))[:, 0] / math.log(2)
        expected = log_p[-1:]
        yield steps_of(model, start, numbers, out.rnn, reader.before, surprisal, hidden)
        start += len(numbers)
