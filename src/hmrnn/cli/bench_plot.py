"""The figure of `hmrnn bench --plot`: a training step against firing rate, steps, batch and units."""

from __future__ import annotations

import sys
from dataclasses import replace

from matplotlib.figure import Figure
from tqdm import tqdm

from hmrnn.cli.bench import BFLOAT16, TORCH_LSTM, Setting, in_turn, training_work

HIGHEST_RATE = 0.95  # of both detectors: a rate is less than 1


def sweep(setting: Setting, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of a training step against the rate of the first detector, steps, batch and units."""
    first, second = setting.rates

    def rates(rate: float) -> tuple[float, float]:
        return rate, min(rate * second / first, HIGHEST_RATE)

    axes: dict[str, dict[float, Setting]] = {
        "firing rate": {r: replace(setting, rates=rates(r)) for r in (0.02, 0.1, 0.2, 0.4, 0.7, HIGHEST_RATE)},
        "time steps": {t: replace(setting, steps=t) for t in (10, 25, 50, 100, 200)},
        "batch rows": {b: replace(setting, batch=b) for b in (4, 16, 32, 64, 128)},
        "units a layer": {h: replace(setting, hidden=h) for h in (64, 128, 256, 512)},
    }
    found: dict[str, dict[str, list[float]]] = {}
    with tqdm(unit="run", leave=False, disable=not sys.stderr.isatty()) as progress:
        for axis, points in axes.items():
            found[axis] = {"at": list(points)}
            for value, point in points.items():
                progress.set_description(f"{axis} {value}")
                work = training_work(point, ("native", BFLOAT16, "events"), norm_lstm=False)
                for name, seconds in in_turn(work, repeats, progress).items():
                    found[axis].setdefault(name, []).append(seconds)
    return found


def sweep_figure(found: dict[str, dict[str, list[float]]]) -> Figure:
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    styles = {
        TORCH_LSTM: ("#000000", "o", "-"),
        "native": ("#0072B2", "s", "-"),
        BFLOAT16: ("#009E73", "D", "-"),
        "events": ("#D55E00", "^", "--"),
    }
    for axes, (axis, series) in zip(figure.subplots(2, 2).flat, found.items(), strict=True):
        for name, (colour, marker, line) in styles.items():
            axes.plot(series["at"], series[name], color=colour, marker=marker, linestyle=line, label=name)
        axes.set_xlabel(axis)
        axes.set_ylabel("seconds a training step")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    return figure
