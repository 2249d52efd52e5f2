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
    model with a delay it comes with the next symbol: until then the line's end is held back. A mark stands `instead_of`
    what begins the symbol after it, if that is given.
    """

    def __init__(self, delay: int, mark: MarkOf = mark, instead_of: str = "") -> None:
        self.delay, self.mark, self.instead_of = delay, mark, instead_of
        self.begun = self.ended = False  # something was read; a segment ended with it
        self.held = ""

    def __call__(self, symbol: str, z: Sequence[bool]) -> str:
        """What can be written now that this symbol was read."""
        own = self.mark(z)
        if not self.delay:
            symbol, self.ended = self._after_mark(symbol), bool(own)
            return own + symbol if symbol == "\n" else symbol + own
        self.ended = self.begun and bool(own)  # before the first symbol, nothing has ended
        ready = (own if self.ended else "") + self.held
        self.begun, self.held, symbol = True, "", self._after_mark(symbol)
        if symbol == "\n":
            self.held = symbol
            return ready
        return ready + symbol

    def _after_mark(self, symbol: str) -> str:
        return symbol.removeprefix(self.instead_of) if self.ended else symbol

    def rest(self) -> str:
        """What was held back at the end."""
        held, self.held = self.held, ""
        return held


def legend(detectors: int) -> str:
    """What the marks mean."""
    beyond = " and above" if detectors > len(MARKS) else ""
    return ", ".join(f"{MARKS[l]} in layer {l + 1}" for l in range(min(detectors, len(MARKS)))) + beyond
