"""Sequences to learn from."""

from hmrnn.data.text import Symbols

__all__ = ["Symbols"]
