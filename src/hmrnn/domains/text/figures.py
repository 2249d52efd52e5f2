"""Figures of a text for a paper: vector or pixel graphics, readable in print and by the colour-blind."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hmrnn.domains.text.classes import CLASSES, rates_by_class
from hmrnn.domains.text.structure import Segmentation
from hmrnn.sequence import Operation
from hmrnn.show.style import TEXT_WIDTH, WITH_BLACK

OPERATION_COLOURS = {Operation.UPDATE: "#0072B2", Operation.COPY: "#F0F0F0", Operation.FLUSH: "#D55E00"}

ROW = 90  # characters in a row, as in the paper's Figure 3
LONGEST = 12  # characters of a token that are shown


def visible(symbol: str) -> str:
    """A symbol in a picture: white space must be seen, too."""
    if symbol in "\n\r":
        return "↵"
    if len(symbol) > LONGEST:
        symbol = symbol[: LONGEST - 1] + "…"
    return "␣" if symbol.isspace() else "".join(own if own.isprintable() else "·" for own in symbol)


def width_of(symbols: Sequence[str]) -> int:
    """Characters that each takes of a row: tokens have room between them."""
    longest = max(map(len, symbols))
    return 1 if longest == 1 else min(longest, LONGEST) + 1


def boundaries_figure(found: Segmentation) -> Figure:
    """The boundaries of every layer under the text, in rows: a line for each, with a tick where a segment ends."""
    layers, symbols = range(found.steps.z.shape[1]), found.symbols
    in_row = ROW // width_of(symbols)
    rows = math.ceil(len(symbols) / in_row)
    figure = Figure(figsize=(TEXT_WIDTH, 0.3 + rows * (0.35 + 0.16 * len(layers))), layout="constrained")
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        start = row * in_row
        shown = symbols[start : start + in_row]
        write_symbols(axes, shown, y=0.7)
        for l in layers:
            ends = np.flatnonzero(found.steps.z[start : start + in_row, l].numpy()) + 1
            y, colour = -0.2 - 0.6 * l, WITH_BLACK[l % len(WITH_BLACK)]
            axes.hlines(y, 0, len(shown), color=colour, linewidth=1 + l, gid=f"layer {l + 1}")
            axes.vlines(ends, y - 0.28, y + 0.28, color=colour, linewidth=1.6, gid=f"ends of layer {l + 1}")
            axes.text(-0.6 * in_row / ROW, y, f"z{l + 1}", ha="right", va="center", color=colour, fontsize=8)
        axes.set_xlim(-2 * in_row / ROW, in_row * (1 + 0.5 / ROW))
        axes.set_ylim(-0.6 * len(layers), 1.2)
        axes.axis("off")
    return figure


def write_symbols(axes: Axes, symbols: Sequence[str], y: float) -> None:
    for i, symbol in enumerate(symbols):
        axes.text(i + 0.5, y, visible(symbol), family="monospace", fontsize=7.5, ha="center", va="center")


def norms_figure(found: Segmentation) -> Figure:
    """The norms of the hidden states of each layer as a heat map, with a white line where a segment ends; under it what
    the layer did. In rows."""
    norms, operations = found.steps.norms.numpy().T, found.steps.operations.numpy().T  # (L, T)
    symbols = found.symbols
    in_row = ROW // width_of(symbols)
    L, rows = len(norms), math.ceil(len(symbols) / in_row)
    figure = Figure(figsize=(TEXT_WIDTH, 0.9 + rows * (0.3 + 0.3 * L)), layout="constrained")
    palette = ListedColormap([OPERATION_COLOURS[operation] for operation in Operation])
    heat = None
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        start, end = row * in_row, min((row + 1) * in_row, len(symbols))
        write_symbols(axes, symbols[start:end], y=L + 0.5)
        for l in range(L):  # the highest layer on top, as in the paper
            box = (0, end - start, l + 0.3, l + 0.95)
            heat = axes.imshow(
                norms[l : l + 1, start:end],
                extent=box,
                aspect="auto",
                cmap="cividis",
                vmin=0,
                vmax=float(norms.max()),
                gid=f"norms of layer {l + 1}",
            )
            box = (0, end - start, l + 0.05, l + 0.25)
            done = operations[l : l + 1, start:end]
            axes.imshow(
                done, extent=box, aspect="auto", cmap=palette, vmin=-0.5, vmax=2.5, gid=f"operations of layer {l + 1}"
            )
            if l < L - 1:
                ends = np.flatnonzero(found.steps.z[start:end, l].numpy()) + 1
                axes.vlines(ends, l + 0.3, l + 0.95, color="white", linewidth=1.2, gid=f"ends of layer {l + 1}")
            axes.text(-0.6 * in_row / ROW, l + 0.5, f"h{l + 1}", ha="right", va="center", fontsize=8)
        axes.set_xlim(-2 * in_row / ROW, in_row * (1 + 0.5 / ROW))
        axes.set_ylim(0, L + 1)
        axes.axis("off")
    keys = [Patch(facecolor=OPERATION_COLOURS[o], edgecolor="#888888", label=o.name) for o in Operation]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    if heat is not None:
        figure.colorbar(heat, ax=figure.axes, shrink=0.6, label="norm of h", pad=0.01)
    return figure


def classes_figure(found: Segmentation) -> Figure:
    """How often each detector fires on each kind of symbol."""
    rates = rates_by_class(found.text, found.steps.z.numpy())
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.subplots()
    layers = rates.shape[1]
    for l in range(layers):
        x = np.arange(len(CLASSES)) + (l - (layers - 1) / 2) * 0.8 / layers
        hatch = ("", "//", "..", "xx")[l % 4]
        own = WITH_BLACK[l % len(WITH_BLACK)]
        axes.bar(x, rates[:, l], 0.8 / layers, color=own, hatch=hatch, edgecolor="white", label=f"z{l + 1}", zorder=2)
    names = [f"{name} letter" if name in ("first", "middle", "last") else name for name in CLASSES]
    axes.set_xticks(range(len(CLASSES)), names)
    axes.set_ylabel("share of symbols with a boundary")
    axes.grid(axis="y", alpha=0.3, zorder=0)
    axes.tick_params(labelsize=8)
    if layers:
        axes.legend(fontsize=8)
    return figure
