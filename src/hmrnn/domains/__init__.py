"""Kinds of sequences: one folder each, with the same file names, and the registry."""

from __future__ import annotations

from collections.abc import Mapping

from hmrnn.domains.domain import Data, Domain
from hmrnn.domains.series.domain import Series
from hmrnn.domains.strokes.domain import Strokes
from hmrnn.domains.text.domain import Text

__all__ = ["DOMAINS", "Data", "Domain"]

DOMAINS: Mapping[str, Domain] = {domain.name: domain for domain in (Text(), Strokes(), Series())}
