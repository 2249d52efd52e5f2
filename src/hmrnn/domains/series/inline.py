"""The segments of a series as a piece of HTML: what a notebook shows of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hmrnn.domains.series.drawing import STYLE, series_svg
from hmrnn.domains.vectors.structure import LineSegmentation

SHOWN = 900  # steps


@dataclass(frozen=True, repr=False)
class SeriesSegmentation(LineSegmentation):
    """A series, and all that a model made of it."""

    columns: tuple[str, ...]

    def _repr_html_(self) -> str:
        """The curves, and under them the segments of each layer: as SVG."""
        drawn = series_svg(self.columns, replace(self, points=self.points[:SHOWN]))
        more = len(self.points) - SHOWN
        rest = f"<small>… {more:,} more steps</small>" if more > 0 else ""
        return f'<style>{STYLE}</style>\n<div style="--soft: #888">{drawn}{rest}</div>'
