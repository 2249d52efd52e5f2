"""Boundaries that were found against those that are known, and what chance alone would reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ends: TypeAlias = npt.NDArray[np.bool_]  # (T,): whether a segment ends with this symbol

DRAWS = 100


@dataclass(frozen=True)
class Score:
    """How well boundaries fit. A share of nothing is 0."""

    precision: float  # of the boundaries found, the share that is known
    recall: float  # of the known ones, the share that was found
    f1: float
    token_f1: float  # of whole words: both ends found, and nothing between
    r_value: float  # Räsänen, Laine and Altosaar (2009): 1 is perfect, and firing often does not pay
    pk: float  # Beeferman, Berger and Lafferty (1999): windows in which only one has a boundary; 0 is best
    window_diff: float  # Pevzner and Hearst (2002): in how many windows their numbers of boundaries differ
    rate: float  # boundaries found a symbol


Scores: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Score]]]
"""By layer, by kind of known boundaries, and of what was found or of a baseline."""


@dataclass(frozen=True)
class Gold:
    """Boundaries that are known."""

    ends: Ends
    given: Ends  # places that everyone is told about (the end of the text, of a line): not scored
    bounds: Ends  # those of them that bound words


def score(found: Ends, gold: Gold, margin: int = 0) -> Score:
    """The score of boundaries against known ones. One that is at most `margin` symbols from a known one is that."""
    if not len(found) == len(gold.ends) == len(gold.given):
        raise ValueError(f"there are {len(found)} symbols with boundaries and {len(gold.ends)} with known ones")
    scored = ~gold.given
    found, known = found & scored, gold.ends & scored
    ours_at, known_at = matched(found, known, gold.bounds, margin)
    hits, n_found, n_gold = len(ours_at), int(found.sum()), int(known.sum())
    moved = found.copy()
    moved[ours_at] = False
    moved[known_at] = True
    ours, theirs = tokens(moved | gold.bounds), tokens(known | gold.bounds)
    whole = len(np.intersect1d(ours, theirs, assume_unique=True))
    return Score(
        share(hits, n_found),
        share(hits, n_gold),
        share(2 * hits, n_found + n_gold),
        share(2 * whole, len(ours) + len(theirs)),
        r_value(hits, n_found, n_gold),
        *window_errors(found, known),
        share(n_found, int(scored.sum())),
    )


def matched(found: Ends, known: Ends, bounds: Ends, margin: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """As many pairs as there can be of a place found and a known one that are at most `margin` apart, each in one pair.

    What lies on the two sides of a bound, where a line ends, is no pair.
    """
    if margin == 0:
        both = np.flatnonzero(found & known)
        return both, both
    apart = np.arange(len(found)) + (margin + 1) * (np.cumsum(bounds) - bounds)  # lines, with room between them
    ours, theirs = np.flatnonzero(found), np.flatnonzero(known)
    pairs = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        distance = int(apart[ours[i]] - apart[theirs[j]])
        if abs(distance) <= margin:
            pairs.append((ours[i], theirs[j]))
        i, j = i + (distance <= margin), j + (distance >= -margin)
    places = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return places[:, 0], places[:, 1]


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def tokens(ends: Ends) -> npt.NDArray[np.int64]:
    """The words between boundaries: a number for each that tells its first and its last symbol."""
    last = np.flatnonzero(ends)
    first = np.concatenate([[0], last[:-1] + 1])[: len(last)]
    return first * len(ends) + last


def r_value(hits: int, found: int, gold: int) -> float:
    """From the hit rate and the over-segmentation."""
    if gold == 0:
        return 0.0
    hit_rate, over = hits / gold, found / gold - 1
    r1 = math.hypot(1 - hit_rate, over)
    r2 = (hit_rate - 1 - over) / math.sqrt(2)
    return 1 - (abs(r1) + abs(r2)) / 2


def window_errors(found: Ends, known: Ends) -> tuple[float, float]:
    """Pk and WindowDiff, over windows of half a known segment."""
    window = max(1, round(len(known) / (int(known.sum()) + 1) / 2))
    sums = (np.concatenate([[0], np.cumsum(ends)]) for ends in (found, known))
    ours, theirs = (total[window:] - total[:-window] for total in sums)
    return float(((ours > 0) != (theirs > 0)).mean()), float((ours != theirs).mean())


def baselines(found: Ends, gold: Gold, seed: int = 0, margin: int = 0) -> dict[str, Score]:
    """What is reached without looking: never, always, and as often as `found` at random places or every k-th symbol.

    k need not be a whole number: places are as even as they can be.
    """
    scored = np.flatnonzero(~gold.given)
    count = int(found[scored].sum())

    def at(places: npt.NDArray[np.int64]) -> Ends:
        ends = np.zeros_like(found)
        ends[places] = True
        return ends

    random = np.random.default_rng(seed)
    draws = [score(at(random.choice(scored, count, replace=False)), gold, margin) for _ in range(DRAWS)]
    evenly = scored[np.arange(1, count + 1) * len(scored) // max(1, count) - 1]
    return {
        "never": score(np.zeros_like(found), gold, margin),
        "always": score(np.ones_like(found), gold, margin),
        "random": Score(*(float(np.mean([getattr(draw, f.name) for draw in draws])) for f in fields(Score))),
        "every k-th": score(at(evenly), gold, margin),
    }


# Where known boundaries come from


def gold_at(places: Sequence[int], length: int) -> Gold:
    """Of a text of so many symbols that is scored as a whole: only its end is given."""
    end = ends_at([length - 1] if length else [], length)
    return Gold(ends_at(places, length), end, end)


def check_to_find(known: Mapping[str, Gold], what: str) -> None:
    """Refuses what has no boundary to find: every score would be one of nothing."""
    if not any((gold.ends & ~gold.given).any() for gold in known.values()):
        raise ValueError(f"{what}: there is no known boundary to find, so there is nothing to score")


def ends_at(places: Sequence[int] | npt.NDArray[np.int64], length: int) -> Ends:
    ends = np.zeros(length, dtype=bool)
    ends[list(places)] = True
    return ends


def from_lines(lines: Sequence[Mapping[str, Ends]]) -> dict[str, Gold]:
    """Lines, for each where its strokes, letters, … end. Where a line ends, or begins, is given."""
    known = {}
    for name in lines[0]:
        parts = [line[name] for line in lines]
        finals = np.cumsum([len(part) for part in parts]) - 1
        starts = np.concatenate([[0], finals[:-1] + 1])
        length = int(finals[-1]) + 1
        last = np.setdiff1d(np.flatnonzero(np.concatenate(parts)), finals)
        known[f"last of a {name}"] = Gold(ends_at(last, length), ends_at(finals, length), ends_at(finals, length))
        known[f"first of the next {name}"] = Gold(
            ends_at(last + 1, length),
            ends_at([*starts, finals[-1]], length),
            ends_at([*starts[1:], finals[-1]], length),
        )
    return known


def scores_of(z: Ends, known: Mapping[str, Gold], margin: int = 0) -> Scores:
    """(T, layers) -> for each layer and each kind of known boundaries, the scores of what was found and of chance."""
    return {
        f"layer {l + 1}": {
            name: {"found": score(z[:, l], own, margin), **baselines(z[:, l], own, margin=margin)}
            for name, own in known.items()
        }
        for l in range(z.shape[1])
    }


def score_summary(scores: Scores) -> str:
    """A line for each layer: the kind of known boundaries that it fits best, and what random ones reach there."""
    lines = []
    for layer, conventions in scores.items():
        name, rows = max(conventions.items(), key=lambda item: item[1]["found"].f1)
        found = rows["found"]
        lines.append(
            f"{layer}: F1 {found.f1:.3f} ({name}; random {rows['random'].f1:.3f}), token F1 {found.token_f1:.3f}, "
            f"rate {found.rate:.3f}"
        )
    return "\n".join(lines)


def score_table(scores: Scores) -> str:
    """Layers, then conventions, then what was found and the baselines, as text."""
    columns = [f.name.replace("_", " ") for f in fields(Score)]
    lines = []
    for layer, conventions in scores.items():
        for convention, rows in conventions.items():
            lines += ["", f"{f'{layer}, {convention}':<32}" + "".join(f"{column:>12}" for column in columns)]
            for how, one in rows.items():
                numbers = "".join(f"{getattr(one, f.name):>12.3f}" for f in fields(Score))
                lines.append(f"  {how:<30}{numbers}")
    return "\n".join(lines)
