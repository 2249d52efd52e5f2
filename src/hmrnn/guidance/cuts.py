"""A text cut into segments: by how uncertain its next symbol is, by a lexicon, and how many bits a cut saves.

All of it works on numbers of symbols, whatever they stand for: letters, or the segments of a layer below.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]
Ends = npt.NDArray[np.bool_]  # (T,): whether a segment ends with this symbol

BASE = 6364136223846793005  # of the polynomial by which a run of symbols becomes one number, modulo 2**64
DOUBT = 2.0  # how many symbols' worth of evidence a shorter context is, in that of a longer one
UNSEEN_BITS = np.uint64(44)  # of a number of 64 bits, in a table of its first ones
LONGEST = 24  # symbols of a segment that the lexicon may give again
STRETCH = 300  # symbols that are cut again at once, from one end of a segment to another


def keys_of(symbols: npt.NDArray[Any], length: int) -> Keys:
    """(T, …) to (T - length + 1, …): each run of `length` symbols as one number.

    Two runs have the same by accident once in 2**64 pairs, so that an alphabet may have any size.
    """
    steps = max(0, len(symbols) - length + 1)
    single = _mixed(symbols)
    keys = np.zeros((steps, *symbols.shape[1:]), dtype=np.uint64)
    for i in range(length):
        keys = keys * np.uint64(BASE) + single[i : steps + i]
    return keys


def _mixed(symbols: npt.NDArray[Any]) -> Keys:
    """SplitMix64: numbers that differ in every bit, of symbols that follow one another."""
    x = (symbols.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def entropy_after(symbols: Integers, length: int, alphabet: int) -> Floats:
    """(T,): in bits, of the symbol that comes after the last `length` ones, counted in the same text."""
    padded = np.concatenate([np.full(length - 1, alphabet), symbols])
    _, context = np.unique(keys_of(padded, length), return_inverse=True)
    pairs, counts = np.unique(context[:-1] * alphabet + symbols[1:], return_counts=True)
    before = pairs // alphabet
    share = counts / np.bincount(before, counts)[before]
    bits = np.bincount(before, -share * np.log2(share), minlength=int(context[-1]) + 1)
    return np.asarray(bits[context])


def bits_of_spellings(symbols: Integers, lengths: Integers, alphabet: int) -> Floats:
    """(V,): what each of a list of words costs, of so many symbols each, one word after the other.

    Each symbol is predicted by the one before it, in the list alone, and so are a word's end and its first symbol. Each
    is left out of the counts that predict it, and rare contexts lean on shorter ones.
    """
    end = np.cumsum(lengths + 1) - 1
    spelled = np.full(len(symbols) + len(lengths), alphabet)
    spelled[np.delete(np.arange(len(spelled)), end)] = symbols
    before = np.concatenate([[alphabet], spelled[:-1]])
    share = (np.bincount(spelled)[spelled] - 1 + DOUBT / (alphabet + 1)) / (len(spelled) - 1 + DOUBT)
    pairs = how_often(before * (alphabet + 1) + spelled)
    share = (pairs - 1 + DOUBT * share) / (np.bincount(before)[before] - 1 + DOUBT)
    return np.add.reduceat(-np.log2(share), np.concatenate([[0], end[:-1] + 1]))


def first_bits(keys: Keys) -> npt.NDArray[np.bool_]:
    """Which first bits a key may have: to look here first saves most of the searches among the keys."""
    table = np.zeros(1 << 64 - int(UNSEEN_BITS), dtype=bool)
    table[keys >> UNSEEN_BITS] = True
    return table


def how_often(numbers: Integers) -> Integers:
    """(T,): how often each number occurs among all."""
    if numbers.max() < 4 * len(numbers):  # a table of all numbers is faster than sorting them
        return np.bincount(numbers)[numbers]
    _, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return np.asarray(counts[which])


class Lexicon(NamedTuple):
    """The distinct segments of a cut."""

    keys: Keys  # (V,), sorted
    counts: Integers  # (V,): tokens of each
    starts: Integers  # (V,): where the first token of each lies
    ends: Integers  # (V,): one past it
    tokens: Integers  # (N,): the text as numbers of segments
    places: Integers  # (N,): the last symbol of each token

    @property
    def token_bits(self) -> Floats:
        """(V,): what a token of each costs."""
        return -np.log2(self.counts / len(self.tokens))

    @property
    def spellings(self) -> Integers:
        """Where the symbols of the first token of each lie, one after the other."""
        lengths = self.ends - self.starts
        return np.asarray(np.repeat(self.ends - np.cumsum(lengths), lengths) + np.arange(lengths.sum()))


class Text:
    """A text, with all that is needed to tell what a cut of it costs.

    hard: where a segment must end, as a line does.
    """

    def __init__(self, symbols: Integers, alphabet: int, hard: Ends) -> None:
        self.symbols, self.alphabet = symbols, alphabet
        self.hard = hard.copy()
        self.hard[-1:] = True
        shares = np.bincount(symbols, minlength=alphabet) / max(1, len(symbols))
        self.symbol_bits = -np.log2(shares[symbols])
        one = np.ones(1, dtype=np.uint64)
        self.powers = np.cumprod(np.concatenate([one, np.full(len(symbols), BASE, dtype=np.uint64)]))
        back = np.full(len(symbols), pow(BASE, -1, 2**64), dtype=np.uint64)
        scaled = _mixed(symbols) * np.cumprod(np.concatenate([one, back]))[:-1]
        self.prefix = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(scaled, dtype=np.uint64)])

    def __len__(self) -> int:
        return len(self.symbols)

    def keys(self, starts: Integers, ends: Integers) -> Keys:
        """Each stretch of the text as one number: the same for the same symbols, wherever they lie."""
        return np.asarray((self.prefix[ends] - self.prefix[starts]) * self.powers[starts])

    def above(self, evidence: Floats, rate: float) -> Ends:
        """The cut where there is most evidence for an end, at this share of the symbols, and at hard ends."""
        return np.asarray((evidence >= np.quantile(evidence, 1 - rate)) | self.hard)

    def lexicon(self, cut: Ends) -> Lexicon:
        last = np.flatnonzero(cut)
        starts, ends = np.concatenate([[0], last[:-1] + 1]), last + 1
        keys, first, tokens, counts = np.unique(
            self.keys(starts, ends), return_index=True, return_inverse=True, return_counts=True
        )
        return Lexicon(keys, counts, starts[first], ends[first], tokens, last)

    def in_tokens(self, lexicon: Lexicon) -> Text:
        """The sequence of segments, as if they were symbols."""
        return Text(lexicon.tokens, len(lexicon.keys), self.hard[lexicon.places])

    def code(self, lexicon: Lexicon) -> tuple[float, float]:
        """The bits of a two-part code: the text as tokens; and each distinct segment spelled in symbols."""
        return float(lexicon.counts @ lexicon.token_bits), float(self.spelled(lexicon).sum())

    def spelled(self, lexicon: Lexicon) -> Floats:
        """(V,): what each distinct segment costs in the lexicon."""
        return bits_of_spellings(self.symbols[lexicon.spellings], lexicon.ends - lexicon.starts, self.alphabet)

    def bits(self, cut: Ends) -> float:
        return sum(self.code(self.lexicon(cut)))

    def cut_again(self, cut: Ends, with_lexicon: bool, offset: int = 0) -> Ends:
        """The cheapest cut of all that use no segment but those of this one (Viterbi's algorithm).

        A token costs its own bits; `with_lexicon` also its part of what its segment costs there, so that rare segments
        fall apart into frequent ones. A symbol that is no segment may still be one, at about what
        it costs to add it.
        Stretches are cut one by one: at hard ends, and at an end in about every STRETCH symbols, counted from `offset`.
        """
        lexicon = self.lexicon(cut)
        longest = int(min(LONGEST, (lexicon.ends - lexicon.starts).max()))
        tokens = lexicon.token_bits + (self.spelled(lexicon) / lexicon.counts if with_lexicon else 0.0)
        costs = self._costs(lexicon, tokens, longest)
        new = self.symbol_bits + np.log2(self.alphabet) + np.log2(len(lexicon.tokens))
        costs[:, 0] = np.minimum(costs[:, 0], new)
        wanted = np.arange(STRETCH + offset, len(self), STRETCH)
        found = np.searchsorted(lexicon.places, wanted)
        stops = np.union1d(lexicon.places[found[found < len(lexicon.places)]], np.flatnonzero(self.hard)) + 1
        return cheapest(costs, np.concatenate([[0], stops[:-1]]), stops)

    def _costs(self, lexicon: Lexicon, tokens: Floats, longest: int) -> npt.NDArray[np.float32]:
        """(T, longest): of the segment of 1, 2, … symbols that ends with each; infinite if the lexicon has none."""
        costs = np.full((len(self), longest), np.inf, dtype=np.float32)
        line: Integers = np.cumsum(self.hard) - self.hard
        lengths = lexicon.ends - lexicon.starts
        at = np.arange(len(self) + 1)
        for length in np.unique(lengths[lengths <= longest]).tolist():
            own = np.flatnonzero(lengths == length)
            keys = self._stretches(lexicon.starts[own], length)
            own, keys = own[order := np.argsort(keys)], keys[order]
            found = self._stretches(at[: len(self) - length + 1], length)
            maybe = np.flatnonzero(first_bits(keys)[found >> UNSEEN_BITS] & (line[: len(found)] == line[length - 1 :]))
            place = np.minimum(np.searchsorted(keys, found[maybe]), len(own) - 1)
            known = keys[place] == found[maybe]
            costs[maybe[known] + length - 1, length - 1] = tokens[own[place[known]]]
        return costs

    def _stretches(self, starts: Integers, length: int) -> Keys:
        return self.keys(starts, starts + length)


def cheapest(costs: npt.NDArray[np.float32], starts: Integers, stops: Integers) -> Ends:
    """The cut of each stretch into segments whose costs, (T, longest), have the least sum."""
    order = np.argsort(starts - stops, kind="stable")  # the longest first: those that go on are always the first ones
    starts, lengths = starts[order], (stops - starts)[order]
    steps, longest = int(lengths[0]), costs.shape[1]
    best = np.full((len(starts), longest + steps), np.inf)  # column longest + t: of the first t + 1 symbols
    best[:, longest - 1] = 0
    back = np.zeros((steps, len(starts)), dtype=np.int64)
    for t in range(steps):
        left = int(np.searchsorted(-lengths, -t))
        sums = costs[starts[:left] + t] + best[:left, t : t + longest][:, ::-1]
        chosen = sums.argmin(1)
        back[t, :left] = chosen + 1
        best[:left, longest + t] = sums[np.arange(left), chosen]
    cut = np.zeros(len(costs), dtype=bool)
    end, row = lengths.copy(), np.flatnonzero(lengths)
    while len(row) > 0:
        cut[starts[row] + end[row] - 1] = True
        end[row] -= back[end[row] - 1, row]
        row = row[end[row] > 0]
    return cut
