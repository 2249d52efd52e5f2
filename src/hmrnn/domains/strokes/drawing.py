"""Handwriting as SVG: for a pen plotter, drawing itself, or coloured by segments; and a page of such drawings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from hmrnn.domains.strokes.data.points import Points, Stroke, to_strokes
from hmrnn.domains.vectors.structure import LineSegmentation
from hmrnn.show.style import COLOURS, DARK_COLOURS

# Everything is laid out in millimetres of paper: a drawing then has one size for pens, screens and pixels, and three
# decimals are a thousandth of a millimetre, whatever units the points came in.
PAGE_WIDTH = 180.0
TALLEST = 120.0  # for one piece: a few upright strokes do not make a page of metres
MARGIN = 5.0
GAP = 5.0  # between two pieces
PEN = 0.5
GIVEN = COLOURS[0]  # of a line that a model goes on with; what it adds is black

POINTS_A_SECOND = 100.0  # about as often as a digitiser looks at the pen


def svg(lines: Sequence[Points], given: int = 0) -> str:
    """Pieces of handwriting below each other, one path for each stroke of the pen and nothing else: fit for a plotter.
    The first `given` points of each are drawn in another colour.

    The page is 180 mm wide."""
    pieces, height = on_page(lines)
    groups = (
        group((path(line, colour) for line, colour in in_colours(strokes, given)), 'class="line"') for strokes in pieces
    )
    return document(groups, height, f'class="handwriting" {paper(height)}')


def in_colours(strokes: Sequence[Stroke], given: int) -> Iterator[tuple[Stroke, str]]:
    """The strokes with their attributes, cut after so many points: what was given has a colour, what was added none."""
    ends = np.arange(1, sum(map(len, strokes)) + 1) == given
    for part, line in segment_lines(strokes, ends):
        yield line, f'class="given" stroke="{GIVEN}" ' if given and part == 0 else ""


def animated_svg(lines: Sequence[Points], given: int = 0) -> str:
    """The same drawing, drawing itself once, at about the speed of a pen: a point and a lift of it take equally long.

    It stands finished from the start for whoever prefers reduced motion, and where styles are not understood."""
    pieces, height = on_page(lines)
    drawn = [list(in_colours(strokes, given)) for strokes in pieces]
    begin = accumulate((len(line) + 1 for own in drawn for line, _ in own), initial=0)
    step = 1 / POINTS_A_SECOND
    groups = [
        group(
            (path(line, colour + timing(next(begin) * step, len(line) * step)) for line, colour in own), 'class="line"'
        )
        for own in drawn
    ]
    return document([MOTION, *groups], height, f'class="handwriting drawn" {paper(height)}')


# Only the animation knows of dashes: before it a stroke is hidden, after it drawn like any other. A dot, which has no
# length to dash, appears when its time is over.
MOTION = """\
<style>
@media (prefers-reduced-motion: no-preference) { .drawn path { animation: draw linear backwards } }
@keyframes draw { from { visibility: hidden; stroke-dasharray: 0 1 } to { visibility: visible; stroke-dasharray: 1 1 } }
</style>
"""


def timing(begin: float, duration: float) -> str:
    times = f"animation-delay:{number(begin)}s;animation-duration:{number(duration)}s"
    return f'pathLength="1" style="{times}"'


def coloured_svg(points: Points, ends: npt.NDArray[np.bool_]) -> str:
    """A piece of handwriting, each segment in the next colour. `ends` is true at the last point of a segment.

    A group of paths for each segment; its classes `c0` to `c5` let a page choose other colours."""
    [strokes], height = on_page([points])
    edges = [0, *(np.flatnonzero(ends) + 1).tolist(), len(points)]
    groups = []
    for segment, own in groupby(segment_lines(strokes, ends), key=itemgetter(0)):
        name = f"segment {segment + 1}: points {edges[segment] + 1} to {edges[segment + 1]}"
        colour = segment % len(COLOURS)
        content = [f"<title>{name}</title>\n", *(path(line) for _, line in own)]
        groups.append(group(content, f'class="segment c{colour}" stroke="{COLOURS[colour]}"'))
    return document(groups, height, 'class="handwriting coloured"')


def pieces(line: LineSegmentation) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """By what a line can be coloured: a name, and where a piece ends."""
    layers = [(f"segments of layer {l + 1} (z{l + 1})", z) for l, z in enumerate(line.steps.z.numpy().T)]
    return [("pen strokes", line.points[:, 2] > 0.5), *layers[::-1]]


def segment_lines(strokes: Sequence[Stroke], ends: npt.NDArray[np.bool_]) -> Iterator[tuple[int, Stroke]]:
    """The strokes, cut where segments end: the number of the segment, from 0 on, and its points in the stroke.

    The line that leads to a point belongs to the point's segment: the point before it comes along."""
    length = sum(len(stroke) for stroke in strokes)
    if ends.shape != (length,):
        raise ValueError(f"there must be one end for each of the {length} points; got {ends.shape}")
    segments: npt.NDArray[np.int_] = np.cumsum(ends) - ends
    start = 0
    for stroke in strokes:
        own = segments[start : start + len(stroke)]
        start += len(stroke)
        cuts = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), len(stroke)]
        for first, after in pairwise(cuts):
            yield int(own[first]), stroke[max(first - 1, 0) : after]


def on_page(lines: Sequence[Points]) -> tuple[list[list[Stroke]], float]:
    """The strokes of each line where they stand on the page, all in one scale, and the height of the page."""
    pieces = [to_strokes(line) for line in lines]
    if not all(pieces) or not pieces:
        raise ValueError("there is no point to draw")
    corners = [np.min(np.concatenate(strokes), axis=0) for strokes in pieces]
    sizes = np.array([np.ptp(np.concatenate(strokes), axis=0) for strokes in pieces])
    room = np.array([PAGE_WIDTH - 2 * MARGIN, TALLEST])
    scale = 1 / ((sizes / room).max() or 1)  # dots alone have no size
    *tops, end = accumulate(sizes[:, 1] * scale + GAP, initial=MARGIN)
    placed = [
        [(stroke - corner) * scale + (MARGIN, top) for stroke in strokes]
        for strokes, corner, top in zip(pieces, corners, tops, strict=True)
    ]
    return placed, float(end) - GAP + MARGIN


def document(content: Iterable[str], height: float, attributes: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {attributes} viewBox="0 0 {number(PAGE_WIDTH)} {number(height)}" '
        f'fill="none" stroke="black" stroke-width="{number(PEN)}" stroke-linecap="round" stroke-linejoin="round">\n'
        f"{''.join(content)}</svg>\n"
    )


def paper(height: float) -> str:
    return f'width="{number(PAGE_WIDTH)}mm" height="{number(height)}mm"'


def group(content: Iterable[str], attributes: str) -> str:
    return f"<g {attributes}>\n{''.join(content)}</g>\n"


def path(places: Stroke, attributes: str = "") -> str:
    """One path. A single point is a line to itself, which round ends make a dot."""
    first, *others = (f"{number(x)} {number(y)}" for x, y in places.tolist())
    return f'<path d="M {first} L {" ".join(others or [first])}" {attributes}/>\n'


def number(value: float) -> str:
    """At most three decimals."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


DARK = " ".join(f".c{i} {{ stroke: {colour} }}" for i, colour in enumerate(DARK_COLOURS))
STYLE = f"""\
.handwriting {{ display: block; width: 100%; height: auto; stroke: currentColor; }}
@media (prefers-color-scheme: dark) {{ {DARK} }}
"""
