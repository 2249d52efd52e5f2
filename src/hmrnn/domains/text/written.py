"""Segments of a text written out while it is read: as marks in the text, or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO

from hmrnn.domains.text.marks import with_mark
from hmrnn.printable import for_stream
from hmrnn.structure.operations import Steps, Updates
from hmrnn.structure.reading import Read
from hmrnn.structure.segments import segments
from hmrnn.structure.written import FORMAT_VERSION, Counted, as_json

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel


def write_marked(model: TextModel, reads: Counted[Read], out: TextIO) -> Updates | None:
    """The text, with marks where segments end. What was counted, if there was anything."""
    decoder = model.symbols.decoder()
    last = "\n"
    for part in reads:
        steps = zip(part.inputs.tolist(), part.z.tolist(), strict=True)
        marked = [with_mark(decoder(n), z, model.delay) for n, z in steps]
        out.write(for_stream("".join(marked), out))
        out.flush()
        last = marked[-1] or last
    out.write(decoder.rest())
    if not last.endswith("\n"):
        out.write("\n")
    return reads.updates


def write_json(model: TextModel, steps: Counted[Steps], out: TextIO) -> Updates | None:
    """One JSON object, a segment a line, written as segments end. docs/structure.md tells its fields. What was counted,
    if there was anything."""
    out.write(f'{{"format_version": {FORMAT_VERSION}, "unit": "{model.symbols.unit}", "segments": [')
    separator = "\n"
    for segment in segments(steps, model.symbols.decode, model.delay):
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
