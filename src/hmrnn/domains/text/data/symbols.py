"""Text as a sequence of numbered symbols: characters, or bytes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmrnn.config import SettingError, located_error
from hmrnn.domains.text.config import OnUnknown

Unit = Literal["character", "byte"]
Numbers: TypeAlias = npt.NDArray[Any]  # (T,) of an unsigned type: symbols by their number; may lie on disk

REPLACEMENTS = ("\N{REPLACEMENT CHARACTER}", "?", " ")
CODE_POINTS = 0x110000


@dataclass(frozen=True)
class Symbols:
    """A table of symbols: the number of a symbol is its place in the table.

    A byte from 128 is written as a lone surrogate, as Python's "surrogateescape" does: it is one character, no text
    contains it, and it is neither letter nor space.
    """

    table: tuple[str, ...]
    unit: Unit = "character"

    def __post_init__(self) -> None:
        if not self.table:
            raise ValueError("a table of symbols must have at least one")
        if not all(isinstance(symbol, str) and len(symbol) == 1 for symbol in self.table):
            raise ValueError("every symbol must be a single character")
        if len(set(self.table)) != len(self.table):
            raise ValueError("a table of symbols must not name one twice")
        if self.unit not in ("character", "byte"):
            raise ValueError(f"the unit must be 'character' or 'byte'; got {self.unit!r}")
        if self.unit == "byte" and not all(ord(s) < 128 or 0xDC80 <= ord(s) <= 0xDCFF for s in self.table):
            raise ValueError("a table of bytes must hold bytes")

    @staticmethod
    def of(text: str | bytes) -> Symbols:
        """The symbols of a text, sorted."""
        if isinstance(text, bytes):
            return Symbols(tuple(sorted(set(as_symbols(text)))), "byte")
        return Symbols(tuple(sorted(set(text))))

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def by_code(self) -> npt.NDArray[np.int64]:
        """(CODE_POINTS,): the number of each code point's symbol, -1 if there is none."""
        numbers = np.full(CODE_POINTS, -1, dtype=np.int64)
        numbers[[ord(symbol) for symbol in self.table]] = np.arange(len(self.table))
        return numbers

    @cached_property
    def replacement(self) -> int:
        """The number that stands for an unknown symbol."""
        for symbol in REPLACEMENTS:
            if symbol in self.table:
                return self.table.index(symbol)
        raise ValueError("the model knows none of U+FFFD, '?' and the space, so unknown symbols can't be replaced")

    def encode(self, text: str | bytes, on_unknown: OnUnknown = "error") -> Tensor:
        """(T,) int64"""
        if self.unit == "byte" and isinstance(text, str):
            text = text.encode("utf-8", "surrogateescape")
        if isinstance(text, bytes):
            text = as_symbols(text) if self.unit == "byte" else text.decode()
        return torch.from_numpy(self.numbers(codes(text), on_unknown))

    def numbers(self, codes: npt.NDArray[Any], on_unknown: OnUnknown, start: int = 0) -> npt.NDArray[np.int64]:
        """The numbers of code points. `start` is the place of the first one in the text, for an error."""
        numbers: npt.NDArray[np.int64] = self.by_code[codes]
        unknown = numbers < 0
        if not unknown.any():
            return numbers
        if on_unknown == "skip":
            return numbers[numbers >= 0]
        if on_unknown == "replace":
            numbers[unknown] = self.replacement
            return numbers
        first = int(unknown.argmax())
        raise SettingError(
            "the symbol {symbol} at position {place} is not among the {count} symbols that the model knows ({0} skip "
            "or replace goes on without it)",
            "on_unknown",
            symbol=self.named(chr(codes[first])),
            place=start + first,
            count=len(self),
        )

    def named(self, symbol: str) -> str:
        """A symbol for an error message."""
        if self.unit == "byte" or "\udc80" <= symbol <= "\udcff":
            return f"0x{ord(symbol) & 0xFF:02x}"
        return f"{symbol!r} (U+{ord(symbol):04X})"

    def text(self, numbers: Iterable[int]) -> str:
        """One character of the table for each number."""
        return "".join(self.table[int(number)] for number in numbers)

    def decode(self, numbers: Iterable[int]) -> str:
        """Text to read. Of bytes that are not UTF-8 it shows replacement characters."""
        return self.readable(self.text(numbers))

    def readable(self, text: str) -> str:
        """What `text` gave, to be read: bytes become characters again."""
        return text.encode("ascii", "surrogateescape").decode("utf-8", "replace") if self.unit == "byte" else text

    def decoder(self) -> Decoder:
        return Decoder(self)

    def to_json(self) -> str:
        return json.dumps({"format_version": 1, "unit": self.unit, "symbols": self.table}, indent=0) + "\n"

    @staticmethod
    def from_json(text: str) -> Symbols:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format_version") != 1:
            raise ValueError("not a table of symbols of format_version 1")
        symbols = content.get("symbols")
        if not isinstance(symbols, list):
            raise ValueError("'symbols' must be a list")
        return Symbols(tuple(symbols), content.get("unit", "character"))


class Decoder:
    """Decodes symbol by symbol: a character of several bytes comes when its last byte is there."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, number: int) -> str:
        symbol = self.symbols.table[number]
        if self.symbols.unit == "character":
            return symbol
        return self.utf8.decode(symbol.encode("ascii", "surrogateescape"))

    def rest(self) -> str:
        """What is left of a character that the end cut."""
        return self.utf8.decode(b"", final=True)


def as_symbols(content: bytes) -> str:
    """Bytes as the characters that stand for them."""
    return content.decode("ascii", "surrogateescape")


def codes(text: str) -> npt.NDArray[np.uint32]:
    """(T,): the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def texts(chunks: Iterable[bytes], unit: Unit, name: str, any_bytes: bool = False) -> Iterator[str]:
    """Chunks of a file as text, one character of which is one symbol. `name` is the file's, for an error. `any_bytes`:
    a byte that is no UTF-8 is a symbol, too."""
    if unit == "byte":
        yield from map(as_symbols, chunks)
        return
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape" if any_bytes else "strict")
    fed = 0
    for chunk in chain(chunks, [b""]):
        kept = len(decoder.getstate()[0])  # the bytes of a character that the last chunk cut
        try:
            yield decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            byte, offset = error.object[error.start], fed - kept + error.start
            raise SettingError(
                "{name}: not UTF-8: {reason}, byte 0x{byte:02x} at offset {offset} ({0} reads any file)",
                "bytes",
                name=name,
                reason=error.reason,
                byte=byte,
                offset=offset,
            ) from None
        fed += len(chunk)


def numbered(
    chunks: Iterable[bytes], symbols: Symbols, on_unknown: OnUnknown, name: str, any_bytes: bool = False
) -> Iterator[Tensor]:
    """Chunks of a file as numbers of their symbols, (T,) int64 each."""
    place = 0
    for text in texts(chunks, symbols.unit, name, any_bytes):
        try:
            yield torch.from_numpy(symbols.numbers(codes(text), on_unknown, place))
        except ValueError as error:
            raise located_error(name, error) from None
        place += len(text)
