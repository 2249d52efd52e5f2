"""Names of runs and columns in pictures: whatever they may be called."""

from __future__ import annotations

from matplotlib.legend import Legend

LONGEST_NAME = 60  # characters


def printed(name: str) -> str:
    """A name that may be long, or hold what no font has."""
    name = "".join(symbol if symbol.isprintable() else "·" for symbol in name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 + 1 :]}"


def take_literally(legend: Legend) -> None:
    """A folder's name may hold a dollar, and is no formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)
