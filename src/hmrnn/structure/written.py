"""Segments as JSON, and what is counted while they are written out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from hmrnn.storage.files import finite
from hmrnn.structure.operations import Steps, Updates, updates
from hmrnn.structure.reading import Read
from hmrnn.structure.segments import Segment

FORMAT_VERSION = 1
Stretch = TypeVar("Stretch", Steps, Read)


class Counted(Generic[Stretch]):
    """Stretches of a sequence whose operations are counted as they pass."""

    def __init__(self, parts: Iterable[Stretch]) -> None:
        self.parts: Iterable[Stretch] = parts
        self.updates: Updates | None = None  # of all that have passed; None before the first

    def __iter__(self) -> Iterator[Stretch]:
        for part in self.parts:
            done = updates(part.operations)
            self.updates = done if self.updates is None else self.updates + done
            yield part


def as_json(segment: Segment, *more: str) -> dict[str, Any]:
    """Its fields, with those named."""
    content = {name: getattr(segment, name) for name in ("layer", "start", "end", "closed", *more)}
    return content if segment.vector is None else {**content, "vector": finite(segment.vector.tolist())}
