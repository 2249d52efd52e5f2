"""Corpora by name."""

from __future__ import annotations


def builtin_text() -> str:
    """Some 465,000 characters of English prose that every CPython carries: the texts behind Python's `help()`."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))
