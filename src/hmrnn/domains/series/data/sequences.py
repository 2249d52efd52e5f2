"""Series by name, or from anyone's files, as one array of steps in three parts."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmrnn.config import SPLITS
from hmrnn.domains.series.config import SeriesDataConfig
from hmrnn.domains.series.data.files import (
    LARGEST,
    TIMES,
    Floats,
    NotNumbers,
    Table,
    lines_in,
    read_csv,
    read_tables,
)
from hmrnn.domains.series.data.planted import plant
from hmrnn.domains.vectors.data import (
    LineData,
    Lines,
    joined,
    shuffled,
)
from hmrnn.errors import SettingError
from hmrnn.printable import printable

Values: TypeAlias = npt.NDArray[np.float32]
"""(T, D): the numbers of each step, NaN where one is missing."""
Known: TypeAlias = Mapping[str, npt.NDArray[np.bool_]]
"""(T,) each: whether a motif, a regime, … ends with this step."""

FEWEST = 20  # sequences that are divided as they are; of fewer, each is cut
SHORTEST = 40  # steps of a sequence that is cut: 36, 2 and 2
LEVELS = 100  # of a column: rounding to float32 may move a number by this part of its range


@dataclass(frozen=True)
class SeriesLines(Lines):
    """Sequences. The array of points holds their steps."""

    columns: tuple[str, ...]
    left_out: tuple[str, ...]  # columns
    coarse: tuple[str, ...]  # columns that float32 can't hold: their numbers hardly differ
    known: Known  # of all steps

    def known_of(self, number: int) -> Known:
        """The ends that are known in one sequence."""
        own = slice(self.ends[number], self.ends[number + 1])
        return {name: ends[own] for name, ends in self.known.items()}


@dataclass(frozen=True)
class SeriesData(LineData):
    """Sequences in three parts."""

    lines: SeriesLines
    short: int  # sequences that were left out since they have too few steps

    def description(self) -> str:
        parts = ", ".join(f"{len(own):,} {name}" for name, own in self.splits.items())
        lines = self.lines
        left_out = f"; left out: {', '.join(lines.left_out)}, no measurement" if lines.left_out else ""
        left_out += f"; sequences that are too short: {self.short:,}" if self.short else ""
        missing = int(np.isnan(lines.points).sum())
        gaps = f"; {missing:,} of {lines.points.size:,} values are missing" if missing else ""
        return f"{parts} sequences of {', '.join(lines.columns)}{left_out}{gaps}"


def load_series(config: SeriesDataConfig, data_dir: Path | None = None) -> SeriesData:
    """The series that `config.data` names."""
    return in_parts(lines_of(config), config)


def in_parts(lines: SeriesLines, config: SeriesDataConfig) -> SeriesData:
    """Divided, if a model can be trained on them."""
    if lines.coarse:
        raise SettingError(
            "{data}: the numbers of column {column!r} differ by less than float32 can tell. Subtract their mean or "
            "take another unit; or leave the column out: {0} names those to read",
            "columns",
            data=config.data,
            column=lines.coarse[0],
        )
    if len(lines.names) < FEWEST:
        return divided(lines, config.data)
    usable = lines.lengths >= 2
    splits = shuffled(lines.names, usable, config.division_seed)
    if not all(len(own) for own in splits.values()):
        raise ValueError(f"{config.data}: too few sequences have a second step to predict: {usable.sum()}")
    return SeriesData(lines, splits, int((~usable).sum()))


def lines_of(config: SeriesDataConfig) -> SeriesLines:
    """All sequences, undivided."""
    if config.data != "builtin":
        return picked(tables_of(config), config)
    made = plant(config.planted)
    tables = (
        Table(name, f"builtin: {name}", {f"x{d + 1}": x.astype(np.float64) for d, x in enumerate(one.values.T)})
        for name, one in ((f"sequence {i + 1}", one) for i, one in enumerate(made))
    )
    known = {name: np.concatenate([getattr(one, f"{name}s") for one in made]) for name in ("motif", "regime")}
    return replace(picked(tables, replace(config, ends=None)), known=known)  # where segments end is known


def tables_of(config: SeriesDataConfig) -> Iterable[Table]:
    path = Path(config.data)
    if config.data == "-":
        typed = io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig", newline="")
        return [read_csv(lines_in(typed, "standard input"), "-", "standard input")]
    config.check_there()
    return read_tables(path, config.called)


def picked(tables: Iterable[Table], config: SeriesDataConfig) -> SeriesLines:
    """The columns that are asked for, of every table."""
    columns, first = config.columns or (), None
    left_out: dict[str, None] = {}  # in their order
    parts, ends, ranges = [], [], []  # ranges: of each table, (D,) three times
    for table in tables:
        if config.columns is None:
            own, times = measurements(table, config)
            left_out |= dict.fromkeys(times)
            if first is None:
                columns, first = own, table.where
            check_same_columns(first, columns, table.where, own)
        steps = np.stack([numbers_of(table, column) for column in columns], axis=1)
        parts.append((table.name, steps.astype(np.float32)))
        rounding = np.abs(parts[-1][1] - steps)
        ranges.append((np.fmin.reduce(steps), np.fmax.reduce(steps), np.fmax.reduce(rounding)))
        if config.ends is not None:
            ends.append(ends_of(table, config.ends))
    if not parts:
        raise ValueError(f"{config.data}: there is no sequence in it")
    known = {"segment": np.concatenate(ends)} if ends else {}
    least, greatest, moved = zip(*ranges, strict=True)
    spread = np.fmax.reduce(greatest) - np.fmin.reduce(least)  # NaN where all is missing
    hidden = (spread > 0) & (LEVELS * np.fmax.reduce(moved) > spread)
    coarse = tuple(column for column, own in zip(columns, hidden, strict=True) if own)
    return SeriesLines(**vars(joined(parts)), columns=columns, left_out=tuple(left_out), coarse=coarse, known=known)


def measurements(table: Table, config: SeriesDataConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns to read if none are named, and those that are left out."""
    own = {name: values for name, values in table.columns.items() if name != config.ends}
    times = [
        name
        for name, values in own.items()
        if name.lower() in TIMES or not name or (isinstance(values, NotNumbers) and values.is_date)
    ]
    columns = tuple(name for name in own if name not in times)
    if not columns:
        raise ValueError(f"{table.where} has no column to read")
    return columns, tuple(name or "(no name)" for name in times)


def check_same_columns(first: str, columns: Sequence[str], second: str, others: Sequence[str]) -> None:
    """Refuses a table that has other columns to read than the first. Their order may differ."""
    told = [
        f"only the {which} has {str(sorted(names))[1:-1][:200]}"
        for which, names in (("first", {*columns} - {*others}), ("second", {*others} - {*columns}))
        if names
    ]
    if told:
        raise SettingError(
            "{first} and {second} differ in the columns to read: {told}. {0} chooses which to read",
            "columns",
            first=first,
            second=second,
            told=", ".join(told),
        )


def numbers_of(table: Table, column: str) -> Floats:
    values = column_of(table, column)
    if isinstance(values, NotNumbers):
        advice = ". {0} says which to read" if len(table.columns) > 1 else ""
        if len(table.columns) == 1 and len(values.value.split()) > 1:
            advice = ". Commas must separate columns"
        raise SettingError(
            "{where}: {place} of column {column!r} is no number: {value!r}" + advice,
            "columns",
            where=table.where,
            place=table.place(values.row),
            column=column,
            value=values.value[:40],
        )
    if np.nanmax(np.abs(values), initial=0.0) > LARGEST:
        raise ValueError(f"{table.where}: column {column!r} has a number beyond {LARGEST:g}")
    return values


def ends_of(table: Table, column: str) -> npt.NDArray[np.bool_]:
    """Where segments end. What is neither 0 nor 1, or missing, shows that the column tells something else."""
    values = column_of(table, column)
    if isinstance(values, NotNumbers):
        row, got = values.row, repr(values.value[:40])
    else:
        ends: npt.NDArray[np.bool_] = values == 1
        others = np.flatnonzero(~ends & (values != 0))
        if len(others) == 0:
            return ends
        row = int(others[0])
        got = "nothing" if np.isnan(values[row]) else str(values[row])
    raise SettingError(
        "{where}: {place} of column {column!r}, which {0} names, must be 0 or 1; got {got}. "
        "Write 1 where a segment ends and 0 elsewhere",
        "ends",
        where=table.where,
        place=table.place(row),
        column=column,
        got=got,
    )


def column_of(table: Table, column: str) -> Floats | NotNumbers:
    values = table.columns.get(column)
    if values is None:
        raise ValueError(f"{table.where} has no column {column!r}; it has {printable(', '.join(table.columns)[:200])}")
    return values


def divided(lines: SeriesLines, data: str) -> SeriesData:
    """The first 90 % of each sequence to train on, the next 5 % for validation, the last 5 % for the test."""
    long = [i for i, length in enumerate(lines.lengths) if length >= SHORTEST]
    if not long:
        raise ValueError(f"{data}: too short: of fewer than {FEWEST} sequences, one must have {SHORTEST} steps")
    parts: list[tuple[str, Values]] = []
    pieces: list[slice] = []
    splits: dict[str, list[int]] = {name: [] for name in SPLITS}
    for i in long:
        start, length = int(lines.ends[i]), int(lines.lengths[i])
        valid, test = length - 2 * max(2, length // 20), length - max(2, length // 20)
        for name, (first, after) in zip(SPLITS, ((0, valid), (valid, test), (test, length)), strict=True):
            splits[name].append(len(parts))
            pieces.append(slice(start + first, start + after))
            parts.append((f"{lines.names[i]}, {name}", lines.points[pieces[-1]]))
    known = {name: np.concatenate([ends[own] for own in pieces]) for name, ends in lines.known.items()}
    cut = replace(lines, **vars(joined(parts)), known=known)
    return SeriesData(cut, {name: np.array(own) for name, own in splits.items()}, len(lines.names) - len(long))
