"""Handwriting by name, IAM-OnDB, built-in lines or anyone's file, as one array of points in three parts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmrnn.domains.strokes.config import STROKE_SETS, StrokeDataConfig
from hmrnn.domains.strokes.data import iam
from hmrnn.domains.strokes.data.points import Points, read_json_lines
from hmrnn.domains.strokes.data.writing import write
from hmrnn.domains.text.data.corpora import data_directory
from hmrnn.domains.text.data.store import SPLITS
from hmrnn.storage.cache import MOST_KEPT, check_unchanged, content_of, made_once, own_cache_directory, stamp
from hmrnn.storage.files import (
    check_regular,
    check_seal,
    named,
    read_json,
    sealed,
    sha256_of,
    write_atomically,
)

FORMAT_VERSION = 1
SHORTEST = {"iam-ondb": 300}  # points: the paper leaves out what is shorter
NAMED = 20  # damaged files that are named: those beyond are only counted


@dataclass(frozen=True)
class Lines:
    """Lines of handwriting, all their points in one array."""

    names: Sequence[str]  # of each line
    points: Points  # (N, 3) of all lines, one after the other; may lie on disk
    ends: npt.NDArray[np.int64]  # (lines + 1,): 0, and one past the last point of each line
    damaged: Sequence[str]  # files that could not be read, and why
    fingerprint: str  # the same for the same names and points

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.ends)

    def line(self, number: int) -> Points:
        """(T, 3)"""
        return self.points[self.ends[number] : self.ends[number + 1]]


@dataclass(frozen=True)
class StrokeData:
    """Lines in three parts."""

    lines: Lines
    splits: Mapping[str, npt.NDArray[np.int64]]  # train, valid, test: numbers of their lines
    short: int  # lines that were left out since they have too few points
    unlisted: int  # lines that were left out since they are in no list

    @property
    def fingerprint(self) -> str:
        return self.lines.fingerprint

    def numbers(self, split: str) -> npt.NDArray[np.int64]:
        """Of the lines of train, valid, test, or all."""
        return np.sort(np.concatenate([*self.splits.values()])) if split == "all" else self.splits[split]

    def split(self, name: str) -> list[Points]:
        """The lines of train, valid, test, or all."""
        return [self.lines.line(number) for number in self.numbers(name)]

    def told(self) -> str:
        """What was read, and what was not."""
        parts = ", ".join(f"{len(own):,} {name}" for name, own in self.splits.items())
        left_out = [f"{self.short:,} are too short"] if self.short else []
        left_out += [f"{self.unlisted:,} are in none of the lists"] if self.unlisted else []
        if self.lines.damaged:
            named = [*self.lines.damaged[:NAMED], "…"][: len(self.lines.damaged)]
            left_out.append(f"{len(self.lines.damaged):,} are damaged: {'; '.join(named)}")
        return f"{parts} lines" + (f"; left out: {', '.join(left_out)}" if left_out else "")


def load_strokes(config: StrokeDataConfig, data_dir: Path | None = None) -> StrokeData:
    """The handwriting that `config.data` names."""
    folder = data_directory(data_dir)
    if config.data == "builtin":
        lines = joined((f"line {i + 1}", written.points) for i, written in enumerate(write(config.writing)))
    elif config.data == "iam-ondb":
        path = iam.find(folder)
        folder = path.parent
        lines = iam_lines(path)
    else:
        lines = lines_of_file(Path(config.data))
    long = lines.lengths >= (config.shortest or SHORTEST.get(config.data, 2))
    if config.division == "by-writer":
        splits = by_list(lines.names, long, {name: iam.forms(folder / file) for name, file in iam.LISTS.items()})
    else:
        splits = shuffled(lines.names, long, config.division_seed)
    empty = [name for name, own in splits.items() if len(own) == 0]
    if empty:
        raise ValueError(
            f"{config.data}: too few lines: {long.sum()} of {len(long)} are long enough, and none is left for "
            f"{' and '.join(empty)}. Give more lines, or a smaller --shortest"
        )
    taken = sum(map(len, splits.values()))
    return StrokeData(lines, splits, int((~long).sum()), int(long.sum()) - taken)


def lines_of_file(path: Path) -> Lines:
    """The lines of a file of JSON lines, held in memory."""
    try:
        check_regular(path)
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"{error}, and it is not one of the sets known by name: {', '.join(STROKE_SETS)}") from None
    with path.open("rb") as file:
        lines = joined((f"line {i + 1}", points) for i, points in enumerate(read_json_lines(file, str(path))))
    if not lines.names:
        raise ValueError(f"{path}: empty: there is nothing to read")
    return lines


def joined(lines: Iterable[tuple[str, Points | str]]) -> Lines:
    """Lines by name; in place of the points of a damaged one, what is wrong with it."""
    names: list[str] = []
    points: list[Points] = [np.zeros((0, 3), dtype=np.float32)]
    damaged: list[str] = []
    for name, line in lines:
        if isinstance(line, str):
            damaged.append(line)
        else:
            names.append(name)
            points.append(line)
    ends = np.cumsum([len(part) for part in points])
    everything = np.concatenate(points)
    digest = hashlib.sha256(json.dumps([names, ends.tolist()]).encode())
    digest.update(everything.tobytes())
    return Lines(names, everything, ends, damaged, digest.hexdigest())


# How lines are divided


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


def by_list(
    names: Sequence[str], usable: npt.NDArray[np.bool_], lists: Mapping[str, set[str]]
) -> dict[str, npt.NDArray[np.int64]]:
    """Lines by the form that they belong to: a01-000u-01 to a01-000u."""
    forms = [name.rpartition("-")[0] for name in names]
    return {
        part: np.array([i for i, form in enumerate(forms) if usable[i] and form in own], dtype=np.int64)
        for part, own in lists.items()
    }


# The cache


def iam_lines(path: Path) -> Lines:
    """All lines of IAM-OnDB, parsed once."""
    everything = sorted(path.rglob("*.xml")) if path.is_dir() else [path]
    names = [str(file.relative_to(path)) for file in everything]
    files = [file for file in everything if file.is_file() and os.access(file, os.R_OK)]  # the others are damaged
    before = [stamp(file) for file in files]
    asked = json.dumps([FORMAT_VERSION, content_of(files), names])
    folder = own_cache_directory("data") / hashlib.sha256(asked.encode()).hexdigest()[:24]

    def make(scratch: Path) -> None:
        lines = joined(iam.read(path))
        if not lines.names:
            raise ValueError(f"{path}: no line of handwriting can be read; the first: {lines.damaged[0]}")
        with named(scratch / "points.bin"):
            lines.points.tofile(scratch / "points.bin")
        meta = {
            "names": lines.names,
            "ends": lines.ends.tolist(),
            "damaged": lines.damaged,
            "fingerprint": lines.fingerprint,
        }
        write_atomically(scratch / "meta.json", json.dumps(sealed(meta)))
        check_unchanged(files, before)

    return made_once(folder, from_cache, make)


def from_cache(folder: Path) -> Lines | None:
    """What was kept, or None if nothing was, or if it is not whole."""
    try:
        meta: dict[str, Any] = read_json(folder / "meta.json", MOST_KEPT)
        check_seal(meta, folder / "meta.json")
        ends = np.array(meta["ends"], dtype=np.int64)
        told = json.dumps([meta["names"], meta["ends"]])
        if sha256_of(folder / "points.bin", told) != meta["fingerprint"]:
            return None
        points = np.memmap(folder / "points.bin", np.float32, "r").reshape(-1, 3)
        names, damaged = (list(map(str, meta[name])) for name in ("names", "damaged"))
        fits = ends[0] == 0 and ends[-1] == len(points) and len(ends) == len(names) + 1
        if not fits or (np.diff(ends) < 0).any() or not np.isfinite(points).all():  # 100 MB of IAM-OnDB
            return None
        return Lines(names, points, ends, damaged, str(meta["fingerprint"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
