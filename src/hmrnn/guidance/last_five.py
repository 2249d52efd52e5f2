"""How often a segment ended after the last five symbols: what runs teach that were begun before `Cutting`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hmrnn.guidance.cuts import Keys, keys_of


class Table(NamedTuple):
    """How often a segment ends after each run of symbols."""

    keys: Keys  # (V,), sorted
    shares: npt.NDArray[np.float32]  # (V,)


MOST_TABLES = 16  # in a file


class LastFive(NamedTuple):
    tables: tuple[Table, ...]  # of the last 1, 2, … symbols

    @property
    def past(self) -> int:
        return len(self.tables) - 1

    @property
    def future(self) -> int:
        return 0

    def evidence(self, symbols: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """(past + T, B) symbols to (T, B): how likely it is that a detector is to fire, from 0 to 1."""
        steps = max(0, len(symbols) - self.past)
        shares = np.zeros((steps, *symbols.shape[1:]), dtype=np.float32)
        for length, table in enumerate(self.tables, start=1):
            keys = keys_of(symbols[len(symbols) - steps - length + 1 :], length)
            if len(table.keys) > 0:
                place = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
                shares = np.where(table.keys[place] == keys, table.shares[place], shares)
        return shares

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        state: dict[str, npt.NDArray[Any]] = {}
        for length, table in enumerate(self.tables, start=1):
            state[f"keys{length}"], state[f"shares{length}"] = table.keys.view(np.int64), table.shares
        return state

    @staticmethod
    def from_state_dict(state: Mapping[str, npt.NDArray[Any]]) -> LastFive:
        """What `state_dict` gave, among others. Anything else is refused."""
        tables: list[Table] = []
        while (name := f"keys{len(tables) + 1}") in state:
            keys, shares = state[name], state[f"shares{len(tables) + 1}"]
            fits = keys.dtype == np.int64 and shares.dtype == np.float32 and keys.shape == shares.shape
            fits = fits and keys.ndim == 1 and bool(((shares >= 0) & (shares <= 1)).all())
            tables.append(Table(np.ascontiguousarray(keys).view(np.uint64), shares))
            in_order = tables[-1].keys[1:] > tables[-1].keys[:-1]  # or no key is found
            if not fits or not in_order.all() or len(tables) > MOST_TABLES:
                raise ValueError("this is not what a teacher knows")
        return LastFive(tuple(tables))
