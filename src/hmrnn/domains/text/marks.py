"""Segments in running text: a mark after the last symbol of each."""

from __future__ import annotations

from collections.abc import Sequence

MARKS = ("|", "‖", "⦀")  # by layer, the lowest first


def mark(z: Sequence[bool]) -> str:
    """A mark for each layer whose detector fired; one for all those beyond the last mark."""
    return "".join(MARKS[l] for l in range(len(MARKS)) if any(z[l : None if l == len(MARKS) - 1 else l + 1]))


def with_mark(symbol: str, z: Sequence[bool], delay: int) -> str:
    """A symbol, and the marks of the segments that end with it, or with a delay before it."""
    return mark(z) + symbol if delay else symbol + mark(z)


def legend(detectors: int) -> str:
    """What the marks mean."""
    beyond = " and above" if detectors > len(MARKS) else ""
    return ", ".join(f"{MARKS[l]} in layer {l + 1}" for l in range(min(detectors, len(MARKS)))) + beyond
