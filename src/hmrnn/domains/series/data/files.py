"""Files of series: CSV with a header, .npy and .npz; what is a number in them, what is missing, and what is a time."""

from __future__ import annotations

import csv
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmrnn.storage.files import check_regular

ENDINGS = (".csv", ".npy", ".npz")
MISSING = {"", "na", "n/a", "nan", "null", "none"}  # however they are written: small, large, with spaces around
TIMES = {"time", "date", "datetime", "timestamp"}  # names of columns that are no measurements
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}.*)?")
LARGEST = 1e30  # the square of its share of a deviation is still a number in float32

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NotNumbers:
    """A column that can't be read."""

    row: int  # the first of its rows that is no number, counted from 1
    value: str

    @property
    def is_date(self) -> bool:
        return DATE.fullmatch(self.value.strip()) is not None


@dataclass(frozen=True)
class Table:
    """A sequence as a file has it."""

    name: str
    columns: Mapping[str, Floats | NotNumbers]  # (T,) each, NaN where missing


def read_tables(path: Path) -> Iterator[Table]:
    """The sequences of a file, or of the files in a folder, by their names."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
        if not files:
            raise ValueError(f"{path}: there is no {', '.join(ENDINGS)} in this folder")
        for file in files:
            yield from read_tables(file)
        return
    check_regular(path)
    if path.suffix.lower() in (".npy", ".npz"):
        yield from read_arrays(path)
    else:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            yield read_csv(lines, path.name, str(path))


def read_csv(lines: Iterable[str], name: str, where: str) -> Table:
    """`where` names it in an error."""
    try:
        rows = csv.reader(lines)
        header = [column.strip() for column in next(rows, [])]
        content = [row for row in rows if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: not a CSV file: {error}") from None
    if not header or not content:
        raise ValueError(f"{where}: empty: there must be a header and a row for each step")
    if len(set(header)) < len(header):
        raise ValueError(f"{where}: two columns have the same name in its header: {', '.join(header)[:200]}")
    if all(is_number(column) for column in header):
        raise ValueError(f"{where}: its first row must tell the names of the columns; it has numbers")
    for number, row in enumerate(content, 2):
        if len(row) != len(header):
            raise ValueError(f"{where}: row {number} has {len(row)} values, and the header has {len(header)}")
    columns = zip(*content, strict=True)
    return Table(name, {column: numbers(values) for column, values in zip(header, columns, strict=True)})


def is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def numbers(values: Iterable[str]) -> Floats | NotNumbers:
    found = []
    for row, value in enumerate(values, 1):
        try:
            found.append(float(value))
        except ValueError:
            if value.strip().lower() not in MISSING:
                return NotNumbers(row, value)
            found.append(np.nan)
    return np.array(found)


def read_arrays(path: Path) -> Iterator[Table]:
    """Arrays of steps and columns. Of three dimensions, the first is that of sequences."""
    try:
        content = np.load(path, allow_pickle=False)
        arrays = {path.name: content} if isinstance(content, np.ndarray) else {n: content[n] for n in content.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not an array, or a damaged one: {error}") from None
    for name, array in arrays.items():
        if array.ndim not in (1, 2, 3) or array.dtype.kind not in "fiub":
            raise ValueError(
                f"{path}: {name} must be numbers of steps and columns; it has the shape {array.shape} and the type "
                f"{array.dtype}"
            )
        several = array if array.ndim == 3 else array.reshape(1, len(array), -1)
        for i, one in enumerate(several):
            columns = {f"x{d + 1}": column.astype(np.float64) for d, column in enumerate(one.T)}
            yield Table(f"{name} {i + 1}" if len(several) > 1 else name, columns)
