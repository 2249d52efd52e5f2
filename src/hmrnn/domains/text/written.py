"""Segments of a text written out while it is read: as marks in the text, or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO

from hmrnn.domains.text.marks import Marked, MarkOf, mark
from hmrnn.printable import for_stream
from hmrnn.structure.operations import Steps, Updates
from hmrnn.structure.reading import Read
from hmrnn.structure.segments import segments
from hmrnn.structure.written import FORMAT_VERSION, Counted, as_json

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel


def write_marked(
    model: TextModel,
    reads: Counted[Read],
    out: TextIO,
    mark: MarkOf = mark,
    *,
    separates: bool = False,
    escape: bool = False,
) -> Updates | None:
    """The text, with marks where segments end. What was counted, if there was anything. A mark that `separates` stands
    in place of the space between two tokens. With `escape`, line ends of the text are seen as \\n: no line then ends
    but by a mark."""
    decoder = model.symbols.decoder()
    marked = Marked(model.delay, mark, model.symbols.between if separates else "")
    last = "\n"

    def write(text: str) -> None:
        nonlocal last
        out.write(for_stream(text, out))
        last = text or last

    for part in reads:
        steps = zip(part.inputs.tolist(), part.z.tolist(), strict=True)
        write("".join(marked(escaped(decoder(n)) if escape else decoder(n), z) for n, z in steps))
        out.flush()
    write(marked.rest() + decoder.rest())
    if not last.endswith("\n"):
        out.write("\n")
    return reads.updates


def escaped(symbol: str) -> str:
    return symbol.replace("\\", "\\\\").replace("\n", "\\n")


def write_json(
    model: TextModel, steps: Counted[Steps], out: TextIO, layer: int | None = None, name: str | None = None
) -> Updates | None:
    """One JSON object, a segment a line, written as segments end. docs/structure.md tells its fields. What was counted,
    if there was anything. Of one layer, if it is given; with the name of the text, if that is."""
    named = "" if name is None else f'"file": {json.dumps(name)}, '
    out.write(f'{{"format_version": {FORMAT_VERSION}, {named}"unit": "{model.symbols.unit}", "segments": [')
    separator = "\n"
    for segment in segments(steps, model.symbols.decode, model.delay):
        if layer not in (None, segment.layer):
            continue
        out.write(separator + json.dumps(as_json(segment, "text")))
        out.flush()
        separator = ",\n"
    done = steps.updates
    ending: dict[str, Any] = {
        "symbols": done.steps if done else 0,
        "updates": {"layers": done.layers, "all": done.all, "saved": done.saved} if done else None,
    }
    out.write("\n], " + json.dumps(ending)[1:] + "\n")
    return done
