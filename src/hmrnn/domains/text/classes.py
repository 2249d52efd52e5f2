"""Kinds of symbols, by their place in a word: on which of them do detectors fire?"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

CLASSES = ("space", "first", "middle", "last", "punctuation", "digit")  # first, middle and last letter of a word


def bytes_as_letters(text: str) -> str:
    """Bytes from 128 are mostly parts of letters; to `re`, the surrogates that stand for them are none."""
    return re.sub("[\udc80-\udcff]", "x", text)


def symbol_classes(text: str) -> npt.NDArray[np.int64]:
    """(T,): for each symbol its place in CLASSES. The only letter of a word is its first."""
    text = bytes_as_letters(text)
    found = np.full(len(text), CLASSES.index("punctuation"))
    for i, symbol in enumerate(text):
        if symbol.isspace():
            found[i] = CLASSES.index("space")
        elif symbol.isdigit():
            found[i] = CLASSES.index("digit")
    for word in re.finditer(r"[^\W\d_]+", text):
        found[word.start() : word.end()] = CLASSES.index("middle")
        found[word.end() - 1] = CLASSES.index("last")
        found[word.start()] = CLASSES.index("first")
    return found


def rates_by_class(text: str, z: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """(classes, L-1): on which share of the symbols of a class each detector fires; NaN for a class without any."""
    kinds = symbol_classes(text)
    rates = [z[kinds == k].mean(0) if (kinds == k).any() else np.full(z.shape[1], np.nan) for k in range(len(CLASSES))]
    return np.stack(rates)
