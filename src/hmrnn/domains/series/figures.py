"""Figures of a series for a paper: its curves, how well they were predicted, and the segments of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmrnn.domains.series.data.sequences import Known, Values
from hmrnn.show.names import printed
from hmrnn.show.style import COLOURS, TEXT_WIDTH

CURVE, LANE, AXIS = 0.8, 0.24, 0.5  # inches: of a curve, of a row of segments, and for what stands below
MOST_CURVES = 12


def series_figure(
    columns: Sequence[str],
    values: Values,
    z: npt.NDArray[np.bool_],
    primed: int = 0,
    *,
    first: int = 0,
    surprisal: npt.NDArray[np.float64] | None = None,
    known: Known | None = None,
) -> Figure:
    """Steps of a sequence from step `first` on: its curves (the first 12), how unlikely each step was, and under them
    the segments of each layer and the known ones. What lies left of `primed` was given."""
    shown = [printed(column) for column in columns[:MOST_CURVES]]
    rows = {**lanes(z), **{f"{name}s (known)": ends for name, ends in (known or {}).items()}}
    heights = [CURVE] * (len(shown) + (surprisal is not None)) + ([LANE * len(rows) + 0.1] if rows else [])
    figure = Figure(figsize=(TEXT_WIDTH, sum(heights) + AXIS), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    steps = np.arange(first, first + len(values))
    for d, (column, axes) in enumerate(zip(shown, panels, strict=False)):
        colour = COLOURS[d % len(COLOURS)]
        axes.plot(steps, values[:, d], color=colour, linewidth=1.2, marker=".", markersize=2, gid=f"curve {column}")
        axes.set_ylabel(column, fontsize=8, parse_math=False)
    if surprisal is not None:
        panels[len(shown)].plot(steps, surprisal, color="black", linewidth=0.8, gid="surprisal")
        panels[len(shown)].set_ylabel("-log p\n(nats)", fontsize=8)
    if rows:
        draw_lanes(panels[-1], rows, first)
    for axes in panels:
        axes.tick_params(labelsize=8)
        if primed:
            axes.axvline(first + primed - 0.5, color="#555555", linestyle="--", linewidth=0.8)
        for end in np.flatnonzero(z[:, 0]) if z.shape[1] else ():
            axes.axvline(first + end + 0.5, color="#bbbbbb", linewidth=0.5, zorder=0)
    panels[-1].set_xlim(first - 0.5, first + len(values) - 0.5)
    panels[-1].set_xlabel("step", fontsize=8)
    return figure


def lanes(z: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[np.bool_]]:
    return {f"layer {l + 1}": z[:, l] for l in range(z.shape[1])}


def draw_lanes(axes: Axes, rows: Mapping[str, npt.NDArray[np.bool_]], first: int) -> None:
    """A row of segments for each name, the first at the top: neighbours in different colours."""
    for row, (name, ends) in enumerate(rows.items()):
        cuts = np.unique([0, *(np.flatnonzero(ends) + 1), len(ends)])
        spans = [(first + start - 0.5, after - start) for start, after in pairwise(cuts)]
        colours = [COLOURS[i % len(COLOURS)] for i in range(len(spans))]
        axes.broken_barh(spans, (-row - 0.4, 0.8), facecolors=colours, edgecolors="white", gid=f"segments of {name}")
    axes.set_yticks([-row for row in range(len(rows))], list(rows))
    axes.set_ylim(-len(rows) + 0.4, 0.6)
