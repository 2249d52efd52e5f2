"""The picture of README: text and handwriting that no model was trained on, with the segments of two layers.

    python benchmarks/hierarchy_picture.py --out docs/hierarchy.svg

The models are the two that come with the package. The text stands in the test part of the built-in text. The line is
drawn by a seed that the handwriting model was not trained with.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hmrnn import StrokeModel, TextModel
from hmrnn.domains.strokes.config import StrokeDataConfig, WritingConfig
from hmrnn.domains.strokes.data.lines import load_strokes
from hmrnn.domains.strokes.data.points import to_strokes
from hmrnn.domains.strokes.drawing import segment_lines
from hmrnn.domains.strokes.figures import around, draw
from hmrnn.domains.text.data.corpora import builtin_text
from hmrnn.show.style import COLOURS
from hmrnn.structure.segments import Segment

SYMBOLS = 78  # of the text that are shown
BEFORE = 200  # that are read before them, since a model needs some context
UNSEEN = WritingConfig(lines=40, words=(6, 6), seed=4711)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/hierarchy.svg"))
    parser.add_argument("--text", default="Lists are mutable sequences")
    parser.add_argument("--line", type=int, default=0)
    asked = parser.parse_args()
    figure = Figure(figsize=(9, 2.7), layout="constrained")
    above, *below = figure.subplots(3, 1, height_ratios=[1.3, 1, 1])
    draw_text(above, asked.text)
    draw_handwriting(below, asked.line)
    figure.savefig(asked.out)


def draw_text(axes: Axes, wanted: str) -> None:
    text = builtin_text()
    at = text.index(wanted, int(0.95 * len(text)))
    found = TextModel.from_pretrained("builtin").segment(text[at - BEFORE : at + SYMBOLS])
    for i, symbol in enumerate(found.text[BEFORE:]):
        axes.text(i + 0.5, 2.6, symbol.replace("\n", "↵"), family="monospace", fontsize=9, ha="center", va="center")
    for l, segments in enumerate(found.layers):
        label(axes, f"layer {l + 1}", 1.6 - l)
        bars(axes, segments, y=1.6 - l)
    axes.set(xlim=(-7, SYMBOLS), ylim=(0, 3.2))
    axes.axis("off")


def bars(axes: Axes, segments: Sequence[Segment], y: float) -> None:
    """A bar for each segment, up to the edges of what is shown."""
    for n, segment in enumerate(segments):
        start, end = max(segment.start - BEFORE, 0), min(segment.end - BEFORE, SYMBOLS)
        if end > start:
            axes.add_patch(Rectangle((start + 0.1, y - 0.35), end - start - 0.2, 0.7, color=COLOURS[n % len(COLOURS)]))


def draw_handwriting(panels: Sequence[Axes], number: int) -> None:
    line = load_strokes(StrokeDataConfig(writing=UNSEEN)).split("train")[number]
    found = StrokeModel.from_pretrained("builtin-strokes").segment(line)
    strokes = to_strokes(line)
    left, right, bottom, top = around(strokes)
    for l, axes in enumerate(panels):
        ends = found.steps.z[:, l].numpy().astype(bool)
        segments, lines = zip(*segment_lines(strokes, ends), strict=True)
        draw(axes, lines, [COLOURS[k % len(COLOURS)] for k in segments], width=1.6, gid=f"handwriting, layer {l + 1}")
        label(axes, f"layer {l + 1}", (top + bottom) / 2, x=left - 0.08 * (right - left))
        axes.set(xlim=(left - 0.09 * (right - left), right), ylim=(bottom, top), aspect="equal")
        axes.set_anchor("W")
        axes.axis("off")


def label(axes: Axes, name: str, y: float, x: float = -7) -> None:
    axes.text(x, y, name, ha="left", va="center", fontsize=9, color="#555555")


if __name__ == "__main__":
    main()
