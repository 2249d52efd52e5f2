"""Lines in one array, and in three parts."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmrnn.config import SPLITS
from hmrnn.training.batches import Line


@dataclass(frozen=True)
class Lines:
    """Lines, all their points in one array."""

    names: Sequence[str]  # of each line
    points: Line  # (N, D) of all lines, one after the other; may lie on disk
    ends: npt.NDArray[np.int64]  # (lines + 1,): 0, and one past the last point of each line
    damaged: Sequence[str]  # files that could not be read, and why
    fingerprint: str  # the same for the same names and points

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.ends)

    def line(self, number: int) -> Line:
        """(T, D)"""
        return self.points[self.ends[number] : self.ends[number + 1]]


def joined(lines: Iterable[tuple[str, Line | str]]) -> Lines:
    """Lines by name; in place of the points of a damaged one, what is wrong with it."""
    names: list[str] = []
    points: list[Line] = []
    damaged: list[str] = []
    for name, line in lines:
        if isinstance(line, str):
            damaged.append(line)
        else:
            names.append(name)
            points.append(line)
    ends = np.cumsum([0, *map(len, points)])
    everything = np.concatenate(points) if points else np.zeros((0, 0), dtype=np.float32)
    digest = hashlib.sha256(json.dumps([names, ends.tolist()]).encode())
    digest.update(everything.tobytes())
    return Lines(names, everything, ends, damaged, digest.hexdigest())


def can_be_predicted(lines: Iterable[Line]) -> bool:
    """Whether there is a number after the first point of a line."""
    return not all(np.isnan(line[1:]).all() for line in lines)


@dataclass(frozen=True)
class LineData(ABC):
    """Lines in three parts."""

    lines: Lines
    splits: Mapping[str, npt.NDArray[np.int64]]  # train, valid, test: numbers of their lines

    @property
    def fingerprint(self) -> str:
        return self.lines.fingerprint

    def numbers(self, split: str) -> npt.NDArray[np.int64]:
        """Of the lines of train, valid, test, or all."""
        return np.sort(np.concatenate([*self.splits.values()])) if split == "all" else self.splits[split]

    def split(self, name: str) -> list[Line]:
        """The lines of train, valid, test, or all."""
        return [self.lines.line(number) for number in self.numbers(name)]

    @abstractmethod
    def description(self) -> str:
        """What was read, and what was not."""


def shuffled(names: Sequence[str], usable: npt.NDArray[np.bool_], seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """90 % to train on, 5 % for validation, 5 % for the test: 10,465, 581 and 582 of IAM-OnDB's lines.

    Lines are ordered by a hash of their names: the same on every machine and with every version of a library.
    """
    order = sorted(np.flatnonzero(usable), key=lambda i: hashlib.sha256(f"{seed}/{names[i]}".encode()).digest())
    train, valid = int(0.9 * len(order)), int(0.05 * len(order))
    if len(order) < 20:  # too few for shares: one each
        train, valid = max(0, len(order) - 2), min(1, max(0, len(order) - 1))
    parts = (order[:train], order[train : train + valid], order[train + valid :])
    return {name: np.sort(np.array(own, dtype=np.int64)) for name, own in zip(SPLITS, parts, strict=True)}
