"""The flags of runs on pen strokes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hmrnn.cli import flags
from hmrnn.config import STANDARD_INPUT, NameOrFile
from hmrnn.domains.strokes.config import StrokeRunConfig
from hmrnn.domains.vectors import flags as vectors
from hmrnn.errors import UsageError, check_not_negative, check_size

if TYPE_CHECKING:
    from hmrnn.domains import Domain


@dataclass(frozen=True, kw_only=True)
class Train(flags.Train):
    examples = (
        "train strokes --data builtin --minutes 3 --out runs/letters",
        "train strokes --resume runs/letters",
    )
    run: StrokeRunConfig
    preset: Literal["small", "iam-ondb", "paper-iam-ondb"] | None = None
    """Settings by name. small: for a laptop. iam-ondb: the best that we know. paper-iam-ondb: what the paper did. By
    default the one with the name of the data, or small."""


@dataclass(frozen=True, kw_only=True)
class OfStrokes(flags.OfData):
    data: NameOrFile | None = None
    """Lines to read: iam-ondb, builtin or a file. By default the run's own."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(OfStrokes):
    """Measure how well a run predicts handwriting: the mean log-likelihood of a line, in nats."""

    examples = ("eval runs/letters",)
    sigma_floor: float = 0.0
    """Raise each standard deviation of the predicted density to at least this, in normalised units. If
    coordinates are whole numbers, a smaller floor raises the likelihood by itself: compare models at the same floor."""

    def check(self) -> None:
        check_not_negative("--sigma-floor", self.sigma_floor)


@dataclass(frozen=True, kw_only=True)
class Generate(vectors.Generate):
    """Generate handwriting with a run, as a drawing or as JSON lines."""

    examples = (
        "generate runs/letters --bias 1 --lines 4 --out letters.svg",
        "generate runs/letters --prime mine.jsonl --out continued.svg",
    )
    max_new: int = 650
    """Number of points of each line."""
    lines: int = 1
    """Number of lines."""
    seed: int | None = None
    """Random seed of the first line; each further line uses the next seed."""
    out: Path | None = None
    """Drawing to write: .svg with one path for each stroke, or .png. Without it, JSON lines on standard output."""
    animated: bool = False
    """Write an SVG that draws itself."""
    json: bool = False
    """Print one line of JSON: primed, the number of points given; lines, each with strokes and with boundaries, a list
    for each point, with 1 for each layer (the lowest first) of which a segment ends with this point; and out."""

    def check(self) -> None:
        super().check()
        check_size("--lines", self.lines)
        if self.out is not None and self.out.suffix.lower() not in (".svg", ".png"):
            raise UsageError(f"--out must end in .svg or .png; got {self.out}")
        if self.animated and (self.out is None or self.out.suffix.lower() != ".svg"):
            raise UsageError("--animated is for --out FILE.svg")

    def look(self, domain: Domain) -> None:
        flags.check_file(self.prime)


@dataclass(frozen=True, kw_only=True)
class Segment(flags.Segment):
    """Show the segments that a run finds in each line of a file of JSON lines."""

    examples = ("segment runs/letters mine.jsonl --format html --out mine.html",)
    files: flags.Files = (STANDARD_INPUT,)
    """Files of JSON lines to read; - is standard input."""
    format: Literal["text", "json", "html"] = "text"
    """text counts the segments of each line, json lists them, html draws them."""

    def look(self, domain: Domain) -> None:
        super().look(domain)
        for file in self.files:
            if file.is_dir():
                raise UsageError(f"{file}: this is a folder: name the files of JSON lines")


@dataclass(frozen=True, kw_only=True)
class Score(OfStrokes, flags.Score):
    """Score the boundaries of each layer against known ones, and compare with random boundaries.

    Known boundaries are those of pen strokes and, for built-in lines, of letters and words.
    """

    examples = ("score runs/letters",)


@dataclass(frozen=True, kw_only=True)
class Figure(flags.Figure):
    """Draw figures of what a run found in handwriting, and of its training."""

    examples = ("figure runs/letters --strokes --out figures",)
    kind: Literal["all", "training", "segments", "density"] = "all"
    """Which figure. segments: a line coloured by the segments of each layer. density: where the next point was
    expected. training: loss, firing rates and slope."""
    strokes: bool = False
    """Draw segments and density only."""
    line: int = 1
    """Number of the line in the validation part, from 1."""

    def check(self) -> None:
        if self.strokes and self.kind != "all":
            raise UsageError(f"--strokes stands for segments and density: it can't be combined with --kind {self.kind}")


@dataclass(frozen=True, kw_only=True)
class Explore(flags.Explore):
    """Open a page in the browser on which you draw, and watch the layers. It runs on this machine only."""

    examples = ("explore builtin-strokes", "explore runs/letters --port 8000")
