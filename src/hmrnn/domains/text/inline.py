"""The segments of a text as a piece of HTML: what a notebook shows of them. No script, nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hmrnn.printable import printable
from hmrnn.structure.segments import Segment

if TYPE_CHECKING:
    from hmrnn.domains.text.structure import Segmentation

SHOWN = 500  # symbols: some kilobytes
# Colours that are seen through, so that they fit a light page and a dark one.
STYLE = """\
.hmrnn-text { font: 13px/1.9 monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: .4em 0 }
.hmrnn-text small { font-family: sans-serif; opacity: .7; display: block; line-height: 1.2 }
.hmrnn-text b { font-weight: inherit; border-radius: 3px; padding: .1em 0; background: #0072b240 }
.hmrnn-text b:nth-of-type(2n) { background: #e69f0050 }
.hmrnn-text b:hover { outline: 1px solid }
"""


def segments_html(found: Segmentation) -> str:
    """The text once for each layer, its segments coloured in turn. Each tells its place when the mouse is over it."""
    parts = [f"<style>{STYLE}</style>"]
    for number, layer in enumerate(found.layers, 1):
        own = "".join(coloured(found, segment) for segment in layer if segment.start < SHOWN)
        parts.append(f'<div class="hmrnn-text"><small>layer {number}: {len(layer):,} segments</small>{own}</div>')
    if not found.layers:
        parts.append(f'<div class="hmrnn-text">{escape(shown(found.text_of(0, SHOWN) or ""))}</div>')
    more = len(found.steps.inputs) - SHOWN
    if more > 0:
        parts.append(f'<div class="hmrnn-text"><small>… {more:,} more symbols</small></div>')
    return "\n".join(parts)


def coloured(found: Segmentation, segment: Segment) -> str:
    end = min(segment.end, SHOWN)
    bits = float(found.steps.surprisal[segment.start : segment.end].nan_to_num().sum())
    text = (found.text_of(segment.start, end) or "") + found.table.between
    return f'<b title="{segment.start} to {segment.end}: {bits:.1f} bits">{escape(shown(text))}</b>'


def shown(text: str) -> str:
    """Line ends are seen, and control characters are."""
    return printable(text, kept="\n\t").replace("\n", "↵\n")
