"""Figures of a text for a paper: vector or pixel graphics, readable in print and by the colour-blind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hmrnn.domains.text.classes import CLASSES, rates_by_class
from hmrnn.domains.text.structure import Segmentation
from hmrnn.sequence import Operation
from hmrnn.show.fonts import fonts_for, what_to_install
from hmrnn.show.style import TEXT_WIDTH, WITH_BLACK

OPERATION_COLOURS = {Operation.UPDATE: "#0072B2", Operation.COPY: "#F0F0F0", Operation.FLUSH: "#D55E00"}

ROW = 90  # characters in a row, as in the paper's Figure 3
LONGEST_SHOWN = 12  # characters of a token that are shown


def visible(symbol: str) -> str:
    """A symbol in a picture: white space must be seen, too."""
    if symbol in "\n\r":
        return "↵"
    if len(symbol) > LONGEST_SHOWN:
        symbol = symbol[: LONGEST_SHOWN - 1] + "…"
    return "␣" if symbol.isspace() else "".join(own if own.isprintable() else "·" for own in symbol)


def width_of(symbols: Sequence[str]) -> int:
    """Characters that each takes of a row: tokens have room between them."""
    longest = max(map(len, symbols))
    return 1 if longest == 1 else min(longest, LONGEST_SHOWN) + 1


class Letters:
    """Writes symbols in fonts that have them."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self.families, self.missing = fonts_for(letter for symbol in symbols for letter in visible(symbol))

    def write(self, axes: Axes, symbols: Iterable[str], y: float) -> None:
        for i, symbol in enumerate(map(visible, symbols)):
            drawn = "".join("·" if letter in self.missing else letter for letter in symbol)
            axes.text(i + 0.5, y, drawn, family=self.families, fontsize=7.5, ha="center", va="center", parse_math=False)


def font_hint(text: str) -> str:
    """What to install to see all of a text in a picture; nothing if all of it is seen."""
    missing = Letters(text).missing
    return what_to_install(missing) if missing else ""


def boundaries_figure(found: Segmentation) -> Figure:
    """The boundaries of every layer under the text, in rows: a line for each, with a tick where a segment ends."""
    layers, symbols, last_places = range(found.steps.z.shape[1]), found.symbols, found.ends
    letters, in_row = Letters(symbols), ROW // width_of(symbols)
    rows = math.ceil(len(symbols) / in_row)
    figure = Figure(figsize=(TEXT_WIDTH, 0.3 + rows * (0.35 + 0.16 * len(layers))), layout="constrained")
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        start = row * in_row
        shown = symbols[start : start + in_row]
        letters.write(axes, shown, y=0.7)
        for l in layers:
            ends = [place + 1 - start for place in last_places[l] if start <= place < start + in_row]
            y, colour = -0.2 - 0.6 * l, WITH_BLACK[l % len(WITH_BLACK)]
            axes.hlines(y, 0, len(shown), color=colour, linewidth=1 + l, gid=f"layer {l + 1}")
            axes.vlines(ends, y - 0.28, y + 0.28, color=colour, linewidth=1.6, gid=f"ends of layer {l + 1}")
            axes.text(-0.6 * in_row / ROW, y, f"z{l + 1}", ha="right", va="center", color=colour, fontsize=8)
        axes.set_xlim(-2 * in_row / ROW, in_row * (1 + 0.5 / ROW))
        axes.set_ylim(-0.6 * len(layers), 1.2)
        axes.axis("off")
    return figure


def norms_figure(found: Segmentation) -> Figure:
    """The norms of the hidden states of each layer as a heat map, in a scale of its own, with a white line where a
    segment ends; under it what the layer did. In rows."""
    symbols, L = found.symbols, found.steps.norms.shape[1]
    in_row = ROW // width_of(symbols)
    rows = math.ceil(len(symbols) / in_row)
    figure = Figure(figsize=(TEXT_WIDTH, 0.9 + rows * (0.3 + 0.3 * L)), layout="constrained")
    letters, heats = Letters(symbols), []
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        start, end = row * in_row, min((row + 1) * in_row, len(symbols))
        letters.write(axes, symbols[start:end], y=L + 0.5)
        heats = [draw_layer(axes, found, l, start, end) for l in range(L)]  # the highest layer on top, as in the paper
        for l in range(L):
            axes.text(-0.6 * in_row / ROW, l + 0.5, f"h{l + 1}", ha="right", va="center", fontsize=8)
        axes.set_xlim(-2 * in_row / ROW, in_row * (1 + 0.5 / ROW))
        axes.set_ylim(0, L + 1)
        axes.axis("off")
    keys = [Patch(facecolor=OPERATION_COLOURS[o], edgecolor="#888888", label=o.name) for o in Operation]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    all_rows = list(figure.axes)
    for l, heat in reversed(list(enumerate(heats))):
        bar = figure.colorbar(heat, ax=all_rows, shrink=0.8, aspect=50, fraction=0.03, pad=0.005)
        bar.ax.set_title(f"h{l + 1}", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        bar.locator = MaxNLocator(4)
    return figure


def draw_layer(axes: Axes, found: Segmentation, l: int, start: int, end: int) -> AxesImage:
    """The norms of layer l from `start` to `end`, and what it did. Returns the heat map."""
    norms, done = found.steps.norms[:, l].numpy(), found.steps.operations[:, l].numpy()
    heat = axes.imshow(
        norms[None, start:end],
        extent=(0, end - start, l + 0.3, l + 0.95),
        aspect="auto",
        cmap="cividis",
        vmin=float(norms.min()),
        vmax=float(norms.max()),
        gid=f"norms of layer {l + 1}",
    )
    axes.imshow(
        done[None, start:end],
        extent=(0, end - start, l + 0.05, l + 0.25),
        aspect="auto",
        cmap=ListedColormap([OPERATION_COLOURS[operation] for operation in Operation]),
        vmin=-0.5,
        vmax=2.5,
        gid=f"operations of layer {l + 1}",
    )
    if l < len(found.ends):
        ends = [place + 1 - start for place in found.ends[l] if start <= place < end]
        axes.vlines(ends, l + 0.3, l + 0.95, color="white", linewidth=1.2, gid=f"ends of layer {l + 1}")
    return heat


def classes_figure(found: Segmentation) -> Figure:
    """How often each detector fires on each kind of symbol: a panel for each layer, in a scale of its own. Every bar
    tells its height, also where none can be seen."""
    rates = rates_by_class(found.text, found.steps.z.numpy())
    layers = rates.shape[1]
    figure = Figure(figsize=(6.5, 0.9 + 1.7 * max(layers, 1)), layout="constrained")
    names = [f"{name} letter" if name in ("first", "middle", "last") else name for name in CLASSES]
    for l, axes in enumerate(figure.subplots(max(layers, 1), 1, sharex=True, squeeze=False)[::-1, 0]):
        axes.set_xticks(range(len(CLASSES)), names)
        axes.tick_params(labelsize=8)
        if l >= layers:
            continue
        own, colour = rates[:, l], WITH_BLACK[l % len(WITH_BLACK)]
        bars = axes.bar(
            range(len(CLASSES)), np.nan_to_num(own), 0.7, color=colour, zorder=2, gid=f"bars of layer {l + 1}"
        )
        told = ["not in the text" if np.isnan(rate) else f"{rate:.1%}" for rate in own]
        axes.bar_label(bars, told, fontsize=7, padding=1)
        axes.set_ylim(0, 1.2 * float(np.nan_to_num(own).max()) or 1.0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylabel(f"z{l + 1}")
        axes.grid(axis="y", alpha=0.3, zorder=0)
    figure.suptitle("share of the symbols of a kind on which a detector fires", fontsize=9)
    return figure
