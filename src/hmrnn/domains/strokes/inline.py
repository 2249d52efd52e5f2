"""The segments of a line as a piece of HTML: what a notebook shows of them."""

from __future__ import annotations

from dataclasses import dataclass

from hmrnn.domains.strokes.drawing import STYLE, coloured_svg, pieces
from hmrnn.domains.vectors.structure import LineSegmentation

SHOWN = 800  # points


@dataclass(frozen=True, repr=False)
class StrokeSegmentation(LineSegmentation):
    """A line of handwriting, and all that a model made of it."""

    def _repr_html_(self) -> str:
        """The line, coloured by its pen strokes and by the segments of each layer: as SVG."""
        parts = [f"<style>{STYLE}</style>"]
        for name, ends in pieces(self):
            parts.append(f"<small>{name}</small>\n{coloured_svg(self.points[:SHOWN], ends[:SHOWN])}")
        if len(self.points) > SHOWN:
            parts.append(f"<small>… {len(self.points) - SHOWN:,} more points</small>")
        return "\n".join(parts)
