"""Text as a sequence of numbered symbols: characters, bytes, or what stands between white space."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmrnn.domains.text.config import OnUnknown
from hmrnn.errors import SettingError, check_type, located_error

Unit = Literal["character", "byte", "token"]
Numbers: TypeAlias = npt.NDArray[Any]  # (T,) of an unsigned type: symbols by their number; may lie on disk

REPLACEMENTS = ("\N{REPLACEMENT CHARACTER}", "?", " ")
RARE = "<unk>"  # the token that stands for all rare ones
LONGEST_TOKEN = 1000  # characters: what is longer is no text of tokens
TEXT = (str, bytes, bytearray)  # what a text may be
CODE_POINTS = 0x110000
# What reads text that is not UTF-8, by the setting: in Python, and on the command line.
READS_ANY = {
    "symbols": ("{0}='bytes' reads any file", "{0} bytes reads any file"),
    "bytes": ("{0}=True reads any file", "{0} reads any file"),
    None: ("only a run on bytes reads any file",) * 2,
}


@dataclass(frozen=True)
class Symbols:
    """A table of symbols: the number of a symbol is its place in the table.

    A byte from 128 is written as a lone surrogate, as Python's "surrogateescape" does: it is one character, no text
    contains it, and it is neither letter nor space. A token is what stands between white space; RARE stands for all
    that are not in the table, if it is in the table.
    """

    table: tuple[str, ...]
    unit: Unit = "character"

    def __post_init__(self) -> None:
        if not self.table:
            raise ValueError("a table of symbols must have at least one")
        if not all(isinstance(symbol, str) for symbol in self.table):
            raise ValueError("every symbol must be a string")
        if self.unit == "token":
            if not all(len(symbol) <= LONGEST_TOKEN and symbol.split() == [symbol] for symbol in self.table):
                raise ValueError(f"every token must have 1 to {LONGEST_TOKEN:,} characters, and no white space")
        elif not all(len(symbol) == 1 for symbol in self.table):
            raise ValueError("every symbol must be a single character")
        if len(set(self.table)) != len(self.table):
            raise ValueError("a table of symbols must not name one twice")
        if self.unit not in get_args(Unit):
            raise ValueError(f"the unit must be 'character', 'byte' or 'token'; got {self.unit!r}")
        if self.unit == "byte" and not all(ord(s) < 128 or 0xDC80 <= ord(s) <= 0xDCFF for s in self.table):
            raise ValueError("a table of bytes must hold bytes")

    @staticmethod
    def of(text: str | bytes) -> Symbols:
        """Makes a table of the characters or bytes of a text, sorted."""
        if isinstance(text, bytes):
            return Symbols(tuple(sorted(set(as_symbols(text)))), "byte")
        return Symbols(tuple(sorted(set(text))))

    @staticmethod
    def of_tokens(counts: Mapping[str, int], most: int) -> Symbols:
        """Makes a table of the most frequent tokens. If there are more than `most`, RARE stands for the rest."""
        table = sorted(counts, key=lambda token: (-counts[token], token))
        if len(table) > most:
            table = [*[token for token in table if token != RARE][: most - 1], RARE]
        return Symbols(tuple(table), "token")

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def by_symbol(self) -> Mapping[str, int]:
        return {symbol: number for number, symbol in enumerate(self.table)}

    @cached_property
    def by_code(self) -> npt.NDArray[np.int64]:
        """(CODE_POINTS,): the number of each code point's symbol, -1 if there is none."""
        numbers = np.full(CODE_POINTS, -1, dtype=np.int64)
        numbers[[ord(symbol) for symbol in self.table]] = np.arange(len(self.table))
        return numbers

    @cached_property
    def usual_replacement(self) -> int | None:
        """The number of a symbol that stands for unknown ones by itself, if there is one."""
        usual = (RARE,) if self.unit == "token" else REPLACEMENTS
        return next((self.by_symbol[symbol] for symbol in usual if symbol in self.by_symbol), None)

    @property
    def replacement(self) -> int:
        """The number of the symbol that replaces unknown ones. Of characters it is the last of the alphabet if need be:
        a text without spaces may have none of the usual ones."""
        if self.usual_replacement is None and self.unit == "token":
            raise ValueError(
                f"the model has no {RARE}, which stands for rare tokens, so unknown ones can't be replaced"
            )
        return len(self.table) - 1 if self.usual_replacement is None else self.usual_replacement

    def split(self, text: str | bytes) -> Sequence[str]:
        """Splits a text into symbols, known or not: characters, bytes or tokens."""
        check_type("text", text, TEXT, "a text (str or bytes)")
        text = bytes(text) if isinstance(text, bytearray) else text
        if self.unit == "byte":
            return as_symbols(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
        text = text.decode() if isinstance(text, bytes) else text
        return text.split() if self.unit == "token" else text

    def whole(self, text: str) -> str:
        """Returns the part of a text whose symbols can't change any more: the last token may be incomplete."""
        return text[: len(text) - len(re.split(r"\s", text)[-1])] if self.unit == "token" else text

    def encode(self, text: str | bytes, on_unknown: OnUnknown = "error") -> Tensor:
        """Returns the numbers of the symbols of a text, (T,) int64.

        Args:
            text: The text.
            on_unknown: What to do with symbols that are not in the table: "error", "skip" or "replace".
        """
        return torch.from_numpy(self.numbers(self.split(text), on_unknown))

    def numbers(self, symbols: Sequence[str], on_unknown: OnUnknown, start: int = 0) -> npt.NDArray[np.int64]:
        """Returns the numbers of symbols from `split`. `start` is the place of the first one, for an error."""
        numbers: npt.NDArray[np.int64]
        if isinstance(symbols, str):
            numbers = self.by_code[codes(symbols)]
        else:
            rare = self.by_symbol.get(RARE, -1)
            numbers = np.array([self.by_symbol.get(symbol, rare) for symbol in symbols], dtype=np.int64)
        unknown = numbers < 0
        if not unknown.any():
            return numbers
        if on_unknown == "skip":
            return numbers[~unknown]
        if on_unknown == "replace":
            numbers[unknown] = self.replacement
            return numbers
        first = int(unknown.argmax())
        unknown_symbol = "the symbol {symbol} at position {place} is not among the {count} symbols that the model knows"
        raise SettingError(
            unknown_symbol + " (Symbols.encode goes on without it if {0} is 'skip' or 'replace')",
            "on_unknown",
            on_command_line=unknown_symbol + " ({0} skip or replace goes on without it)",
            symbol=self.named(symbols[first]),
            place=start + first,
            count=len(self),
        )

    def named(self, symbol: str) -> str:
        """Formats a symbol for an error message."""
        if self.unit == "token":
            return repr(symbol)
        if self.unit == "byte" or "\udc80" <= symbol <= "\udcff":
            return f"0x{ord(symbol) & 0xFF:02x}"
        return f"{symbol!r} (U+{ord(symbol):04X})"

    def listed(self, numbers: Iterable[int] | Tensor) -> list[str]:
        """Returns the entry of the table for each number."""
        return [self.table[number] for number in (numbers.tolist() if isinstance(numbers, Tensor) else numbers)]

    def text(self, numbers: Iterable[int] | Tensor) -> str:
        """Joins the entries of the table for numbers; tokens with spaces between them."""
        return self.between.join(self.listed(numbers))

    @property
    def counted(self) -> str:
        """The unit of bits: "token" or, also for bytes, "character"."""
        return "token" if self.unit == "token" else "character"

    @property
    def between(self) -> str:
        """The text between two symbols: a space for tokens, else nothing."""
        return " " if self.unit == "token" else ""

    def decode(self, numbers: Iterable[int] | Tensor) -> str:
        """Returns the text of numbers. Bytes that are not UTF-8 become replacement characters."""
        text = self.text(numbers)
        return text.encode("ascii", "surrogateescape").decode("utf-8", "replace") if self.unit == "byte" else text

    def decoder(self, begun: bool = False) -> Decoder:
        """Returns a decoder that works symbol by symbol. `begun`: other symbols came before."""
        return Decoder(self, begun)

    def to_json(self) -> str:
        """Returns the content of `symbols.json`."""
        return json.dumps({"format_version": 1, "unit": self.unit, "symbols": self.table}, indent=0) + "\n"

    @staticmethod
    def from_json(text: str) -> Symbols:
        """Reads the content of `symbols.json`."""
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format_version") != 1:
            raise ValueError("not a table of symbols of format_version 1")
        symbols = content.get("symbols")
        if not isinstance(symbols, list):
            raise ValueError("'symbols' must be a list")
        return Symbols(tuple(symbols), content.get("unit", "character"))


class Decoder:
    """Decodes symbol by symbol: a character of several bytes comes when its last byte is there."""

    def __init__(self, symbols: Symbols, begun: bool) -> None:
        self.symbols, self.begun = symbols, begun
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, number: int) -> str:
        symbol = self.symbols.table[number]
        if self.symbols.unit != "byte":
            between, self.begun = self.symbols.between if self.begun else "", True
            return between + symbol
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


def texts(
    chunks: Iterable[bytes], unit: Unit, name: str, any_bytes: bool = False, setting: str | None = None
) -> Iterator[str]:
    """Chunks of a file as text. Of bytes, one character stands for each. `any_bytes`: a byte that is no UTF-8 is a
    character, too. For an error: `name` is the file's, and `setting` one by which it could be read, if there is any."""
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
            not_text = "{name}: not UTF-8: {reason}, byte 0x{byte:02x} at offset {offset}"
            in_python, on_command_line = (f"{not_text} ({hint})" for hint in READS_ANY[setting])
            raise SettingError(
                in_python,
                *([setting] if setting else []),
                on_command_line=on_command_line,
                name=name,
                reason=error.reason,
                byte=byte,
                offset=offset,
            ) from None
        fed += len(chunk)


def split_texts(
    chunks: Iterable[bytes], unit: Unit, name: str, any_bytes: bool = False, setting: str | None = None
) -> Iterator[Sequence[str]]:
    """Chunks of a file as sequences of symbols, as `Symbols.split` gives them."""
    if unit != "token":
        yield from texts(chunks, unit, name, any_bytes, setting)
        return
    cut = ""  # the start of a token whose end the next chunk may bring
    for text in chain(texts(chunks, unit, name, any_bytes, setting), ["\n"]):
        tokens = (cut + text).split()
        cut = tokens.pop() if tokens and not text[-1:].isspace() else ""
        if max(map(len, [cut, *tokens])) > LONGEST_TOKEN:
            raise ValueError(
                f"{name}: more than {LONGEST_TOKEN:,} characters without white space: this is no text of tokens"
            )
        yield tokens


def numbered(
    chunks: Iterable[bytes],
    symbols: Symbols,
    on_unknown: OnUnknown,
    name: str,
    any_bytes: bool = False,
    setting: str | None = None,
) -> Iterator[Tensor]:
    """Chunks of a file as numbers of their symbols, (T,) int64 each."""
    place = 0
    for piece in split_texts(chunks, symbols.unit, name, any_bytes, setting):
        try:
            yield torch.from_numpy(symbols.numbers(piece, on_unknown, place))
        except ValueError as error:
            raise located_error(name, error) from None
        place += len(piece)
