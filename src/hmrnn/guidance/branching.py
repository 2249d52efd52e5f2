"""Where the segments of a text end, and at what scale: read off the text by counting, with no label and no rate given.

1. Start. A text is cut where it is least certain what follows the last few symbols (forward), or that and what precedes
   the next few (both): at each of RATES, with the context and direction whose cut has the shortest two-part code.
2. Cut again. The segments of that cut are a lexicon. The text is cut again into the cheapest sequence of its segments.
3. Layers. The same is done to the sequence of segments, as if they were symbols, as long as that shortens the code: the
   text as tokens of the topmost layer, its distinct segments spelled in those of the layer below, down to symbols.
   Of all rates the one wins whose hierarchy has the fewest bits. With several layers, the lowest is chosen apart: it
   is the one that spells the distinct segments of the layer above with the fewest bits.
4. Projection. A detector sees only the past. What it is taught is how often a segment ends after the last few symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from hmrnn.errors import check_size
from hmrnn.guidance.cuts import DOUBT, STRETCH, Ends, Floats, Integers, Keys, Text, entropy_after, keys_of

Direction = Literal["forward", "both"]

COUNTED = 1_000_000  # symbols: 6 to 10 seconds of one core. Twice as many did not make better detectors
TRIED = 150_000  # symbols on which all rates are tried; on more, those beside the best of them
RATES = (0.05, 0.065, 0.085, 0.11, 0.14, 0.18, 0.24, 0.31, 0.4, 0.52)
CONTEXTS = (1, 2, 3, 4)
RATES_ABOVE = (0.15, 0.18, 0.21, 0.25, 0.29, 0.33, 0.37, 0.42, 0.5, 0.6)  # of segments as symbols
CONTEXTS_ABOVE = (1, 2)
ROUNDS = 3  # of cutting again, at most
MOST_LAYERS = 4
LEAST_SAVED = 0.1  # of the bits that spell a lexicon: what a layer below it must save
PROMISING = 5  # cuts of a sequence of segments that are cut again
PAST = 5  # symbols that a detector's targets depend on
MOST_PAST = 16  # symbols of any context or past in a file
WORTH = 0.03  # bits a symbol that waiting for the next symbol must save


class Start(NamedTuple):
    """A cut by entropy."""

    text: Text
    cut: Ends
    context: int
    direction: Direction


@dataclass(frozen=True)
class Hierarchy:
    """The cuts of all layers that were found in a text, and what the text costs so."""

    start: Start
    cuts: tuple[Ends, ...]  # (T,) each, the lowest layer first

    @cached_property
    def bits(self) -> float:
        """A symbol: tokens of the topmost layer, and distinct segments of each, spelled in those of the one below."""
        layer, tokens, lexicons = self.start.text, 0.0, 0.0
        places: Integers = np.arange(len(layer))  # the last symbol of each of the layer's own symbols
        for cut in self.cuts:
            lexicon = layer.lexicon(cut[places])
            tokens, spelled = layer.code(lexicon)
            lexicons += spelled
            layer, places = layer.in_tokens(lexicon), places[lexicon.places]
        return (tokens + lexicons) / len(self.start.text)

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(float(cut.mean()) for cut in self.cuts)


class Table(NamedTuple):
    """How often a segment ends after each run of symbols."""

    keys: Keys  # (V,), sorted
    shares: npt.NDArray[np.float32]  # (V,)


@dataclass(frozen=True)
class Branching:
    """A teacher for detectors: it finds segments in a text by counting, and where they are likely to end.

    Attributes:
        rates: Rate of the segment ends of each layer that was found, the lowest first.
        delay: Number of symbols after the end of a segment at which a detector should fire, 0 or 1.
        context: Number of symbols whose entropy the search started from.
        direction: Whether these symbols lie before a boundary ("forward") or on both sides ("both").
        bits: Length of the two-part code, in bits for each symbol.
        tables: Share of segment ends after the last 1, 2, … symbols.
        alphabet: Number of distinct symbols, if it is known: `state_dict` does not keep it.
    """

    rates: tuple[float, ...]
    delay: int
    context: int
    direction: Direction
    bits: float
    tables: tuple[Table, ...]
    alphabet: int | None = None

    @staticmethod
    def of(
        symbols: npt.NDArray[Any] | Tensor | Sequence[int],
        alphabet: int,
        line_end: int | None = None,
        rate: float | None = None,
    ) -> Branching:
        """Reads a text.

        Args:
            symbols: (T,) numbers of the symbols of the training text, from 0 to `alphabet` - 1. The first million are
                read.
            alphabet: Number of distinct symbols.
            line_end: Number of a symbol that always ends a segment.
            rate: Rate of the lowest layer. By default it is found.
        """
        alphabet = int(alphabet) if isinstance(alphabet, np.integer) else alphabet
        check_size("alphabet", alphabet)
        numbers = checked(symbols, alphabet)
        found = best_hierarchy(numbers, alphabet, line_end, RATES if rate is None else (rate,))
        cut = found.cuts[0]
        now, later = (bits_of_ends(numbers, np.roll(cut, delay), alphabet) for delay in (0, 1))
        delay = int(later < now - WORTH)
        rates = found.rates if rate is None else (rate,)
        tables = tables_of(numbers, np.roll(cut, delay), alphabet)
        return Branching(rates, delay, found.start.context, found.start.direction, found.bits, tables, alphabet)

    @property
    def past(self) -> int:
        """Symbols before a step that `evidence` needs to see."""
        return len(self.tables) - 1

    def evidence(self, symbols: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """(past + T, B) symbols to (T, B): how likely it is that a detector is to fire, from 0 to 1."""
        steps = max(0, len(symbols) - self.past)
        shares = np.zeros((steps, *symbols.shape[1:]), dtype=np.float32)
        for length, table in enumerate(self.tables, start=1):
            keys = keys_of(symbols[len(symbols) - steps - length + 1 :], length)
            if len(table.keys) > 0:
                place = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
                shares = np.where(table.keys[place] == keys, table.shares[place], shares)
        return shares

    def description(self) -> str:
        """Describes what was found, in one line."""
        rates = " / ".join(f"{rate:.3f}" for rate in self.rates)
        sides = "forward and backward" if self.direction == "both" else "forward"
        place = "last symbol of a segment" if self.delay == 0 else "first symbol after a segment"
        return (
            f"target rates {rates} (the text in segments: {self.bits:.3f} bits per symbol; {sides} entropy, "
            f"context {self.context}); detectors learn to fire on the {place}"
        )

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """All that it knows, as arrays."""
        numbers = [self.delay, self.context, self.direction == "both", self.bits, *self.rates]
        state: dict[str, npt.NDArray[Any]] = {"chosen": np.array(numbers, dtype=np.float64)}
        for length, table in enumerate(self.tables, start=1):
            state[f"keys{length}"], state[f"shares{length}"] = table.keys.view(np.int64), table.shares
        return state

    @staticmethod
    def from_state_dict(state: Mapping[str, npt.NDArray[Any]]) -> Branching:
        """What `state_dict` gave. Anything else is refused."""
        delay, context, both, bits, *rates = (float(value) for value in state["chosen"])
        count, odd = divmod(len(state) - 1, 2)
        fits = delay in (0, 1) and len(rates) > 0 and all(0 < rate <= 1 for rate in rates)
        fits = fits and 1 <= context <= MOST_PAST and 1 <= count <= MOST_PAST and not odd
        tables = []
        for length in range(1, min(count, MOST_PAST) + 1):
            keys, shares = state[f"keys{length}"], state[f"shares{length}"]
            fits = fits and keys.dtype == np.int64 and shares.dtype == np.float32 and keys.shape == shares.shape
            fits = fits and keys.ndim == 1 and bool(((shares >= 0) & (shares <= 1)).all())
            tables.append(Table(np.ascontiguousarray(keys).view(np.uint64), shares))
            fits = fits and bool((tables[-1].keys[1:] > tables[-1].keys[:-1]).all())  # or no key is found
        if not fits:
            raise ValueError("this is not what a teacher knows")
        return Branching(tuple(rates), int(delay), int(context), "both" if both else "forward", bits, tuple(tables))


def checked(symbols: npt.NDArray[Any] | Tensor | Sequence[int], alphabet: int) -> Integers:
    """The first symbols of a text, all of the alphabet."""
    numbers = np.asarray(symbols.numpy(force=True) if isinstance(symbols, Tensor) else symbols)
    must = "symbols must be the numbers of the symbols of one text, (T,), as Symbols.encode gives them"
    if numbers.size == 0:
        raise ValueError("symbols must not be empty: there is nothing to count")
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{must}; got {type(symbols).__name__} of {numbers.dtype}")
    if numbers.ndim != 1:
        raise ValueError(f"{must}; got shape {numbers.shape}")
    numbers = numbers[:COUNTED]
    unknown = numbers[(numbers < 0) | (numbers >= alphabet)]
    if len(unknown):
        raise ValueError(
            f"symbols must lie between 0 and {alphabet - 1}, in an alphabet of {alphabet}; got {unknown[0]}"
        )
    return numbers.astype(np.int64)


def best_hierarchy(numbers: Integers, alphabet: int, line_end: int | None, rates: Sequence[float]) -> Hierarchy:
    """All rates are tried on the first symbols. A single layer then goes downhill from the best of them on all symbols:
    the longer a text, the longer the segments that pay. With several layers the lowest is chosen apart, if there are
    several rates."""
    hard = numbers == (-1 if line_end is None else line_end)
    first = Text(numbers[:TRIED], alphabet, hard[:TRIED])
    tried = [build(start) for start in starts(first, rates)]
    at = min(reversed(range(len(rates))), key=lambda i: tried[i].bits)  # of equals the last: the next may be better
    hierarchy: Callable[[int], Hierarchy] = tried.__getitem__
    if len(numbers) > TRIED:
        hierarchy = on_all(Text(numbers, alphabet, hard), rates, tried, most=len(tried[at].cuts))
    best = hierarchy(at)
    if len(best.cuts) > 1 and len(rates) > 1:
        below = best_below(first, tried[at].cuts[1], [one.cuts[0] for one in tried])
        return with_lowest(best, best if below == at else None if below is None else hierarchy(below))
    for step in (-1, 1):  # bits fall to a minimum, and rise again
        while 0 <= at + step < len(rates) and (next_one := hierarchy(at + step)).bits < best.bits:
            best, at = next_one, at + step
    return best


def on_all(text: Text, rates: Sequence[float], tried: Sequence[Hierarchy], most: int) -> Callable[[int], Hierarchy]:
    """What a rate gives on all symbols, in so many layers at most, with the context and direction of what was tried."""

    @cache
    def evidence(context: int, direction: Direction) -> Floats:
        return dict(evidences(text, context))[direction]

    @cache
    def hierarchy(i: int) -> Hierarchy:
        _, _, context, direction = tried[i].start
        start = best_start(text, {(context, direction): evidence(context, direction)}, rates[i])
        return build(start, most, rounds=2)

    return hierarchy


def best_below(text: Text, above: Ends, cuts: Sequence[Ends]) -> int | None:
    """Which of the cuts spells the distinct segments of the layer above with the fewest bits. None if even that saves
    little: then nothing lies below.

    The code of the whole text can't tell: nearly all of it are tokens of the layer above, each of whose few mistakes
    costs more than the spelling of its lexicon.
    """
    lexicon = text.lexicon(above)
    places = lexicon.spellings
    last = np.isin(places, lexicon.ends - 1)
    distinct = Text(text.symbols[places], text.alphabet, last)
    bits = [distinct.bits(cut[places] | last) for cut in cuts]
    return int(np.argmin(bits)) if min(bits) < (1 - LEAST_SAVED) * text.spelled(lexicon).sum() else None


def with_lowest(hierarchy: Hierarchy, lower: Hierarchy | None) -> Hierarchy:
    """The layers above the lowest, over that of another hierarchy, or over none."""
    above = hierarchy.cuts[1:]
    if lower is None:
        return Hierarchy(hierarchy.start, above)
    return Hierarchy(lower.start, (lower.cuts[0] | above[0], *above))


def all_evidence(text: Text) -> Mapping[tuple[int, Direction], Floats]:
    return {(context, way): bits for context in CONTEXTS for way, bits in evidences(text, context)}


def starts(text: Text, rates: Sequence[float]) -> list[Start]:
    """The best cut by entropy, for each rate."""
    evidence = all_evidence(text)
    return [best_start(text, evidence, rate) for rate in rates]


def best_start(text: Text, evidence: Mapping[tuple[int, Direction], Floats], rate: float) -> Start:
    """The code tells two things more: whether the last symbol of a line is the end of a segment, and the line's end one
    more; and whether a run of one symbol, as of blanks, is one segment."""
    before_hard = np.append(text.hard[1:], False)
    in_run = np.append(text.symbols[1:] == text.symbols[:-1], False) & ~text.hard
    candidates = []
    for (context, direction), bits in evidence.items():
        cut = text.above(bits, rate)
        cuts = [cut] if cut[before_hard].all() else [cut, cut | before_hard]
        cuts += [one & ~in_run for one in cuts] if cut[in_run].any() else []
        candidates += [Start(text, one, context, direction) for one in cuts]
    return min(candidates, key=lambda start: text.bits(start.cut))


def evidences(text: Text, context: int) -> list[tuple[Direction, Floats]]:
    """For an end after each symbol: the entropy of what follows, and that with the entropy of what precedes."""
    after = entropy_after(text.symbols, context, text.alphabet)
    before = entropy_after(text.symbols[::-1], context, text.alphabet)[::-1]
    return [("forward", after), ("both", after + np.append(before[1:], 0.0))]


def build(start: Start, most: int = MOST_LAYERS, rounds: int = ROUNDS) -> Hierarchy:
    """Cuts again while that saves bits, and adds layers while that does."""
    text = layer = start.text
    cut, cuts = improved(text, start.cut, rounds), []
    places: Integers = np.arange(len(text))  # the last symbol of each of the layer's own symbols
    while True:
        lexicon = layer.lexicon(cut)
        layer, places = layer.in_tokens(lexicon), places[lexicon.places]
        cuts.append(np.zeros(len(text), dtype=bool))
        cuts[-1][places] = True
        higher = layer_above(layer, rounds) if len(cuts) < most else None
        if higher is None:
            return Hierarchy(start, tuple(cuts))
        cut = higher


def improved(text: Text, cut: Ends, rounds: int) -> Ends:
    """Cut again while that saves bits: first by what tokens cost, then by what they and their segments do."""
    bits = text.bits(cut)
    for i in range(rounds):
        again = text.cut_again(cut, with_lexicon=i > 0, offset=i * STRETCH // ROUNDS)
        fewer = text.bits(again)
        if fewer >= bits:
            break
        cut, bits = again, fewer
    return cut


def layer_above(layer: Text, rounds: int) -> Ends | None:
    """The cheapest cut of a sequence of segments, if even by entropy alone one is cheaper than none."""
    if len(layer) < 2 or layer.alphabet < 2:
        return None
    cuts = [layer.above(bits, rate) for n in CONTEXTS_ABOVE for _, bits in evidences(layer, n) for rate in RATES_ABOVE]
    cuts.sort(key=layer.bits)
    if layer.bits(cuts[0]) >= layer.symbol_bits.sum():
        return None
    return min((improved(layer, cut, rounds) for cut in cuts[:PROMISING]), key=layer.bits)


def tables_of(numbers: Integers, ends: Ends, alphabet: int) -> tuple[Table, ...]:
    """Of runs that occur at least twice, with each share drawn towards that of the shorter run."""
    shares: Floats = np.full(len(numbers), float(ends.mean()))
    tables = []
    for length in range(1, PAST + 1):
        keys, run, counts = runs(numbers, length, alphabet)
        mixed = (np.bincount(run, ends)[run] + DOUBT * shares) / (counts[run] + DOUBT)
        first = np.zeros(len(keys))
        first[run] = mixed
        kept = counts > 1
        tables.append(Table(keys[kept], first[kept].astype(np.float32)))
        shares = np.where(kept[run], mixed, shares)
    return tuple(tables)


def bits_of_ends(numbers: Integers, ends: Ends, alphabet: int) -> float:
    """A symbol: what it costs to tell the ends from the past. Each is left out of the counts that predict it."""
    shares: Floats = np.full(len(numbers), float(ends.mean()))
    for length in range(1, PAST + 1):
        _, run, counts = runs(numbers, length, alphabet)
        shares = (np.bincount(run, ends)[run] - ends + DOUBT * shares) / (counts[run] - 1 + DOUBT)
    right = np.clip(np.where(ends, shares, 1 - shares), 1e-6, 1)
    return float(-np.log2(right).mean())


def runs(numbers: Integers, length: int, alphabet: int) -> tuple[Keys, Integers, Integers]:
    """The distinct runs of so many symbols, which of them ends with each symbol, and how often each occurs."""
    padded = np.concatenate([np.full(length - 1, alphabet), numbers])
    keys, run, counts = np.unique(keys_of(padded, length), return_inverse=True, return_counts=True)
    return keys, run, counts
