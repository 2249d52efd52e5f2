"""The flags of runs on series."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hmrnn.cli import flags
from hmrnn.config import NameOrFile
from hmrnn.domains.series.config import ColumnName, SeriesRunConfig
from hmrnn.domains.vectors import flags as vectors
from hmrnn.errors import UsageError, check_not_negative


@dataclass(frozen=True, kw_only=True)
class Train(flags.Train):
    examples = (
        "train series --data builtin --out runs/motifs",
        "train series --data mine.csv --columns x1 x2 --target-rate 0.1 --out runs/mine",
    )
    run: SeriesRunConfig
    preset: Literal["small"] | None = None
    """Settings by name. small: for a laptop."""


@dataclass(frozen=True, kw_only=True)
class OfSeries(flags.OfData):
    data: NameOrFile | None = None
    """Series to read: builtin, a file or a folder. By default the run's own."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(OfSeries):
    """Measure how well a run predicts series: the mean log-likelihood of a sequence and of a step, in nats."""

    examples = ("eval runs/motifs",)


@dataclass(frozen=True, kw_only=True)
class Generate(vectors.Generate):
    """Generate a sequence with a run, as CSV or as a picture."""

    examples = ("generate runs/motifs --max-new 200 --out made.png",)
    max_new: int = 200
    """Number of steps to generate."""
    out: Path | None = None
    """File to write: .csv, or a picture (.png, .svg, .pdf). By default CSV on standard output."""
    json: bool = False
    """Print one line of JSON: primed, the number of steps given; columns; steps; boundaries, a list for each step, with
    1 for each layer (the lowest first) of which a segment ends with this step; and out."""

    def check(self) -> None:
        super().check()
        if self.out is not None and self.out.suffix.lower() not in (".csv", *flags.FIGURE_ENDINGS):
            raise UsageError(f"--out must end in .csv, {', '.join(flags.FIGURE_ENDINGS)}; got {self.out}")


@dataclass(frozen=True, kw_only=True)
class Segment(flags.Segment):
    """Show the segments that a run finds in each sequence of a file or folder."""

    examples = ("segment runs/mine mine.csv --format csv --out segments.csv",)
    format: Literal["text", "csv", "json", "html"] = "text"
    """text counts the segments of each sequence, csv and json list them, html draws curves and segments."""


@dataclass(frozen=True, kw_only=True)
class Score(OfSeries, flags.Score):
    """Score the boundaries of each layer against known ones, and compare with random boundaries.

    Known boundaries are the motifs and regimes of the built-in series, or the column --ends.
    """

    examples = ("score runs/motifs --margin 2",)
    ends: ColumnName | None = None
    """With --data: the column that is 1 where a segment ends and 0 elsewhere. By default that of the run."""
    margin: int = 2
    """A boundary counts as found if it is at most this many steps away."""

    def check(self) -> None:
        check_not_negative("--margin", self.margin)
        if self.ends is not None and self.data is None:
            raise UsageError("--ends is a column of --data: name the file, too")


@dataclass(frozen=True, kw_only=True)
class Figure(flags.Figure):
    """Draw figures of what a run found in a series, and of its training."""

    examples = ("figure runs/motifs --out figures",)
    kind: Literal["all", "training", "segments"] = "all"
    """Which figure. segments: curves, how well each step was predicted, and the segments of each layer.
    training: loss, firing rates and slope."""
    sequence: int = 1
    """Number of the sequence in the validation part, from 1."""
    steps: tuple[int, int] | None = None
    """First step and the one after the last, counted from 0. By default the first 200."""

    def check(self) -> None:
        if self.steps is not None and not 0 <= self.steps[0] < self.steps[1]:
            raise UsageError(f"--steps must be two numbers from 0, the smaller first; got {self.steps}")


@dataclass(frozen=True, kw_only=True)
class Explore(flags.Explore):
    """Open a page in the browser that shows a series and what the layers do. It runs on this machine only."""

    examples = ("explore runs/motifs",)
