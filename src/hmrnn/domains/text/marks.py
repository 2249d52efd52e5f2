"""Segments in running text: a mark after the last symbol of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

MARKS = ("|", "‖", "⦀")  # by layer, the lowest first
MarkOf: TypeAlias = Callable[[Sequence[bool]], str]
"""What marks the ends of segments, from the boundaries of all layers at a step."""


def mark(z: Sequence[bool]) -> str:
    """A mark for each layer whose detector fired; one for all those beyond the last mark."""
    return "".join(MARKS[l] for l in range(len(MARKS)) if any(z[l : None if l == len(MARKS) - 1 else l + 1]))


def mark_of_layer(layer: int, separator: str | None = None) -> MarkOf:
    """The marks of one layer, 1 being the lowest, or what is to stand in their place."""
    own = MARKS[min(layer, len(MARKS)) - 1] if separator is None else separator
    return lambda z: own if z[layer - 1] else ""


class Marked:
    """Puts marks into a text, symbol by symbol.

    The mark of a segment that ends with a line stands at the end of that line, and not at the start of the next. In a
    model with a delay it comes with the next symbol: until then the line's end is held back.
    """

    def __init__(self, delay: int, mark: MarkOf = mark) -> None:
        self.delay, self.mark = delay, mark
        self.begun = False
        self.held = ""

    def __call__(self, symbol: str, z: Sequence[bool]) -> str:
        """What can be written now that this symbol was read."""
        own = self.mark(z)
        if not self.delay:
            return own + symbol if symbol == "\n" else symbol + own
        ready = (own if self.begun else "") + self.held  # before the first symbol, nothing has ended
        self.begun, self.held = True, ""
        if symbol == "\n":
            self.held = symbol
            return ready
        return ready + symbol

    def rest(self) -> str:
        """What was held back at the end."""
        held, self.held = self.held, ""
        return held


def legend(detectors: int) -> str:
    """What the marks mean."""
    beyond = " and above" if detectors > len(MARKS) else ""
    return ", ".join(f"{MARKS[l]} in layer {l + 1}" for l in range(min(detectors, len(MARKS)))) + beyond
