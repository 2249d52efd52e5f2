"""How many ways a text goes on after three symbols: the teacher of runs that were begun before `Branching`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ORDER = 3  # symbols of context: enough to know where one is in a word, too few to know what the word is part of
COUNTED = 5_000_000  # symbols of a text: more would not tell more


class LastThree:
    """The entropy of the symbol that follows each context of `ORDER` symbols, counted in a text."""

    past = ORDER - 1  # symbols before a step that `evidence` needs to see
    rates: Sequence[float] = ()  # it tells of none
    delay = 0  # a detector is to fire on a segment's last symbol

    def __init__(self, numbers: npt.NDArray[Any], alphabet: int) -> None:
        self.alphabet = alphabet
        symbols = numbers[:COUNTED].astype(np.int64)
        self.contexts, context = np.unique(self._keys(symbols[:-1]), return_inverse=True)
        pairs, counts = np.unique(context * alphabet + symbols[ORDER:], return_counts=True)
        context = pairs // alphabet
        share = counts / np.bincount(context, counts)[context]
        self.bits = np.bincount(context, -share * np.log2(share))
        self.mean = float(self.bits.mean()) if len(self.bits) else 0.0

    def _keys(self, symbols: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(T, …) to (T - ORDER + 1, …): each context as one number."""
        steps = max(0, len(symbols) - ORDER + 1)
        keys = np.zeros((steps, *symbols.shape[1:]), dtype=np.int64)
        for i in range(ORDER):
            keys = keys * self.alphabet + symbols[i : steps + i]
        return keys

    def evidence(self, symbols: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """(past + T, B) symbols to (T, B): in bits, after each but the first ones. The mean where a context was never
        seen."""
        keys = self._keys(symbols)
        if len(self.contexts) == 0:
            return np.zeros(keys.shape, dtype=np.float32)
        place = np.minimum(np.searchsorted(self.contexts, keys), len(self.contexts) - 1)
        bits = np.where(self.contexts[place] == keys, self.bits[place], self.mean)
        return np.asarray(bits, dtype=np.float32)
