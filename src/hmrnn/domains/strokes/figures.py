"""Figures of handwriting for a paper: its segments, the density that a model predicts, and the handwriting itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hmrnn.domains.strokes.data.points import Points, Stroke, to_strokes
from hmrnn.domains.strokes.drawing import (
    GIVEN,
    PAGE_WIDTH,
    PEN,
    in_colours,
    on_page,
    segment_lines,
)
from hmrnn.show.style import COLOURS, TEXT_WIDTH

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Box: TypeAlias = tuple[float, float, float, float]
"""Left, right, bottom and top, as matplotlib wants them. The bottom is the larger: y grows downwards."""

INCH = 25.4  # mm
PT = INCH / 72  # mm
TITLE = 0.3  # inches for what stands above or below a panel
DECADES = 4  # of the density that are told apart
HEAT = LinearSegmentedColormap.from_list("density", ["white", "#E69F00", "#D55E00"])  # black is seen on all of it


def segments_figure(pieces: Sequence[tuple[str, npt.NDArray[np.bool_]]], points: Points) -> Figure:
    """The same handwriting once for each (title, ends), each segment in the next colour. `ends` is true at the last
    point of a segment."""
    strokes = to_strokes(points)
    left, right, bottom, top = box = around(strokes)
    figure = Figure(figsize=(TEXT_WIDTH, len(pieces) * (TITLE + drawn_height(box))), layout="constrained")
    for axes, (title, ends) in zip(figure.subplots(len(pieces), 1, squeeze=False)[:, 0], pieces, strict=True):
        segments, lines = zip(*segment_lines(strokes, ends), strict=True)
        draw(axes, lines, [COLOURS[k % len(COLOURS)] for k in segments], width=1.4, gid=title)
        axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
        axes.set_title(title, loc="left", fontsize=9)
        axes.axis("off")
    return figure


def density_figure(points: Points, x: Floats, y: Floats, density: Floats, weights: Floats) -> Figure:
    """The predicted density (len(y), len(x)) at evenly spaced places of the plane, and the handwriting over it. Under
    it the weights (T, components) of the mixture at every point."""
    if density.shape != (len(y), len(x)):
        raise ValueError(f"the density must be of shape {(len(y), len(x))}; got {density.shape}")
    box = pixel_box(x, y)
    heights = [TITLE + drawn_height(box), TITLE + 1.4]
    figure = Figure(figsize=(TEXT_WIDTH, sum(heights)), layout="constrained")
    plane, below = figure.subplots(2, 1, height_ratios=heights)
    heat = plane.imshow(density, extent=box, cmap=HEAT, norm=logarithmic(density), gid="density")
    finish(heat, plane, "density")
    strokes = to_strokes(points)
    draw(plane, strokes, ["black"] * len(strokes), width=0.6, gid="handwriting")
    shares = below.imshow(weights.T, aspect="auto", interpolation="nearest", vmin=0, cmap="cividis", gid="weights")
    finish(shares, below, "weight")
    below.set_xlabel("point", fontsize=8)
    below.set_ylabel("component", fontsize=8)
    return figure


def logarithmic(density: Floats) -> LogNorm:
    """From the highest density down to what is white, as are nothing but zeros."""
    highest = float(density.max()) or 1.0
    return LogNorm(highest / 10**DECADES, highest, clip=True)


def finish(image: AxesImage, axes: Axes, label: str) -> None:
    axes.tick_params(labelsize=8)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=8)


def raster_figure(lines: Sequence[Points], given: int = 0) -> Figure:
    """Handwriting on white, of the size, in the places and in the colours of `drawing.svg`."""
    pieces, height = on_page(lines)
    figure = Figure(figsize=(PAGE_WIDTH / INCH, height / INCH), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    for i, strokes in enumerate(pieces):
        drawn, colours = zip(*in_colours(strokes, given), strict=True)
        draw(axes, drawn, [GIVEN if colour else "black" for colour in colours], width=PEN / PT, gid=f"line {i + 1}")
    axes.set(xlim=(0, PAGE_WIDTH), ylim=(height, 0))
    axes.axis("off")
    return figure


def draw(axes: Axes, lines: Sequence[Stroke], colours: Sequence[str], width: float, gid: str) -> None:
    """Lines with round ends, and dots for those without length. In pixel graphics such a line is not seen, nor would
    be a short one whose two ends snap to the same pixel."""
    axes.autoscale(False)
    ends: dict[str, Any] = {"capstyle": "round", "joinstyle": "round", "snap": False}
    drawn = LineCollection(lines, colors=colours, linewidths=width, gid=gid, **ends)
    axes.add_collection(drawn, autolim=False)
    dots = [i for i, line in enumerate(lines) if (line == line[0]).all()]
    if dots:
        x, y = np.array([lines[i][0] for i in dots]).T
        axes.scatter(x, y, s=width**2, c=[colours[i] for i in dots], linewidths=0, gid=f"dots of {gid}")


def around(strokes: Sequence[Stroke]) -> Box:
    """A box around the strokes, with a margin."""
    places = np.concatenate(strokes)
    (left, top), (right, bottom) = places.min(axis=0).tolist(), places.max(axis=0).tolist()
    margin = 0.01 * max(right - left, bottom - top) or 1.0
    return left - margin, right + margin, bottom + margin, top - margin


def pixel_box(x: Floats, y: Floats) -> Box:
    """The outer edges of the pixels in the middle of which these places are."""
    x_half, y_half = ((at[-1] - at[0]) / (len(at) - 1) / 2 for at in (x, y))
    return float(x[0] - x_half), float(x[-1] + x_half), float(y[-1] + y_half), float(y[0] - y_half)


def drawn_height(box: Box) -> float:
    """The inches that a box as wide as the text is high, within limits for the very flat and the very tall."""
    left, right, bottom, top = box
    return min(max(TEXT_WIDTH * (bottom - top) / (right - left), 0.5), 5.0)
