"""What `hmrnn plot` draws and tells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hmrnn.cli.common import (
    check_comparable,
    matplotlib_figures,
    print_json,
    tell_written,
    write_figure,
)
from hmrnn.cli.flags import FIGURE_ENDINGS
from hmrnn.errors import UsageError
from hmrnn.printable import printable
from hmrnn.storage.files import make_folders
from hmrnn.training.history import History, read_history


def plot_runs(directories: Sequence[Path], out: Path, *, as_json: bool) -> None:
    """Draws the learning curves of runs of one kind into one file."""
    if out.suffix.lower() not in FIGURE_ENDINGS:
        raise UsageError(f"--out {out}: its name must end in {', '.join(FIGURE_ENDINGS)}")
    curves = matplotlib_figures("hmrnn.show.curves")
    histories = [read_history(directory) for directory in directories]
    check_comparable({history.directory: history.config for history in histories})
    make_folders(out.parent)
    write_figure(curves.curves_figure(histories), out)
    if as_json:
        measure = histories[0].measure.name
        print_json({"out": out, "measure": measure, "runs": [history.summary() for history in histories]})
        return
    for history in histories:
        print(printable(line_of(history)))
    tell_written(out)


def line_of(history: History) -> str:
    """A line for the user."""
    summary, measure = history.summary(), history.measure
    last, best = summary[f"valid_{measure.name}"], summary[f"best_{measure.name}"]
    validation = "no validation yet" if last is None else f"validation {last:.4f} {measure.name}"
    validation += "" if best is None else f", the best {best:.4f}"
    place = f"update {summary['update']:,}, epoch {summary['epoch']:.2f}, {summary['minutes']:.1f} min"
    return f"{history.directory}: {place}: {validation}"
