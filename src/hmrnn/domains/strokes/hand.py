"""From a drawing on a screen to points as a model knows them, and back.

A hand draws in pixels, and a mouse tells of itself a hundred times a second; a model knows the units of its data, and
points as far apart as they were there. The page rules lines on which a tall letter is LETTER pixels high. So the scale
is fixed, and what was drawn keeps its segments while more is drawn. How high a tall letter is in the model's units, and
how far apart its points are, is asked of the model itself: it writes a line when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmrnn.domains.strokes.data.points import (
    Points,
    Stroke,
    from_strokes,
    to_strokes,
)
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.explorer.requests import MOST_POINTS, Refused

LETTER = 60.0  # pixels
MEASURED = 600  # points that the model writes to be measured
TALL = 90  # percent of the strokes are less high than a tall letter
POINTS_A_LETTER = (3.0, 60.0)  # along the height of a tall letter: a model that has learnt nothing may say anything


@dataclass(frozen=True)
class Hand:
    """How a model writes, in its own units."""

    height: float  # of a tall letter
    spacing: float  # of the points within a stroke

    @staticmethod
    def of(model: StrokeModel) -> Hand:
        return Hand.measured(model.generate(max_new=MEASURED, bias=1.0, seed=0), float(model.deviation[:2].norm()))

    @staticmethod
    def measured(points: Points, typical: float) -> Hand:
        """`typical`: an offset to go by if the points tell nothing."""
        inside = points[1:][points[:-1, 2] < 0.5, :2]  # offsets that draw
        heights = [np.ptp(stroke[:, 1]) for stroke in to_strokes(points) if len(stroke) > 1]
        spacing = positive(float(np.median(np.hypot(*inside.T))) if len(inside) else 0.0, typical)
        height = positive(float(np.percentile(heights, TALL)) if heights else 0.0, 8 * spacing)
        few, many = POINTS_A_LETTER
        return Hand(height, float(np.clip(spacing, height / many, height / few)))

    @property
    def unit(self) -> float:
        """The model's units in a pixel."""
        return self.height / LETTER

    def points(self, strokes: Sequence[Sequence[Sequence[float]]], made: Sequence[bool]) -> Points:
        """What the model reads of strokes in pixels. Those that it made itself have its spacing already."""
        scaled = [np.array(stroke, dtype=np.float64) * self.unit for stroke in strokes]
        steps = sum(len(s) if own else 1 + length(s) / self.spacing for s, own in zip(scaled, made, strict=True))
        if steps > MOST_POINTS:
            raise Refused(f"this drawing is too long: at most {MOST_POINTS:,} points are read, about {steps:,.0f} here")
        drawn = [s if own else spaced(s, self.spacing) for s, own in zip(scaled, made, strict=True)]
        try:
            return from_strokes(drawn) if drawn else np.zeros((0, 3), dtype=np.float32)
        except ValueError as error:  # a unit of the model may be many pixels
            raise Refused(f"this drawing is too far from the middle of the screen for the model: {error}") from None

    def pixels(self, points: Points, origin: Sequence[float]) -> npt.NDArray[np.float64]:
        """(T, 2): where on the screen points are, the first of them at `origin`."""
        return np.cumsum(points[:, :2], axis=0, dtype=np.float64) / self.unit + origin


def positive(value: float, otherwise: float) -> float:
    return value if 0 < value < float("inf") else otherwise


def length(stroke: Stroke) -> float:
    return float(np.hypot(*np.diff(stroke, axis=0).T).sum())


def spaced(stroke: Stroke, spacing: float) -> Stroke:
    """Points at even distances along a stroke, and its end: while a stroke grows, all but its last points stay."""
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(stroke, axis=0).T))])
    places = np.arange(0, along[-1], spacing)
    if len(places) > 1 and along[-1] - places[-1] < spacing / 2:
        places = places[:-1]
    places = np.append(places, along[-1]) if along[-1] > 0 else along[:1]
    return np.stack([np.interp(places, along, axis) for axis in stroke.T], axis=1)
