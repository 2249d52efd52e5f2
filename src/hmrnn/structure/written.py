"""Segments written out while a text is read: as marks in the text, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from hmrnn.files import finite
from hmrnn.structure.marks import mark
from hmrnn.structure.operations import Steps, Updates, updates
from hmrnn.structure.segments import Segment, segments

if TYPE_CHECKING:
    from hmrnn.models import TextModel

FORMAT_VERSION = 1


class Counted:
    """Steps that are counted as they pass."""

    def __init__(self, steps: Iterable[Steps]) -> None:
        self.steps = steps
        self.updates: Updates | None = None  # of all that have passed; None before the first

    def __iter__(self) -> Iterator[Steps]:
        for part in self.steps:
            done = updates(part.operations)
            self.updates = done if self.updates is None else self.updates + done
            yield part


def write_marked(model: TextModel, steps: Iterable[Steps], out: TextIO) -> None:
    """The text, with marks after each symbol on which segments end."""
    decoder = model.symbols.decoder()
    last = "\n"
    for part in steps:
        marked = [decoder(n) + mark(z) for n, z in zip(part.inputs.tolist(), part.z.tolist(), strict=True)]
        out.write("".join(marked))
        out.flush()
        last = marked[-1] or last
    out.write(decoder.rest())
    if not last.endswith("\n"):
        out.write("\n")


def write_json(model: TextModel, steps: Counted, out: TextIO) -> None:
    """One JSON object, a segment a line, written as segments end. docs/structure.md tells its fields."""
    out.write(f'{{"format_version": {FORMAT_VERSION}, "unit": "{model.symbols.unit}", "segments": [')
    separator = "\n"
    for segment in segments(steps, model.symbols):
        out.write(separator + json.dumps(as_json(segment)))
        out.flush()
        separator = ",\n"
    done = steps.updates
    ending: dict[str, Any] = {
        "symbols": done.steps if done else 0,
        "updates": {"layers": done.layers, "all": done.all, "saved": done.saved} if done else None,
    }
    out.write("\n], " + json.dumps(ending)[1:] + "\n")


def as_json(segment: Segment) -> dict[str, Any]:
    content = {name: getattr(segment, name) for name in ("layer", "start", "end", "closed", "text")}
    return content if segment.vector is None else {**content, "vector": finite(segment.vector.tolist())}


def line_as_json(points: int, layers: Iterable[Iterable[Segment]], done: Updates) -> dict[str, Any]:
    """A line of handwriting: docs/strokes.md tells its fields."""
    found = [as_json(segment) for layer in layers for segment in layer]
    return {
        "points": points,
        "segments": [{name: value for name, value in segment.items() if name != "text"} for segment in found],
        "updates": {"layers": done.layers, "all": done.all, "saved": done.saved},
    }
