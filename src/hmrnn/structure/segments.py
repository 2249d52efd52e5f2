"""The segments that a model found in a text: one after the other while it reads, or as a tree."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from hmrnn.data.text import Symbols
from hmrnn.reading import AT_ONCE
from hmrnn.structure.operations import Steps, Updates, follow, updates

if TYPE_CHECKING:
    from hmrnn.models import TextModel

LONGEST_TEXT = 10_000  # symbols of a segment that are kept for its text


@dataclass(frozen=True)
class Segment:
    """What a layer took as one piece: it ends with the symbol on which the layer's detector fired."""

    layer: int  # 1 is the lowest
    start: int  # place of its first symbol
    end: int  # one past its last
    closed: bool  # False for the one that the end of the text cut off
    text: str | None  # None if it is longer than LONGEST_TEXT
    vector: Tensor | None = None  # (H_layer,): the state that the layer hands up at the boundary, if asked for
    children: tuple[Segment, ...] = ()  # in a tree: the segments of the layer below that lie in it


@dataclass(frozen=True)
class Segmentation:
    """A text, and all that a model made of it."""

    text: str  # one character a symbol: of bytes, those from 128 are lone surrogates, as in `Symbols`
    steps: Steps
    layers: tuple[tuple[Segment, ...], ...]  # of each layer that has a detector, the lowest first

    @property
    def updates(self) -> Updates:
        """The paper's count."""
        return updates(self.steps.operations)

    def tree(self) -> tuple[Segment, ...]:
        """The segments, each with those of the layer below that lie in it.

        A segment that does not lie in one of the layer above, since it goes over its end, stands beside it, at the top.
        """
        below: list[Segment] = []
        for layer in self.layers:
            starts = [parent.start for parent in layer]
            children: list[list[Segment]] = [[] for _ in layer]
            loose: list[Segment] = []
            for child in below:
                around = bisect_right(starts, child.start) - 1
                (children[around] if child.end <= layer[around].end else loose).append(child)
            parents = [replace(parent, children=tuple(own)) for parent, own in zip(layer, children, strict=True)]
            below = sorted([*parents, *loose], key=lambda s: (s.start, -s.end))
        return tuple(below)


def segment(model: TextModel, text: str | bytes, *, vectors: bool = False) -> Segmentation:
    """All about a text that fits into memory."""
    return segment_numbers(model, model.symbols.encode(text), vectors=vectors)


def segment_numbers(model: TextModel, numbers: Tensor, *, vectors: bool = False) -> Segmentation:
    """The same of a text that is given by the numbers of its symbols, (T,)."""
    parts = list(follow(model, numbers.split(AT_ONCE), hidden=vectors))
    if not parts:
        raise ValueError("the text is empty: there is nothing to segment")
    found = list(segments(parts, model.symbols))
    layers = range(1, parts[0].z.shape[1] + 1)
    return Segmentation(
        model.symbols.text(numbers.tolist()),
        Steps.joined(parts),
        tuple(tuple(s for s in found if s.layer == layer) for layer in layers),
    )


def segments(parts: Iterable[Steps], symbols: Symbols) -> Iterator[Segment]:
    """Each segment as soon as it ends; at one place those of lower layers first. Those that the text cut off come last.

    With the vectors of their layer, if the steps have hidden states.
    """
    recent, end = "", 0  # the last symbols, as far back as a segment's text may need them
    starts: list[int] = []

    def cut(layer: int, upto: int, vector: Tensor | None, closed: bool) -> Segment:
        start = starts[layer]
        starts[layer] = upto
        first = len(recent) - (end - start)
        text = None if upto - start > LONGEST_TEXT else recent[first : first + upto - start]
        return Segment(layer + 1, start, upto, closed, text if text is None else symbols.readable(text), vector)

    for part in parts:
        starts = starts or [0] * part.z.shape[1]
        recent = recent[-LONGEST_TEXT:] + symbols.text(part.numbers.tolist())
        end = part.start + len(part.numbers)
        for t, layer in part.z.nonzero().tolist():
            yield cut(layer, part.start + t + 1, None if part.h is None else part.h[layer][t].clone(), closed=True)
    for layer, start in enumerate(starts):
        if start < end:
            yield cut(layer, end, None, closed=False)
