"""Files of series: CSV with a header, .npy and .npz; what is a number in them, what is missing, and what is a time."""

from __future__ import annotations

import csv
import io
import math
import re
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
import numpy.typing as npt

from hmrnn.domains.series.config import MOST_COLUMNS
from hmrnn.printable import printable
from hmrnn.storage.files import check_regular, check_size

ENDINGS = (".csv", ".npy", ".npz")
MISSING = {"", "na", "n/a", "nan", "null", "none"}  # however they are written: small, large, with spaces around
TIMES = {"time", "date", "datetime", "timestamp"}  # names of columns that are no measurements
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}.*)?")
OTHER_SEPARATORS = ";\t"  # that programs write in place of commas
LARGEST_FILE = 1 << 30  # bytes, or characters, of a file, unpacked: in memory it is a few times as large
LONGEST_LINE = 1 << 20  # characters of a line
LARGEST = 1e30  # the square of its share of a deviation is still a number in float32

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NotNumbers:
    """A column that can't be read."""

    row: int  # the first of its rows that is no number, counted from 0
    value: str

    @property
    def is_date(self) -> bool:
        return DATE.fullmatch(self.value.strip()) is not None


@dataclass(frozen=True)
class Table:
    """A sequence as a file has it."""

    name: str
    where: str  # it is, in errors: its file, and its place in one that has several
    columns: Mapping[str, Floats | NotNumbers]  # (T,) each, NaN where missing
    lines: Sequence[int] | None = None  # of a file of text, on which each row begins

    def place(self, row: int) -> str:
        """Where a row is, in errors: by the number that an editor shows, if there are lines."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"


def read_tables(path: Path, called: str | None = None) -> Iterator[Table]:
    """The sequences of a file, or of the files in a folder, by their names. A file may be `called` otherwise."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
        if not files:
            raise ValueError(f"{path}: there is no {', '.join(ENDINGS)} in this folder")
        for file in files:
            yield from read_tables(file)
        return
    check_regular(path)
    if path.suffix.lower() in (".npy", ".npz"):
        yield from read_arrays(path, called or path.name)
    else:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            yield read_csv(lines_in(opened, str(path)), called or path.name, str(path))


def lines_in(file: TextIO, where: str) -> Iterator[str]:
    """The lines of a file that may be a stranger's, or have no end: as many as memory can hold."""
    left = LARGEST_FILE
    while line := file.readline(LONGEST_LINE):
        left -= len(line)
        if len(line) == LONGEST_LINE or left < 0:
            raise ValueError(
                f"{where}: too large: it can have {LARGEST_FILE:,} characters at most, and a line {LONGEST_LINE:,}"
            )
        yield line


class Column:
    """Of a CSV file, while it is read."""

    def __init__(self) -> None:
        self.values = array("d")
        self.wrong: NotNumbers | None = None

    def add(self, value: str) -> None:
        number = number_in(value)
        if number is None and self.wrong is None and value.strip().lower() not in MISSING:
            self.wrong = NotNumbers(len(self.values), value)
        self.values.append(np.nan if number is None else number)

    def read(self) -> Floats | NotNumbers:
        return self.wrong or np.array(self.values)


def read_csv(lines: Iterable[str], name: str, where: str) -> Table:
    """`where` names it in an error."""
    try:
        rows = rows_of(lines)
        header = [column.strip() for column in next(rows, (1, []))[1]]
        check_header(header, where)
        columns, begins = [Column() for _ in header], array("q")
        for line, row in rows:
            if len(row) != len(header):
                raise ValueError(f"{where}: line {line} has {len(row)} values, and the header has {len(header)}")
            begins.append(line)
            for column, value in zip(columns, row, strict=True):
                column.add(value)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: not a CSV file: {error}") from None
    if not begins:
        raise ValueError(f"{where}: empty: there must be a header and a row for each step")
    return Table(name, where, {own: column.read() for own, column in zip(header, columns, strict=True)}, begins)


def rows_of(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of the line on which it begins: quotes may hold several."""
    reader = csv.reader(lines)
    line = 1
    for row in reader:
        if row:
            yield line, row
        line = reader.line_num + 1


def check_header(header: list[str], where: str) -> None:
    if len(header) > MOST_COLUMNS:
        raise ValueError(f"{where}: there may be {MOST_COLUMNS:,} columns at most; it has {len(header):,}")
    if len(header) == 1 and any(other in header[0] for other in OTHER_SEPARATORS):
        raise ValueError(f"{where}: commas must separate the columns, and its header has none: {header[0][:40]!r}")
    if len(set(header)) < len(header):
        raise ValueError(f"{where}: two columns have the same name in its header: {printable(', '.join(header)[:200])}")
    if header and all(number_in(column) is not None for column in header):
        raise ValueError(f"{where}: its first row must tell the names of the columns; it has numbers")


def number_in(value: str) -> float | None:
    """None if it is none. 2024_05, which is a number in Python's source, is not one in a file."""
    try:
        return None if "_" in value else float(value)
    except ValueError:
        return None


def read_arrays(path: Path, called: str) -> Iterator[Table]:
    """Arrays of steps and columns. Of three dimensions, the first is that of sequences."""
    for name, values in arrays_in(path, called):
        where = str(path) if name == called else f"{path}: {name}"
        several = values if values.ndim == 3 else values.reshape(1, len(values), -1)
        for i, one in enumerate(several):
            columns = {f"x{d + 1}": column.astype(np.float64) for d, column in enumerate(one.T)}
            number = f" {i + 1}" if len(several) > 1 else ""
            yield Table(f"{name}{number}", f"{where}{number}", columns)


def arrays_in(path: Path, called: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                yield called, parsed(file.read(check_size(path, file.fileno(), LARGEST_FILE)))
            return
        with zipfile.ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
            if size > LARGEST_FILE:
                raise ValueError(f"too large: unpacked, it has {size:,} bytes, and can have {LARGEST_FILE:,} at most")
            for part in archive.infolist():
                yield part.filename.removesuffix(".npy"), parsed(archive.read(part))
    except Exception as error:  # of numpy, zipfile, zlib and tokenize, which have no common ground
        raise ValueError(f"{path}: not an array, or a damaged one: {error}") from None


def parsed(content: bytes) -> npt.NDArray[Any]:
    """What an .npy file holds. No memory is asked for because of what its header says."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) == (1, 0):
        shape, by_columns, kind = np.lib.format.read_array_header_1_0(stream)
    else:
        shape, by_columns, kind = np.lib.format.read_array_header_2_0(stream)
    if len(shape) not in (1, 2, 3) or kind.kind not in "fiub" or kind.itemsize > 8:
        raise ValueError(f"it must be numbers of steps and columns; it has the shape {shape} and the type {kind}")
    if min(shape) < 1 or shape[-1] * (len(shape) > 1) > MOST_COLUMNS:
        raise ValueError(f"there must be steps, and 1 to {MOST_COLUMNS:,} columns; it has the shape {shape}")
    values = np.frombuffer(content, kind, math.prod(shape), stream.tell())
    return values.reshape(shape, order="F" if by_columns else "C")
