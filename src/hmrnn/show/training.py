"""How runs were trained: loss, firing rates and slope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hmrnn.config import Measure
from hmrnn.show.names import printed, take_literally
from hmrnn.show.style import LINES, TEXT_WIDTH, WITH_BLACK
from hmrnn.training.history import can_be_drawn


def training_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]], measure: Measure) -> Figure:
    """Loss, firing rates and slope of one or more runs, from the records of their metrics.jsonl."""
    figure = Figure(figsize=(TEXT_WIDTH, 3.2), layout="constrained")
    loss, rates, slope = figure.subplots(1, 3)
    for i, (directory, records) in enumerate(runs.items()):
        name, colour = printed(directory), WITH_BLACK[i % len(WITH_BLACK)]
        placed = [r for r in records if can_be_drawn(r.get("epoch"))]
        updates = [r for r in placed if can_be_drawn(r.get(measure.name))]
        checked = [r for r in placed if can_be_drawn(r.get(f"valid_{measure.name}"))]
        epochs = [r["epoch"] for r in updates]
        smooth = running_mean([r[measure.name] for r in updates])
        loss.plot(epochs, smooth, color=colour, linewidth=1, label=name)
        at, values = [r["epoch"] for r in checked], [r[f"valid_{measure.name}"] for r in checked]
        loss.plot(
            at, values, color=colour, linestyle="", marker="os^Dv"[i % 5], markersize=4, gid=f"{name}: validation"
        )
        fired = [rates_in(r) for r in updates]
        detectors = min(map(len, fired), default=0)
        for l in range(detectors):
            column = running_mean([own[l] for own in fired])
            label = f"{name}: z{l + 1}" if len(runs) > 1 else f"z{l + 1}"
            own = WITH_BLACK[l % len(WITH_BLACK)] if len(runs) == 1 else colour
            rates.plot(epochs, column, color=own, linestyle=LINES[l % 4], label=label)
        if detectors:
            slopes = [r["slope"] if can_be_drawn(r.get("slope")) else math.nan for r in updates]
            slope.plot(epochs, slopes, color=colour, linestyle=LINES[i % 4], label=name)
    for axes, title in ((loss, measure.text), (rates, "boundaries a step"), (slope, "slope")):
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
