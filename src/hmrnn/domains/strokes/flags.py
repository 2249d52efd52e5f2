"""The flags of runs on pen strokes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from hmrnn.cli import flags
from hmrnn.cli.metavars import NameOrFile
from hmrnn.config import UsageError, check_size
from hmrnn.domains.strokes.config import StrokeRunConfig
from hmrnn.domains.vectors import flags as vectors


@dataclass(frozen=True, kw_only=True)
class Train(flags.Train):
    """Train a model to predict the next point of a pen. What comes of it is a run: a directory.

    The other flags start from the settings of --preset, or of the run that is resumed. With several processes:
    torchrun --nproc-per-node 2 -m hmrnn train strokes …
    """

    run: Annotated[StrokeRunConfig, arg(name="")]
    preset: Literal["small", "iam-ondb", "paper-iam-ondb"] | None = None
    """Settings by name. small: for a laptop. iam-ondb: the best that we know. paper-iam-ondb: what the paper did. By
    default the one with the name of the data, or small."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(flags.OfData):
    """Measure how well a run predicts handwriting: the average log-likelihood of a line, in nats and in normalised
    coordinates."""

    data: NameOrFile | None = None
    """The lines: iam-ondb, builtin or a file. By default the run's own."""
    sigma_floor: float = 0.0
    """Raise each standard deviation of the predicted density to at least this, in normalised units. Coordinates are
    whole numbers, so a model with a lower floor gains likelihood by it alone: compare models at one floor."""

    def check(self) -> None:
        if not 0 <= self.sigma_floor < float("inf"):
            raise UsageError(f"--sigma-floor must not be negative, and finite; got {self.sigma_floor}")

    def carry_out(self) -> None:
        from hmrnn.domains.strokes.commands import evaluate

        evaluate(self)


@dataclass(frozen=True, kw_only=True)
class Generate(vectors.Generate):
    """Let a run write by hand: as a drawing or, without --out, as JSON lines."""

    max_new: int = 650
    """How many points of each line to make."""
    lines: int = 1
    """How many lines to write."""
    seed: int | None = None
    """The same seed gives the same line; of several lines, the next has the next seed."""
    out: Path | None = None
    """The drawing: .svg has one path for each stroke of the pen, fit for a plotter; or .png."""
    animated: bool = False
    """An SVG that draws itself."""

    def check(self) -> None:
        super().check()
        check_size("--lines", self.lines)
        if self.out is not None and self.out.suffix not in (".svg", ".png"):
            raise UsageError(f"--out must end in .svg or .png; got {self.out}")
        if self.animated and (self.out is None or self.out.suffix != ".svg"):
            raise UsageError("--animated is for --out FILE.svg")

    def carry_out(self) -> None:
        from hmrnn.domains.strokes.commands import generate

        generate(self)


@dataclass(frozen=True, kw_only=True)
class Segment(flags.Segment):
    """Show the segments that a run finds in handwriting: in each line of a file of JSON lines."""

    format: Literal["text", "json", "html"] = "text"
    """text counts the segments of each line, json tells where each ends, html draws them."""

    def carry_out(self) -> None:
        from hmrnn.domains.strokes.commands import segment

        segment(self)


@dataclass(frozen=True, kw_only=True)
class Score(flags.Score):
    """Score the boundaries of each layer against known ones, beside what chance alone would reach.

    Known are the strokes of the pen, and letters and words of the built-in lines.
    """

    data: NameOrFile | None = None
    """The lines: iam-ondb, builtin or a file. By default the run's own."""

    def carry_out(self) -> None:
        from hmrnn.domains.strokes.commands import score

        score(self)


@dataclass(frozen=True, kw_only=True)
class Figure(flags.Figure):
    """Draw what a run found in handwriting, and how it was trained: figures for a paper."""

    kind: Literal["all", "training", "segments", "density"] = "all"
    """segments: a line coloured by the segments of each layer, and by the strokes of the pen. density: where the next
    point was expected. training: loss, firing rates and slope."""
    strokes: bool = False
    """The figures of handwriting alone: segments and density."""
    line: int = 1
    """Which line of the validation part."""

    def check(self) -> None:
        if self.strokes and self.kind != "all":
            raise UsageError(f"--strokes stands for segments and density: it can't be combined with --kind {self.kind}")

    def carry_out(self) -> None:
        from hmrnn.domains.strokes.commands import figure

        figure(self)


@dataclass(frozen=True, kw_only=True)
class Explore(flags.Explore):
    """Serve a page on 127.0.0.1 on which one draws, and watches what the layers make of it."""
