"""The flags of runs on series."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from hmrnn.cli import flags
from hmrnn.cli.metavars import NameOrFile
from hmrnn.config import UsageError
from hmrnn.domains.series.config import SeriesRunConfig
from hmrnn.domains.vectors import flags as vectors

PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class Train(flags.Train):
    """Train a model to predict the next step of a series of numbers. What comes of it is a run: a directory.

    The other flags start from the settings of --preset, or of the run that is resumed. With several processes:
    torchrun --nproc-per-node 2 -m hmrnn train series …
    """

    run: Annotated[SeriesRunConfig, arg(name="")]
    preset: Literal["small"] | None = None
    """Settings by name. small: for a laptop."""


@dataclass(frozen=True, kw_only=True)
class OfSeries(flags.OfData):
    data: NameOrFile | None = None
    """The series: builtin, a file or a folder. By default the run's own."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(OfSeries):
    """Measure how well a run predicts series: the average log-likelihood of a sequence and of a step, in nats, of
    values normalised by the training part."""

    def carry_out(self) -> None:
        from hmrnn.domains.series.commands import evaluate

        evaluate(self)


@dataclass(frozen=True, kw_only=True)
class Generate(vectors.Generate):
    """Let a run make a sequence: as CSV or as a picture."""

    max_new: int = 200
    """How many steps to make."""
    out: Path | None = None
    """Where it goes: a .csv, or a picture of the curves and the segments: .png, .svg or .pdf. By default CSV on
    standard output."""

    def check(self) -> None:
        super().check()
        if self.out is not None and self.out.suffix not in (".csv", *PICTURES):
            raise UsageError(f"--out must end in .csv, {', '.join(PICTURES)}; got {self.out}")

    def carry_out(self) -> None:
        from hmrnn.domains.series.commands import generate

        generate(self)


@dataclass(frozen=True, kw_only=True)
class Segment(flags.Segment):
    """Show the segments that a run finds in series: in each sequence of a file or a folder."""

    format: Literal["text", "csv", "json", "html"] = "text"
    """text counts the segments of each sequence; csv has a row for each segment: sequence, layer, start, end; json has
    the same; html draws the curves, and under them the segments."""

    def carry_out(self) -> None:
        from hmrnn.domains.series.commands import segment

        segment(self)


@dataclass(frozen=True, kw_only=True)
class Score(OfSeries, flags.Score):
    """Score the boundaries of each layer against known ones, beside what chance alone would reach.

    Known are the motifs and the regimes of the built-in series, and what the column --ends tells.
    """

    ends: str | None = None
    """With --data: the column that is 1 where a segment ends, and else 0. By default the one that the run was trained
    with."""
    margin: int = 2
    """A boundary counts as found if one is at most so many steps away."""

    def check(self) -> None:
        if self.margin < 0:
            raise UsageError(f"--margin must not be negative; got {self.margin}")
        if self.ends is not None and self.data is None:
            raise UsageError("--ends is a column of --data: name the file, too")

    def carry_out(self) -> None:
        from hmrnn.domains.series.commands import score

        score(self)


@dataclass(frozen=True, kw_only=True)
class Figure(flags.Figure):
    """Draw what a run found in a series, and how it was trained: figures for a paper."""

    kind: Literal["all", "training", "segments"] = "all"
    """segments: the curves, how well each step was predicted, and the segments of each layer. training: loss, firing
    rates and slope."""
    sequence: int = 1
    """Which sequence of the validation part."""
    steps: tuple[int, int] | None = None
    """The first step and the one after the last, counted from 0. By default the first 200."""

    def check(self) -> None:
        if self.steps is not None and not 0 <= self.steps[0] < self.steps[1]:
            raise UsageError(f"--steps must be two numbers from 0, the smaller first; got {self.steps}")

    def carry_out(self) -> None:
        from hmrnn.domains.series.commands import figure

        figure(self)


@dataclass(frozen=True, kw_only=True)
class Explore(flags.Explore):
    """Serve a page on 127.0.0.1 on which one opens a series, and watches what the layers make of it."""
