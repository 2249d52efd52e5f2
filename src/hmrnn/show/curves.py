"""The learning curves of several runs in one picture."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hmrnn.config import ModelConfig
from hmrnn.show.names import LONGEST_NAME, printed, take_literally
from hmrnn.show.style import LINES, TEXT_WIDTH, WITH_BLACK
from hmrnn.training.history import History, Losses, Numbers

MARKERS = "os^Dv"
POINTS = 1000  # of a curve: more can't be seen, and make vector graphics large
SMOOTHED = 30  # a mean is taken over one in so many of a run's updates,
FEWEST = 20  # but over so many at least, if that is no more than a fifth of them
MARKS = 20  # validations of a run that are marked, about
START = 0.05  # share of the updates whose losses may be too large for the picture
GREY = "#555555"
TRAINING: dict[str, Any] = {"linewidth": 0.9, "alpha": 0.5, "zorder": 2}
VALIDATION: dict[str, Any] = {"linewidth": 1.4, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.5}
VALIDATION["zorder"] = 3


@dataclass(frozen=True)
class Curve:
    """A run as it is drawn."""

    label: str
    place: int  # among the runs
    usual: float  # a loss that hardly any is above
    training: Losses
    validation: Losses

    @property
    def colour(self) -> str:
        return WITH_BLACK[self.place % len(WITH_BLACK)]

    @property
    def style(self) -> dict[str, Any]:
        """Of its validations. A dashed line over another leaves both to be seen."""
        marks = {"marker": MARKERS[self.place % len(MARKERS)], "linestyle": LINES[self.place % len(LINES)]}
        return {**VALIDATION, "color": self.colour, **marks}


@dataclass(frozen=True)
class Unit:
    """What the left panel counts."""

    label: str
    size: float  # symbols in one


def curves_figure(histories: Sequence[History]) -> Figure:
    """Training and validation losses of runs of one kind: on the left against what was read, on the right against
    time."""
    curves = [
        Curve(label, i, usual(history), smoothed(history.training), history.validation.finite)
        for i, (history, label) in enumerate(zip(histories, labels(histories), strict=True))
    ]
    columns = 2 if max(len(curve.label) for curve in curves) <= LONGEST_NAME else 1
    rows = -(-len(curves) // columns) + 1
    figure = Figure(figsize=(TEXT_WIDTH, 3.7 + 0.19 * rows), layout="constrained")
    read, time = figure.subplots(1, 2, sharey=True)
    unit = unit_of(histories)
    for history, curve in zip(histories, curves, strict=True):
        both = (curve.training, curve.validation)
        draw(read, curve, *(steps(history, losses) / unit.size for losses in both))
        draw(time, curve, *(losses.minutes for losses in both))
    for axes, label in ((read, unit.label), (time, "minutes of training")):
        axes.set_xlabel(label, fontsize=9)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    read.set_ylabel(histories[0].measure.text, fontsize=9)
    read.set_ylim(limits(curves))
    add_legends(figure, curves, columns)
    return figure


def labels(histories: Sequence[History]) -> list[str]:
    """The names of the runs' folders, or where those are the same the paths; and the shapes of the models."""
    names = [Path(os.path.abspath(history.directory)).name for history in histories]
    count = Counter(names)
    shown = [name if count[name] == 1 else str(h.directory) for name, h in zip(names, histories, strict=True)]
    return [f"{printed(name)} ({shape(h.config.model)})" for name, h in zip(shown, histories, strict=True)]


def shape(model: ModelConfig) -> str:
    sizes = model.hidden_sizes
    alike = len(sizes) > 1 and len(set(sizes)) == 1
    return f"{model.model}, {f'{len(sizes)} × {sizes[0]}' if alike else ' + '.join(map(str, sizes))}"


def smoothed(losses: Losses) -> Losses:
    """Each loss is the mean of those around it; of many, some are kept."""
    finite = losses.finite
    count = len(finite.loss)
    half = min(max(FEWEST, count // SMOOTHED), count // 5) // 2
    kept = np.unique(np.linspace(0, count - 1, min(count, POINTS)).astype(int))
    means = np.array([finite.loss[max(0, i - half) : i + half + 1].mean() for i in kept])
    return Losses(finite.update[kept], finite.epoch[kept], finite.minutes[kept], means)


def usual(history: History) -> float:
    """Large losses at the start, and spikes, are above it. A few of them are in many means; and where losses scatter,
    single ones are higher than any mean."""
    single = history.training.finite.loss
    if not len(single):
        return float(np.quantile(history.validation.finite.loss, 1 - START))
    means = smoothed(history.training).loss
    of_single, of_means = (float(np.quantile(losses, 1 - START)) for losses in (single, means))
    return min(of_single, of_means) if of_single > means.min() else of_means  # at least some of the means are seen


def steps(history: History, losses: Losses) -> Numbers:
    """How much was read: steps, or epochs if updates read different numbers of steps."""
    each = history.steps_per_update
    return losses.epoch if each is None else losses.update * each


def unit_of(histories: Sequence[History]) -> Unit:
    if histories[0].steps_per_update is None:
        return Unit("epochs", 1)
    read = np.concatenate([steps(h, losses) for h in histories for losses in (h.training, h.validation)])
    for name, size in (("million ", 1e6), ("thousand ", 1e3)):
        if read.max() >= size:
            return Unit(f"{name}{histories[0].measure.step} read", size)
    return Unit(f"{histories[0].measure.step} read", 1)


def draw(axes: Axes, curve: Curve, training: Numbers, validation: Numbers) -> None:
    """Its losses at these places."""
    axes.plot(training, curve.training.loss, **TRAINING, color=curve.colour, gid=f"{curve.label}: training")
    marked = max(1, len(validation) // MARKS)
    axes.plot(validation, curve.validation.loss, **curve.style, markevery=marked, gid=f"{curve.label}: validation")


def limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """The lowest and the highest loss in the picture, with some air."""
    low = min(float(losses.loss.min()) for c in curves for losses in (c.training, c.validation) if len(losses.loss))
    high = max(highest(curve, low) for curve in curves)
    air = 0.04 * (high - low) or 0.1
    return low - air, high + air


def highest(curve: Curve, low: float) -> float:
    """The loss up to which a run is shown: validations, too, so that one that overfits is seen to do so, but not those
    that would leave no room for the rest."""
    shown = curve.validation.loss[curve.validation.loss <= low + 2 * (curve.usual - low)]
    return max(curve.usual, float(shown.max(initial=low)))


def add_legends(figure: Figure, curves: Sequence[Curve], columns: int) -> None:
    """Which line is which loss, and which colour is which run. Outside the panels, where no curve can be."""
    keys = [Line2D([], [], color=GREY, marker="o", **VALIDATION), Line2D([], [], color=GREY, **TRAINING)]
    look: dict[str, Any] = {"frameon": False, "fontsize": 8}
    figure.legend(keys, ["validation", "training, running mean"], loc="outside upper right", ncols=2, **look)
    handles = [Line2D([], [], **curve.style) for curve in curves]
    names = [curve.label for curve in curves]
    look["handlelength"] = 3.5  # room for dashes
    legend = figure.legend(handles, names, loc="outside lower center", ncols=columns, **look)
    take_literally(legend)
