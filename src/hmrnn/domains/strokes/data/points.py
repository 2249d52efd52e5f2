"""Pen strokes as sequences of points, and the plain format for anyone's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Points: TypeAlias = npt.NDArray[np.float32]
"""(T, 3): dx and dy from the point before (0, 0 for the first), and 1 for the last point of a stroke, else 0.
x grows to the right and y downwards."""
Stroke: TypeAlias = npt.NDArray[np.float64]
"""(n, 2): x and y of the points that the pen draws without being lifted."""

LARGEST = 1e6  # no coordinate of a pen is larger: float32 then keeps every offset to a sixteenth


def from_strokes(strokes: Iterable[Sequence[Sequence[float]] | Stroke]) -> Points:
    """The points of strokes, one after the other. Strokes without a point are no strokes."""
    drawn = [np.asarray(stroke, dtype=np.float64).reshape(-1, 2) for stroke in strokes if len(stroke)]
    if not drawn:
        raise ValueError("there is no point in it")
    places = np.concatenate(drawn)
    if not np.abs(places).max() <= LARGEST:  # also where one is not a number
        raise ValueError(f"coordinates must be numbers between -{LARGEST:,.0f} and {LARGEST:,.0f}")
    points = np.zeros((len(places), 3), dtype=np.float32)
    points[1:, :2] = np.diff(places, axis=0)
    points[np.cumsum([len(stroke) for stroke in drawn]) - 1, 2] = 1
    return points


def to_strokes(points: Points | npt.NDArray[np.float64]) -> list[Stroke]:
    """The strokes that these points draw, from (0, 0) on. One that was not ended is the last."""
    places = np.cumsum(points[:, :2], axis=0, dtype=np.float64)
    lifted = np.flatnonzero(points[:, 2] > 0.5) + 1
    return [stroke for stroke in np.split(places, lifted) if len(stroke)]


def read_json_lines(lines: Iterable[bytes], name: str) -> Iterator[Points]:
    """The sequences of a file: a JSON list of strokes on each line, each a list of [x, y]. Empty lines are skipped.

    `name` names it in an error.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield from_strokes(checked_strokes(json.loads(line)))
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError, too
            raise ValueError(f"{name}: line {number} is not a list of strokes: {error}") from None


def checked_strokes(content: Any) -> list[list[list[float]]]:
    """What JSON gave, if it is a list of strokes."""
    if not isinstance(content, list) or not all(isinstance(stroke, list) for stroke in content):
        raise ValueError("it must be a list of strokes, each a list of points [x, y]")
    for stroke in content:
        for point in stroke:
            numbers = isinstance(point, list) and all(type(value) in (int, float) for value in point)
            if not numbers or len(point) != 2:
                raise ValueError(f"a point must be two numbers [x, y]; got {json.dumps(point)[:80]}")
            if not all(abs(value) <= LARGEST for value in point):
                raise ValueError(f"coordinates must lie between -{LARGEST:,.0f} and {LARGEST:,.0f}; got {point}")
    return content


def to_json(points: Points | npt.NDArray[np.float64]) -> str:
    """A line of the plain format, without its end."""
    return json.dumps([[[float(f"{x:.7g}"), float(f"{y:.7g}")] for x, y in stroke] for stroke in to_strokes(points)])
