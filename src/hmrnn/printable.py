"""What may be printed: texts, paths and names may come from a stranger, and a terminal obeys what it is told."""

from __future__ import annotations

import sys
from typing import TextIO
from unicodedata import category

NAMED = 20  # things of one kind that a message names: those beyond are only counted


def printable(text: object, kept: str = "") -> str:
    """A text in which control characters, such as those that begin an escape sequence, are seen as \\x1b and the like.

    So are characters that no font has or that turn the line around; but not those in `kept`."""
    return "".join(own if own.isprintable() or own in kept else escaped(own) for own in str(text))


def escaped(symbol: str) -> str:
    return symbol.encode("unicode_escape").decode()


def for_stream(text: str, stream: TextIO | None = None) -> str:
    """A text that is itself what was asked for: as it is for a file or a pipe; on a terminal its control characters are
    seen, and not obeyed."""
    if not (stream or sys.stdout).isatty():
        return text
    return "".join(escaped(own) if category(own) in ("Cc", "Cs") and own not in "\n\t" else own for own in text)
