"""The segments that a model found in a sequence: one after the other while it reads, or as a tree."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from hmrnn.structure.operations import Steps, Updates, updates

if TYPE_CHECKING:
    import pandas

LONGEST_TEXT = 10_000  # symbols of a segment that are kept for its text
Written: TypeAlias = Callable[[list[int]], str]  # the text of symbols, which are given by their numbers


@dataclass(frozen=True)
class Segment:
    """A segment of a layer. It ends with the symbol or point on which the detector of the layer fired; in a model with
    a `boundary_delay` of 1, with the one before.

    Attributes:
        layer: Number of the layer; 1 is the lowest.
        start: Index of the first symbol or point.
        end: One past the index of the last.
        closed: False if the sequence ended before the segment did.
        text: The text; None for points, and if it is longer than 10,000 symbols.
        vector: (H_layer,) hidden state of the layer at the boundary, if it was requested.
        children: In a tree, the segments of the layer below that lie in it.
    """

    layer: int
    start: int
    end: int
    closed: bool
    text: str | None
    vector: Tensor | None = None
    children: tuple[Segment, ...] = ()

    def __repr__(self) -> str:
        text = "" if self.text is None else f", {self.text!r}"
        count = len(self.children)
        children = f", {count} {'child' if count == 1 else 'children'}" if count else ""
        still = "" if self.closed else ", open"
        return f"Segment(layer {self.layer}, {self.start} to {self.end}{text}{children}{still})"


@dataclass(frozen=True, repr=False)
class Found:
    """The segments that a model found in a sequence. A notebook shows them in colours.

    Attributes:
        steps: Operations, boundaries, norms and surprisal of every step.
        layers: Segments of each layer with a detector, the lowest first.
    """

    steps: Steps
    layers: tuple[tuple[Segment, ...], ...]

    def __repr__(self) -> str:
        segments = "/".join(str(len(layer)) for layer in self.layers)
        return f"{type(self).__name__}({len(self.steps.inputs)} steps, segments {segments or 'none'})"

    @property
    def ends(self) -> list[list[int]]:
        """The last step of each closed segment, layer by layer."""
        return [[segment.end - 1 for segment in layer if segment.closed] for layer in self.layers]

    def to_dataframe(self) -> pandas.DataFrame:
        """Returns a table with a row for each segment of all layers, in the order of their starts. Needs pandas."""
        import pandas

        surprisal = self.steps.surprisal.nan_to_num()
        rows = [
            {
                "layer": s.layer,
                "start": s.start,
                "end": s.end,
                "closed": s.closed,
                **({} if s.text is None else {"text": s.text}),
                "surprisal": float(surprisal[s.start : s.end].sum()),
            }
            for s in sorted((s for layer in self.layers for s in layer), key=lambda s: (s.start, s.layer))
        ]
        return pandas.DataFrame(rows)

    @property
    def updates(self) -> Updates:
        """How many layer steps were computed, as the paper counts."""
        return updates(self.steps.operations)

    def text_of(self, start: int, end: int) -> str | None:
        """Returns the text from `start` to `end`, if the sequence is a text."""
        return None

    def tree(self, snap: bool = False) -> tuple[Segment, ...]:
        """Returns the segments as a tree: each is a child of the segment of the next layer above in which it lies.

        Layers need not nest: the detector of a layer that FLUSHes is evaluated again, and may fire inside a segment of
        the layer below. A segment that crosses the end of one in the layer above becomes a child of the layer above
        that, if it lies in a segment there, else a root.

        Args:
            snap: Extend a segment that ends inside one of the layer below to that one's end. Every child then lies in
                a parent, and the children of a segment cover it.
        """
        below: list[Segment] = []
        for layer in snapped(self.layers, self.text_of) if snap else self.layers:
            starts = [parent.start for parent in layer]
            children: list[list[Segment]] = [[] for _ in layer]
            loose: list[Segment] = []
            for child in below:
                around = bisect_right(starts, child.start) - 1
                (children[around] if child.end <= layer[around].end else loose).append(child)
            parents = [replace(parent, children=tuple(own)) for parent, own in zip(layer, children, strict=True)]
            below = sorted([*parents, *loose], key=lambda s: (s.start, -s.end))
        return tuple(below)


def snapped(
    layers: Sequence[Sequence[Segment]], text_of: Callable[[int, int], str | None]
) -> list[tuple[Segment, ...]]:
    """Layers that nest: each segment ends where one of the layer below does, at the place of its own end or after it.

    Of those that end inside the same segment of the layer below, the last one stays, and takes the others in.
    """
    nested = [tuple(layer) for layer in layers[:1]]
    for layer in layers[1:]:
        ends = [child.end for child in nested[-1]]
        last = {bisect_left(ends, segment.end): segment for segment in layer}  # by the last child of each
        own, first = [], 0
        for i, segment in last.items():
            children = nested[-1][first : i + 1]
            start, end = children[0].start, children[-1].end
            closed = segment.closed and children[-1].closed
            own.append(replace(segment, start=start, end=end, closed=closed, text=text_of(start, end)))
            first = i + 1
        nested.append(tuple(own))
    return nested


def ends_of(z: Sequence[Sequence[bool]], delay: int) -> list[list[int]]:
    """For each step, a 1 for each layer of which a segment ends with it: of the last `delay` steps that is not known
    yet. Before the first step, nothing has ended."""
    open_ends = [[0] * len(z[0])] * delay if z else []
    return [[int(fires) for fires in layers] for layers in z[delay:]] + open_ends[: len(z)]


def by_layer(parts: Sequence[Steps], written: Written | None, delay: int = 0) -> tuple[tuple[Segment, ...], ...]:
    found = list(segments(parts, written, delay))
    return tuple(tuple(s for s in found if s.layer == l + 1) for l in range(parts[0].z.shape[1]))


def segments(parts: Iterable[Steps], written: Written | None, delay: int = 0) -> Iterator[Segment]:
    """Each segment as soon as it ends; at one place those of lower layers first. Those that the end cut off come last.

    With the vectors of their layer, if the steps have hidden states. `written` makes the segments' texts.
    `delay`: how many steps after a segment's last one its detector fires.
    """
    recent: list[int] = []  # the last symbols, as far back as a segment's text may need them
    starts: list[int] = []
    end = 0

    def cut(layer: int, upto: int, vector: Tensor | None, closed: bool) -> Segment:
        start, text = starts[layer], None
        starts[layer] = upto
        if written is not None and upto - start <= LONGEST_TEXT:
            first = len(recent) - (end - start)
            text = written(recent[first : first + upto - start])
        return Segment(layer + 1, start, upto, closed, text, vector)

    for part in parts:
        starts = starts or [0] * part.z.shape[1]
        if written is not None:
            recent = recent[-LONGEST_TEXT - delay :] + part.inputs.tolist()
        end = part.start + len(part.inputs)
        for t, layer in part.z.nonzero().tolist():
            last = part.start + t + 1 - delay
            if last > starts[layer]:  # before the first symbol, nothing has ended
                yield cut(layer, last, None if part.h is None else part.h[layer][t].clone(), closed=True)
    for layer, start in enumerate(starts):
        if start < end:
            yield cut(layer, end, None, closed=False)
