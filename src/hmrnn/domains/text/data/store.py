"""Files of text as one array of symbol numbers on disk, made once, in bounded memory, and mapped from then on."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from tqdm import tqdm

from hmrnn.config import MOST_UNITS, SPLITS
from hmrnn.domains.text.config import OnUnknown
from hmrnn.domains.text.data.symbols import (
    CODE_POINTS,
    RARE,
    Numbers,
    Symbols,
    Unit,
    codes,
    split_texts,
)
from hmrnn.errors import located_error
from hmrnn.printable import NAMED, printable
from hmrnn.storage.cache import MOST_KEPT, check_unchanged, content_of, kept, made_once, own_cache_directory, stamp
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
CHUNK = 1 << 20


@dataclass(frozen=True)
class TextData:
    """A text in three parts, as numbers of its symbols."""

    symbols: Symbols
    numbers: Numbers  # (T,) of all parts, one after the other; usually lies on disk
    splits: Mapping[str, tuple[int, int]]  # train, valid, test: first and one past the last
    fingerprint: str  # the same for the same numbers
    left_out: tuple[str, ...] = ()  # files of a folder that were not read, and why

    def split(self, name: str) -> Numbers:
        """(T,): the numbers of train, valid, test, or all."""
        start, end = (0, len(self.numbers)) if name == "all" else self.splits[name]
        return self.numbers[start:end]

    def description(self) -> str:
        """What its symbols are."""
        distinct, rare = len(self.symbols), self.symbols.by_symbol.get(RARE)
        if self.symbols.unit != "token":
            return f"{distinct:,} distinct symbols"
        if rare is None:
            return f"{distinct:,} distinct tokens"
        train = self.split("train")
        return (
            f"{distinct:,} distinct tokens, one of them, {RARE}, for all that are rarer: "
            f"{(train == rare).mean():.2%} of those to train on"
        )


def told_left_out(files: Sequence[str]) -> str:
    """Which files were not read, and why: a line each; nothing if there are none."""
    lines = [f"left out: {printable(file)}\n" for file in files[:NAMED]]
    if len(files) > NAMED:
        lines.append(f"left out: {len(files) - NAMED:,} more files\n")
    return "".join(lines)


@dataclass(frozen=True)
class TextFile:
    """A file to read, perhaps packed."""

    path: Path
    sha256: str | None = None  # of the content, unpacked: anything else is refused
    unpack: bool = False
    strip_lines: bool = False  # white space around each line goes, and each ends in one newline

    def chunks(self) -> Iterator[bytes]:
        """The content, bit by bit."""
        digest = hashlib.sha256()
        with self._reading() as file:
            pieces: Iterable[bytes] = iter(lambda: file.read(CHUNK), b"")
            if self.strip_lines:
                pieces = file
            for piece in pieces:
                digest.update(piece)
                yield piece.strip() + b"\n" if self.strip_lines else piece
        if self.sha256 is not None and digest.hexdigest() != self.sha256:
            raise ValueError(
                f"{self.path}: this is not the published file: its content has sha256 {digest.hexdigest()}, not "
                f"{self.sha256}; get it again"
            )

    @contextmanager
    def _reading(self) -> Iterator[IO[bytes]]:
        check_regular(self.path)  # a pipe can't be read twice: for its symbols, and for their numbers
        try:
            if self.unpack and self.path.suffix == ".zip":
                with zipfile.ZipFile(self.path) as archive, archive.open(self.path.stem) as file:
                    yield file
            elif self.unpack and self.path.suffix == ".gz":
                with gzip.open(self.path) as unpacked:
                    yield cast(IO[bytes], unpacked)
            else:
                with self.path.open("rb") as file:
                    yield file
        except (zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, KeyError) as error:
            raise ValueError(f"{self.path}: damaged: {error}; get it again") from None


Divide = Callable[[Sequence[int]], Mapping[str, tuple[int, int]]]


def by_share(counts: Sequence[int]) -> Mapping[str, tuple[int, int]]:
    """From the symbols of each file: 90 % to train on, 5 % for validation, 5 % for the test, in this order."""
    total = sum(counts)
    rest = total // 20
    return _in_order([total - 2 * rest, rest, rest])


def by_file(counts: Sequence[int]) -> Mapping[str, tuple[int, int]]:
    """The first file to train on, the second for validation, the third for the test."""
    return _in_order(counts)


def _in_order(counts: Sequence[int]) -> Mapping[str, tuple[int, int]]:
    ends = np.cumsum([0, *counts]).tolist()
    return {name: (ends[i], ends[i + 1]) for i, name in enumerate(SPLITS)}


def from_text(text: str, symbols: Symbols | None = None, on_unknown: OnUnknown = "error") -> TextData:
    """A text in memory: its characters, unless `symbols` are given."""
    symbols = symbols or Symbols.of(text)
    numbers = symbols.encode(text, on_unknown).numpy()
    return TextData(symbols, numbers, by_share([len(numbers)]), hashlib.sha256(text.encode()).hexdigest())


def from_files(
    files: Sequence[TextFile],
    unit: Unit = "character",
    divide: Divide = by_share,
    symbols: Symbols | None = None,
    on_unknown: OnUnknown = "error",
    most: int = MOST_UNITS,
) -> TextData:
    """The files, one after the other, from the cache if they are there.

    Symbols are numbered by `symbols`, or else by a table of all that occur in the files; of tokens, at most `most`.
    """
    paths = [file.path for file in files]
    before, content = [stamp(path) for path in paths], content_of(paths)
    folder = _folder(content, files, unit, divide, *([str(most)] if unit == "token" else []))
    data = kept(folder, _from_cache)
    if data is not None and symbols in (None, data.symbols):
        return data
    if symbols is not None:
        folder = _folder(content, files, unit, divide, symbols.to_json(), on_unknown)

    def make(scratch: Path) -> None:
        _write(scratch, files, symbols or _symbols_of(files, unit, most), divide, on_unknown)
        check_unchanged(paths, before)

    return made_once(folder, _from_cache, make)


def _folder(content: str, files: Sequence[TextFile], unit: Unit, divide: Divide, *more: str) -> Path:
    """Where the numbers of files with this content are kept."""
    asked: list[Any] = [FORMAT_VERSION, content, unit, divide.__name__, *more]
    asked += [[file.path.suffix, file.sha256, file.strip_lines, file.unpack] for file in files]
    return own_cache_directory("data") / hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:24]


def _from_cache(folder: Path) -> TextData | None:
    """What was kept, or None if nothing was, or if it is not whole."""
    try:
        meta = read_json(folder / "meta.json", MOST_KEPT)
        check_seal(meta, folder / "meta.json")
        symbols = Symbols.from_json(meta["symbols"])
        if sha256_of(folder / "numbers.bin", symbols.to_json()) != meta["fingerprint"]:
            return None
        numbers = np.memmap(folder / "numbers.bin", np.dtype(_smallest(len(symbols))), "r")
        if _largest(folder / "numbers.bin", numbers.dtype) >= len(symbols):
            return None
        splits = {name: (int(start), int(end)) for name, (start, end) in meta["splits"].items()}
        ends = [0, *(splits[name][1] for name in SPLITS)]
        if ends[-1] != len(numbers) or [splits[name][0] for name in SPLITS] != ends[:-1] or ends != sorted(ends):
            return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return TextData(symbols, numbers, splits, str(meta["fingerprint"]))


def _largest(path: Path, dtype: np.dtype[Any]) -> int:
    """Of the numbers in a file, read bit by bit: a map of all of it would count as memory."""
    largest = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK * dtype.itemsize):
            largest = max(largest, int(np.frombuffer(chunk, dtype).max()))
    return largest


def _smallest(symbols: int) -> type[np.unsignedinteger[Any]]:
    """The type in which their numbers take the least room."""
    return next(d for d in (np.uint8, np.uint16, np.uint32) if symbols <= np.iinfo(d).max + 1)


def _symbols_of(files: Sequence[TextFile], unit: Unit, most: int) -> Symbols:
    counts: Counter[str] = Counter()  # of tokens
    seen = np.zeros(CODE_POINTS, dtype=bool)
    for _, piece in _progress("looking for symbols", files, unit, "symbols"):
        if isinstance(piece, str):
            seen[codes(piece)] = True
        else:
            counts.update(piece)
    if not seen.any() and not counts:
        raise ValueError(f"{_names(files)}: empty: there is nothing to learn")
    if unit == "token":
        return Symbols.of_tokens(counts, most)
    return Symbols(tuple(chr(code) for code in np.flatnonzero(seen)), unit)


def _write(folder: Path, files: Sequence[TextFile], symbols: Symbols, divide: Divide, on_unknown: OnUnknown) -> None:
    dtype = _smallest(len(symbols))
    counts, read, digest = [0] * len(files), [0] * len(files), hashlib.sha256(symbols.to_json().encode())
    path = folder / "numbers.bin"
    with named(path), path.open("wb") as out:
        for i, piece in _progress("numbering symbols", files, symbols.unit):
            try:
                numbers = symbols.numbers(piece, on_unknown, read[i]).astype(dtype)
            except ValueError as error:
                raise located_error(files[i].path, error) from None
            read[i] += len(piece)
            counts[i] += len(numbers)
            digest.update(numbers.tobytes())
            out.write(numbers.tobytes())
        out.flush()
        os.fsync(out.fileno())
    if sum(counts) == 0:
        raise ValueError(f"{_names(files)}: empty, or all its symbols are unknown: there is nothing to read")
    meta: dict[str, Any] = {
        "symbols": symbols.to_json(),
        "length": sum(counts),
        "dtype": np.dtype(dtype).name,
        "splits": divide(counts),
        "fingerprint": digest.hexdigest(),
    }
    write_atomically(folder / "meta.json", json.dumps(sealed(meta)))


def _progress(
    what: str, files: Sequence[TextFile], unit: Unit, setting: str | None = None
) -> Iterator[tuple[int, Sequence[str]]]:
    """The symbols of all files, piece by piece, each with the number of its file. `setting` as in `texts`."""
    with tqdm(desc=what, unit="sym", unit_scale=True, leave=False, delay=2, disable=not sys.stderr.isatty()) as bar:
        for i, file in enumerate(files):
            for piece in split_texts(file.chunks(), unit, str(file.path), setting=setting):
                bar.update(len(piece))
                yield i, piece


def _names(files: Sequence[TextFile]) -> str:
    return str(files[0].path) if len(files) == 1 else f"{files[0].path} and {len(files) - 1} more"
