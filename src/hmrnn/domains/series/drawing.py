"""A series as SVG: its curves, and under them the segments of each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

import numpy as np

from hmrnn.domains.series.data.sequences import Values
from hmrnn.domains.vectors.structure import LineSegmentation
from hmrnn.printable import printable
from hmrnn.show.style import COLOURS, DARK_COLOURS
from hmrnn.structure.segments import Segment

ROW = 300  # steps side by side
STEP, LEFT = 3.0, 60.0  # widths, as all here in units of the drawing: of a step, and of the names on the left
CURVE, LANE, GAP = 44.0, 12.0, 6.0  # heights: of a curve, of a layer, and of what is between rows
WIDTH = LEFT + ROW * STEP

DARK = " ".join(f".c{i} {{ stroke: {colour} }} .f{i} {{ fill: {colour} }}" for i, colour in enumerate(DARK_COLOURS))
STYLE = f"""\
.series {{ display: block; width: 100%; height: auto; }}
.series text {{ fill: var(--soft); }}
@media (prefers-color-scheme: dark) {{ {DARK} }}
"""


def series_svg(columns: Sequence[str], found: LineSegmentation) -> str:
    """The curves of a sequence in rows of `ROW` steps. Where a number is missing the curve has a gap."""
    values, layers = found.points, found.layers
    lowest, highest = np.nanmin(values, axis=0, initial=np.inf), np.nanmax(values, axis=0, initial=-np.inf)
    height = len(columns) * CURVE + len(layers) * LANE + GAP
    parts = []
    starts = range(0, len(values), ROW)
    for row, start in enumerate(starts):
        own = [*curves(columns, values[start : start + ROW], lowest, highest)]
        for l, layer in enumerate(layers):
            top = len(columns) * CURVE + l * LANE
            own.append(label(f"layer {l + 1}", top + LANE - 2))
            own += lane(layer, start, top)
        parts.append(f'<g transform="translate(0 {row * height:g})">\n{"".join(own)}</g>\n')
    box = f'viewBox="0 0 {WIDTH:g} {len(starts) * height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="series" {box} fill="none">\n{"".join(parts)}</svg>\n'


def curves(columns: Sequence[str], values: Values, lowest: Values, highest: Values) -> Iterator[str]:
    """Of one row; each column in its own scale."""
    for d, column in enumerate(columns):
        size = float(highest[d] - lowest[d]) or 1.0
        colour, top = d % len(COLOURS), d * CURVE
        yield label(printable(column)[:12], top + CURVE / 2)
        present = ~np.isnan(values[:, d])
        for there, run in groupby(range(len(values)), key=lambda t: bool(present[t])):
            if there:
                steps = list(run)
                heights = top + 2 + (CURVE - 4) * (float(highest[d]) - values[steps, d]) / size
                points = [f"{LEFT + (t + 0.5) * STEP:.1f},{y:.1f}" for t, y in zip(steps, heights, strict=True)]
                points += points if len(points) == 1 else []  # a dot
                yield (
                    f'<polyline class="c{colour}" stroke="{COLOURS[colour]}" stroke-linecap="round" '
                    f'points="{" ".join(points)}"/>\n'
                )


def label(name: str, y: float) -> str:
    return f'<text x="0" y="{y:g}" fill="#666666" font-size="10" font-family="sans-serif">{escape(name)}</text>\n'


def lane(layer: Sequence[Segment], start: int, top: float) -> Iterator[str]:
    """The segments of a layer that are in a row, neighbours in different colours."""
    for i, segment in enumerate(layer):
        first, after = max(segment.start, start), min(segment.end, start + ROW)
        if first < after:
            colour = i % len(COLOURS)
            yield (
                f'<rect class="f{colour}" fill="{COLOURS[colour]}" x="{LEFT + (first - start) * STEP + 0.5:g}" '
                f'y="{top + 1:g}" width="{(after - first) * STEP - 1:g}" height="{LANE - 2:g}">'
                f"<title>layer {segment.layer}: steps {segment.start} to {segment.end - 1}</title></rect>\n"
            )
