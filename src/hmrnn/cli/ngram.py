"""What counting alone can do: a character n-gram model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict


class NGram:
    """A character n-gram model with Witten-Bell interpolation.

        p(s | past) = (count(past s) + kinds(past) * p(s | shorter past)) / (count(past) + kinds(past))

    kinds(past) is how many different symbols were seen after it. The shortest past is empty, and before it all symbols
    of the alphabet are alike.
    """

    def __init__(self, text: str, order: int, alphabet: int) -> None:
        self.order = order
        self.alphabet = alphabet
        self.counts: list[Counter[str]] = []  # by length: of each string
        self.totals: list[defaultdict[str, int]] = []  # by length of the past: how often something followed it
        self.kinds: list[defaultdict[str, int]] = []
        for n in range(1, order + 1):
            counts = Counter(text[i : i + n] for i in range(len(text) - n + 1))
            totals: defaultdict[str, int] = defaultdict(int)
            kinds: defaultdict[str, int] = defaultdict(int)
            for string, count in counts.items():
                totals[string[:-1]] += count
                kinds[string[:-1]] += 1
            self.counts.append(counts)
            self.totals.append(totals)
            self.kinds.append(kinds)

    def probability(self, symbol: str, context: str) -> float:
        """Of a symbol after a context, of which the last order - 1 symbols count."""
        p = 1 / self.alphabet
        for n in range(min(self.order - 1, len(context)) + 1):
            past = context[len(context) - n :]
            kinds = self.kinds[n].get(past, 0)
            if kinds == 0:
                break  # this past was never seen, nor any longer one
            p = (self.counts[n][past + symbol] + kinds * p) / (self.totals[n][past] + kinds)
        return p

    def bits_per_character(self, text: str) -> float:
        """The mean of -log2 p, from the second symbol on, as `TextModel.bits_per_character` counts."""
        bits = (-math.log2(self.probability(text[i], text[max(0, i - self.order) : i])) for i in range(1, len(text)))
        return sum(bits) / (len(text) - 1)
