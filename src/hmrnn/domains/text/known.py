"""The boundaries of a text that are known: between words, of a file with marked words, of the planted hierarchy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from hmrnn.domains.text.classes import bytes_as_letters
from hmrnn.domains.text.data.planted import Planted
from hmrnn.structure.scores import Gold, ends_at, gold_at

BETWEEN_WORDS = re.compile(r"(?<=[^\W_])[\W_]+(?=[^\W_])")


def at_separators(text: str) -> dict[str, Gold]:
    """The words of a text, between runs of white space and punctuation. On which symbol a boundary is to fall:

    before   the last symbol before the run, with which a word ends
    on       the last symbol of the run
    after    the first symbol after it, with which a word begins
    """
    runs = [run.span() for run in BETWEEN_WORDS.finditer(bytes_as_letters(text))]
    places = {"before": [s - 1 for s, _ in runs], "on": [e - 1 for _, e in runs], "after": [e for _, e in runs]}
    return {name: gold_at(own, len(text)) for name, own in places.items()}


def shows_words(text: str) -> bool:
    """Whether its separators are those of words. In a text without spaces hardly any word ends but with a line."""
    runs = [run[0] for run in BETWEEN_WORDS.finditer(bytes_as_letters(text))]
    with_lines = sum("\n" in run or "\r" in run for run in runs)
    return len(runs) - with_lines >= max(1, with_lines)


def from_words(lines: Sequence[str], newline: bool) -> tuple[str, dict[str, Gold]]:
    """Utterances, one a line, their words separated by spaces: the text without spaces, and where words end.

    With `newline` each utterance of the text ends in one. Where an utterance ends, or begins, is given.
    """
    parts: list[str] = []
    last: list[int] = []  # of each word
    end = 0
    utterances: list[tuple[int, int]] = []  # the first and the last letter of each
    for words in filter(None, map(str.split, lines)):
        ends = (end + np.cumsum([len(word) for word in words]) - 1).tolist()
        utterances.append((end, ends[-1]))
        last += ends[:-1]
        parts += [*words, "\n"] if newline else words
        end = ends[-1] + 1 + newline
    text, newlines = "".join(parts), [e + 1 for _, e in utterances] if newline else []
    finals = [e for _, e in utterances]
    starts = [s for s, _ in utterances]
    return text, {
        "last of a word": Gold(ends_at(last, end), ends_at([*finals, *newlines], end), ends_at(finals, end)),
        "first of the next": Gold(
            ends_at([p + 1 for p in last], end),
            ends_at([*starts, *newlines, *finals[-1:]], end),
            ends_at([*starts[1:], *finals[-1:]], end),
        ),
    }


def from_segments(lengths: Sequence[int]) -> dict[str, Gold]:
    """Segments of so many symbols, one after the other."""
    last = (np.cumsum([length for length in lengths if length]) - 1).tolist()
    length = last[-1] + 1 if last else 0
    return {
        "last of a segment": gold_at(last[:-1], length),
        "first of the next segment": gold_at([place + 1 for place in last[:-1]], length),
    }


def from_planted(planted: Planted, start: int, end: int) -> dict[str, Gold]:
    """The words and phrases of a stretch of the planted hierarchy."""
    levels: Mapping[int, str] = {0: "word", 1: "phrase"}
    known = {}
    for level in range(planted.ends.shape[1]):
        name = levels.get(level, f"level {level + 1}")
        places = np.flatnonzero(planted.ends[start:end, level])
        known[f"last of a {name}"] = gold_at(places.tolist(), end - start)
        known[f"first of the next {name}"] = gold_at(
            [p + 1 for p in places.tolist() if p + 1 < end - start], end - start
        )
    return known
