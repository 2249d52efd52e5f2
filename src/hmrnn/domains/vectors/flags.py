"""Flags of runs on vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hmrnn.cli import flags
from hmrnn.errors import check_not_negative

if TYPE_CHECKING:
    from hmrnn.domains import Domain


@dataclass(frozen=True, kw_only=True)
class Generate(flags.Generate):
    prime: Path | None = None
    """Continue the first sequence of this file."""
    bias: float = 0.0
    """Sharpen the mixture (Graves, 2013): 0 samples the model itself, larger values are neater. 1 is a start."""

    def check(self) -> None:
        super().check()
        check_not_negative("--bias", self.bias)

    def look(self, domain: Domain) -> None:
        flags.check_there(self.prime)
