"""Segments of lines as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, TextIO

from hmrnn.domains.vectors.config import Words
from hmrnn.domains.vectors.structure import LineSegmentation
from hmrnn.storage.files import finite
from hmrnn.structure.written import FORMAT_VERSION, as_json


def write_json(found: Iterable[tuple[Mapping[str, Any], LineSegmentation]], words: Words, out: TextIO) -> None:
    """One JSON object, a line of the data a line, written as they are read: each with some notes about it."""
    found = iter(found)
    found = chain([next(found)], found)  # where there is nothing, nothing is written
    out.write(f'{{"format_version": {FORMAT_VERSION}, "unit": "{words.point}", "{words.line}s": [')
    separator = "\n"
    for notes, line in found:
        out.write(separator + json.dumps(finite({**notes, **line_as_json(line, words.point)})))
        out.flush()
        separator = ",\n"
    out.write("\n]}\n")


def line_as_json(line: LineSegmentation, point: str) -> dict[str, Any]:
    """A line: docs/strokes.md tells its fields."""
    done = line.updates
    return {
        f"{point}s": len(line.points),
        "segments": [as_json(segment) for layer in line.layers for segment in layer],
        "updates": {"layers": done.layers, "all": done.all, "saved": done.saved},
    }
