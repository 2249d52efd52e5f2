"""Progress bars."""

from __future__ import annotations

import sys


def show_bar(wanted: bool) -> bool:
    """Whether there is someone to see it."""
    return wanted and sys.stderr.isatty()
