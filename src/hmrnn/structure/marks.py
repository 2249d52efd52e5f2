"""Segments in running text: a mark after each symbol on which one ends."""

from __future__ import annotations

from collections.abc import Sequence

MARKS = ("|", "‖", "⦀")  # by layer, the lowest first


def mark(z: Sequence[bool]) -> str:
    """The mark of the highest layer whose detector fired, or nothing."""
    highest = max((l for l, fired in enumerate(z) if fired), default=None)
    return "" if highest is None else MARKS[min(highest, len(MARKS) - 1)]


def legend(detectors: int) -> str:
    """What the marks mean."""
    return ", ".join(f"{MARKS[l]} in layer {l + 1}" for l in range(min(detectors, len(MARKS))))
