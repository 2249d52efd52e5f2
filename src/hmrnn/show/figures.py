"""Figures for a paper: vector or pixel graphics, readable in print and by the colour-blind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hmrnn.domains.strokes import drawing
from hmrnn.domains.text.classes import CLASSES, rates_by_class
from hmrnn.sequence import Operation
from hmrnn.show.names import printed, take_literally
from hmrnn.training.history import can_be_drawn

if TYPE_CHECKING:
    from hmrnn.domains.text.structure import Segmentation

# Okabe and Ito's colours: told apart by the colour-blind, and of different darkness in print.
COLOURS = (*drawing.COLOURS, "#000000")
LINES = ("-", "--", ":", "-.")
OPERATION_COLOURS = {Operation.UPDATE: "#0072B2", Operation.COPY: "#F0F0F0", Operation.FLUSH: "#D55E00"}
MEASURES = {"bits": "bits per character", "nats": "nats a point, -log p"}
ROW = 90  # symbols in a row, as in the paper's Figure 3
TEXT_WIDTH = 10.0  # inches


def visible(symbol: str) -> str:
    """A symbol in a picture: white space must be seen, too."""
    if symbol in "\n\r":
        return "↵"
    return "␣" if symbol.isspace() else symbol if symbol.isprintable() else "·"


def boundaries_figure(found: Segmentation) -> Figure:
    """The boundaries of every layer under the text, in rows: a line for each, with a tick where a segment ends."""
    layers = range(found.steps.z.shape[1])
    rows = math.ceil(len(found.text) / ROW)
    figure = Figure(figsize=(TEXT_WIDTH, 0.3 + rows * (0.35 + 0.16 * len(layers))), layout="constrained")
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        start = row * ROW
        text = found.text[start : start + ROW]
        write_text(axes, text, y=0.7)
        for l in layers:
            ends = np.flatnonzero(found.steps.z[start : start + ROW, l].numpy()) + 1
            y, colour = -0.2 - 0.6 * l, COLOURS[l % len(COLOURS)]
            axes.hlines(y, 0, len(text), color=colour, linewidth=1 + l, gid=f"layer {l + 1}")
            axes.vlines(ends, y - 0.28, y + 0.28, color=colour, linewidth=1.6, gid=f"ends of layer {l + 1}")
            axes.text(-0.6, y, f"z{l + 1}", ha="right", va="center", color=colour, fontsize=8)
        axes.set_xlim(-2, ROW + 0.5)
        axes.set_ylim(-0.6 * len(layers), 1.2)
        axes.axis("off")
    return figure


def write_text(axes: Axes, text: str, y: float) -> None:
    for i, symbol in enumerate(text):
        axes.text(i + 0.5, y, visible(symbol), family="monospace", fontsize=7.5, ha="center", va="center")


def norms_figure(found: Segmentation) -> Figure:
    """The norms of the hidden states of each layer as a heat map, with a white line where a segment ends; under it what
    the layer did. In rows."""
    norms, operations = found.steps.norms.numpy().T, found.steps.operations.numpy().T  # (L, T)
    L, rows = len(norms), math.ceil(len(found.text) / ROW)
    figure = Figure(figsize=(TEXT_WIDTH, 0.9 + rows * (0.3 + 0.3 * L)), layout="constrained")
    palette = ListedColormap([OPERATION_COLOURS[operation] for operation in Operation])
    heat = None
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        start, end = row * ROW, min((row + 1) * ROW, len(found.text))
        write_text(axes, found.text[start:end], y=L + 0.5)
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
            axes.text(-0.6, l + 0.5, f"h{l + 1}", ha="right", va="center", fontsize=8)
        axes.set_xlim(-2, ROW + 0.5)
        axes.set_ylim(0, L + 1)
        axes.axis("off")
    keys = [Patch(facecolor=OPERATION_COLOURS[o], edgecolor="#888888", label=o.name) for o in Operation]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    if heat is not None:
        figure.colorbar(heat, ax=figure.axes, shrink=0.6, label="norm of h", pad=0.01)
    return figure


def training_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Loss, firing rates and slope of one or more runs, from the records of their metrics.jsonl."""
    measures = {name for records in runs.values() for name in MEASURES if any(name in record for record in records)}
    if len(measures) > 1:
        raise ValueError("runs on text and runs on strokes can't be drawn together: their losses do not compare")
    measure = next(iter(measures), "bits")
    figure = Figure(figsize=(TEXT_WIDTH, 3.2), layout="constrained")
    loss, rates, slope = figure.subplots(1, 3)
    for i, (directory, records) in enumerate(runs.items()):
        name, colour = printed(directory), COLOURS[i % len(COLOURS)]
        placed = [r for r in records if can_be_drawn(r.get("epoch"))]
        updates = [r for r in placed if can_be_drawn(r.get(measure))]
        checked = [r for r in placed if can_be_drawn(r.get(f"valid_{measure}"))]
        epochs = [r["epoch"] for r in updates]
        smooth = running_mean([r[measure] for r in updates])
        loss.plot(epochs, smooth, color=colour, linewidth=1, label=name)
        at, values = [r["epoch"] for r in checked], [r[f"valid_{measure}"] for r in checked]
        loss.plot(
            at, values, color=colour, linestyle="", marker="os^Dv"[i % 5], markersize=4, gid=f"{name}: validation"
        )
        fired = [rates_in(r) for r in updates]
        detectors = min(map(len, fired), default=0)
        for l in range(detectors):
            column = running_mean([own[l] for own in fired])
            label = f"{name}: z{l + 1}" if len(runs) > 1 else f"z{l + 1}"
            own = COLOURS[l % len(COLOURS)] if len(runs) == 1 else colour
            rates.plot(epochs, column, color=own, linestyle=LINES[l % 4], label=label)
        if detectors:
            slopes = [r["slope"] if can_be_drawn(r.get("slope")) else math.nan for r in updates]
            slope.plot(epochs, slopes, color=colour, linestyle=LINES[i % 4], label=name)
    for axes, title in ((loss, MEASURES[measure]), (rates, "boundaries a step"), (slope, "slope")):
        axes.set_xlabel("epoch")
        axes.set_title(title + (" (line: training, marks: validation)" if axes is loss else ""), fontsize=8.5)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
        if axes.get_legend_handles_labels()[0]:
            take_literally(axes.legend(fontsize=7))
    rates.set_ylim(bottom=0)
    return figure


def rates_in(record: Mapping[str, Any]) -> list[float]:
    """How often each detector fired; nothing if it does not say."""
    rates = record.get("rates")
    return rates if isinstance(rates, list) and all(map(can_be_drawn, rates)) else []


def running_mean(values: Sequence[float], over: int = 20) -> list[float]:
    """Each value's mean with the up to `over` - 1 before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - over)
    return [float(mean) for mean in (sums[ends] - sums[starts]) / (ends - starts)]


def classes_figure(found: Segmentation) -> Figure:
    """How often each detector fires on each kind of symbol."""
    rates = rates_by_class(found.text, found.steps.z.numpy())
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.subplots()
    layers = rates.shape[1]
    for l in range(layers):
        x = np.arange(len(CLASSES)) + (l - (layers - 1) / 2) * 0.8 / layers
        hatch = ("", "//", "..", "xx")[l % 4]
        own = COLOURS[l % len(COLOURS)]
        axes.bar(x, rates[:, l], 0.8 / layers, color=own, hatch=hatch, edgecolor="white", label=f"z{l + 1}", zorder=2)
    names = [f"{name} letter" if name in ("first", "middle", "last") else name for name in CLASSES]
    axes.set_xticks(range(len(CLASSES)), names)
    axes.set_ylabel("share of symbols with a boundary")
    axes.grid(axis="y", alpha=0.3, zorder=0)
    axes.tick_params(labelsize=8)
    if layers:
        axes.legend(fontsize=8)
    return figure
