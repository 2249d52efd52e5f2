"""Text as a sequence of symbols."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Symbols:
    """A table of symbols: the number of a symbol is its place in the table."""

    table: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.table:
            raise ValueError("a table of symbols must have at least one")
        if not all(isinstance(symbol, str) and len(symbol) == 1 for symbol in self.table):
            raise ValueError("every symbol must be a single character")
        if len(set(self.table)) != len(self.table):
            raise ValueError("a table of symbols must not name one twice")

    @staticmethod
    def of(text: str) -> Symbols:
        """The symbols of a text, sorted."""
        return Symbols(tuple(sorted(set(text))))

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.table)}

    def encode(self, text: str) -> Tensor:
        """(T,) int64"""
        try:
            return torch.tensor([self.numbers[symbol] for symbol in text], dtype=torch.int64)
        except KeyError as error:
            symbol = error.args[0]
            raise ValueError(
                f"the symbol {symbol!r} (U+{ord(symbol):04X}) at position {text.index(symbol)} is not among the "
                f"{len(self)} symbols that the model knows"
            ) from None

    def decode(self, numbers: Tensor | Iterable[int]) -> str:
        return "".join(self.table[int(number)] for number in numbers)

    def to_json(self) -> str:
        return json.dumps({"format_version": 1, "symbols": self.table}, indent=0) + "\n"

    @staticmethod
    def from_json(text: str) -> Symbols:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format_version") != 1:
            raise ValueError("not a table of symbols of format_version 1")
        symbols = content.get("symbols")
        if not isinstance(symbols, list):
            raise ValueError("'symbols' must be a list")
        return Symbols(tuple(symbols))
