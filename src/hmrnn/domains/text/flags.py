"""The flags of runs on text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from hmrnn.cli import flags
from hmrnn.config import STANDARD_INPUT, NameOrFile
from hmrnn.domains.text.config import (
    IN_EXPLORER,
    AdaptingConfig,
    TextReadingConfig,
    TextRunConfig,
)
from hmrnn.errors import UsageError, check_size

if TYPE_CHECKING:
    from hmrnn.domains import Domain

Reading = Annotated[TextReadingConfig, OmitArgPrefixes]
BY_DEFAULT = TextReadingConfig()


@dataclass(frozen=True, kw_only=True)
class Train(flags.Train):
    examples = (
        "train text --data novel.txt --minutes 10 --out runs/novel",
        "train text --resume runs/novel",
        "train text --preset ptb --data ptb --data-dir DIR --out runs/ptb",
    )
    run: TextRunConfig
    preset: Literal["small", "ptb", "text8", "enwik8", "paper-ptb", "paper-text8", "paper-enwik8"] = "small"
    """Settings by name. small: for a laptop. ptb, text8, enwik8: the best that we know. paper-…: what the paper did."""


@dataclass(frozen=True, kw_only=True)
class OfText(flags.OfData):
    data: NameOrFile | None = None
    """Text to read: ptb, text8, enwik8, builtin, planted, a file or a folder. By default the run's own."""
    reading: Reading = BY_DEFAULT


@dataclass(frozen=True, kw_only=True)
class Evaluate(OfText):
    """Measure how well a run predicts a text, in bits per character or token. For a run on bytes, a byte counts as a
    character."""

    examples = (
        "eval runs/novel",
        "eval runs/novel --data other.txt --streams 64",
    )
    streams: int = 1
    """Number of parallel streams. 1 is exact; more are faster, but all except the first start from a zero state."""
    temperature: float | Literal["auto"] | None = None
    """Also report the figure with logits divided by this. auto chooses the best on the validation part."""
    dynamic: float | Literal["auto"] | None = None
    """Also report dynamic evaluation: a copy of the model learns while it reads, with this step size (eta).
    auto chooses it on the validation part; 0.0005 is a start."""
    decay: float | None = None
    """Dynamic evaluation: decay towards the trained weights (lambda, 0 to 1). By default chosen on validation."""

    @property
    def adapting(self) -> AdaptingConfig:
        return AdaptingConfig(self.temperature, self.dynamic, self.decay)

    def check(self) -> None:
        check_size("--streams", self.streams)
        _ = self.adapting  # refuses what it can't be
        if self.dynamic is not None and self.streams != 1:
            raise UsageError("--dynamic reads one stream: it can't be combined with --streams")


@dataclass(frozen=True, kw_only=True)
class Generate(flags.Generate):
    """Generate text with a run, symbol by symbol, after a prompt."""

    examples = (
        'generate builtin "The value of" --show-boundaries',
        "generate runs/novel --temperature 0.7 --seed 1",
    )
    start: Annotated[Positional[str], arg(metavar="[PROMPT]")] = ""
    """Text to continue."""
    prompt: str = ""
    """Text to continue, the same as PROMPT."""
    max_new: int = 500
    """Number of symbols to generate."""
    temperature: float = 1.0
    """Divide logits by this. Below 1, likely symbols become likelier; 0 always takes the likeliest."""
    top_k: int | None = None
    """Sample only from this many likeliest symbols."""
    top_p: float | None = None
    """Sample only from the likeliest symbols that together have this probability."""
    show_boundaries: bool = False
    """Mark where segments end: | in layer 1, ‖ in layer 2, ⦀ above."""
    json: bool = False
    """Print one line of JSON: prompt, text, and boundaries, a list for each symbol of both, with 1 for each layer (the
    lowest first) of which a segment ends with this symbol, and else 0."""
    reading: Reading = BY_DEFAULT

    def check(self) -> None:
        super().check()
        if self.start and self.prompt:
            raise UsageError("the text starts with one prompt: give it with --prompt, or without")


@dataclass(frozen=True, kw_only=True)
class Segment(flags.Segment):
    """Show the segments that a run finds in a text. Texts of any length are read in constant memory."""

    examples = (
        'segment builtin --text "The value of the argument"',
        "segment runs/novel chapter.txt --format html --out chapter.html",
    )
    format: Literal["text", "json", "html"] = "text"
    """text: the text with marks, | at the end of a segment of layer 1, ‖ of layer 2, ⦀ above. json: one object.
    html: a page that shows every step, for up to 100,000 symbols."""
    text: str | None = None
    """The text itself to segment, instead of files."""
    layer: int | None = None
    """Show the segments of this layer only; 1 is the lowest."""
    separator: str | None = None
    """Write this between the segments of a layer (the first, without --layer). \\n and \\t are a line end and a tab."""
    lines: bool = False
    """Write each segment of a layer (the first, without --layer) on its own line, with line ends shown as \\n."""
    bytes: bool = False
    """Read files that are not UTF-8. A byte that is no character is an unknown symbol (--on-unknown)."""
    reading: Reading = BY_DEFAULT

    @property
    def of_layer(self) -> int | None:
        """The one layer that is shown; None for all."""
        one = self.lines or self.separator is not None
        return self.layer or (1 if one else None)

    def check(self) -> None:
        super().check()
        if self.text is not None and self.files != (STANDARD_INPUT,):
            raise UsageError("--text is a text of its own: it can't be combined with files")
        if self.layer is not None:
            check_size("--layer", self.layer)
        if self.lines and self.separator is not None:
            raise UsageError("--lines separates segments by line ends: it can't be combined with --separator")
        if self.format != "text" and (self.lines or self.separator is not None):
            raise UsageError(f"--lines and --separator are for --format text, not for {self.format}")
        if self.format == "html" and self.layer is not None:
            raise UsageError("a page shows all layers: --layer is for --format text and json")

    def look(self, domain: Domain) -> None:
        for file in self.files:
            if file != STANDARD_INPUT:
                flags.check_there(file, " or folder. To segment a text itself, pipe it, or use --text")


@dataclass(frozen=True, kw_only=True)
class Score(OfText, flags.Score):
    """Score the boundaries of each layer against known ones, and compare with random boundaries.

    Known boundaries are those of words between white space and punctuation, of --gold, or of the planted hierarchy.
    For text without spaces, give --gold.
    """

    examples = (
        "score runs/novel",
        "score runs/unspaced --gold words.txt",
    )
    gold: Path | None = None
    """File with known words: one utterance a line, words separated by spaces. The run reads it without spaces.
    For a run on tokens: a segment a line."""
    first: int | None = None
    """Read only this many symbols from the start of the text."""

    def check(self) -> None:
        if self.first is not None:
            check_size("--first", self.first)
        if self.gold is not None and (self.data, self.split, self.first) != (None, None, None):
            raise UsageError("--gold is a text of its own: it can't be combined with --data, --split or --first")
        if self.reading.on_unknown == "skip" and (self.gold is not None or self.data == "planted"):
            raise UsageError("--on-unknown skip would move the text against its known boundaries; replace does not")

    def look(self, domain: Domain) -> None:
        if self.gold is None:
            super().look(domain)
        flags.check_file(self.gold)


@dataclass(frozen=True, kw_only=True)
class Figure(flags.Figure):
    """Draw figures of what a run found in a text, and of its training."""

    examples = (
        "figure runs/novel --out figures",
        "figure runs/novel --kind boundaries --out boundaries.pdf",
    )
    kind: Literal["all", "training", "boundaries", "norms", "classes"] = "all"
    """Which figure. boundaries: where segments end. norms: norms of the hidden states, and operations.
    training: loss, firing rates and slope. classes: how often each detector fires on which kind of symbol."""
    text: Path | None = None
    """File with the text to draw. By default the start of the validation part of the run's text."""
    symbols: int = 270
    """Number of symbols that boundaries and norms show."""
    reading: Reading = BY_DEFAULT

    def check(self) -> None:
        check_size("--symbols", self.symbols)

    def look(self, domain: Domain) -> None:
        flags.check_file(self.text)


@dataclass(frozen=True, kw_only=True)
class Explore(flags.Explore):
    """Open a page in the browser on which you type, and watch the layers. It runs on this machine only."""

    examples = (
        "explore builtin",
        "explore runs/novel --compare runs/other",
    )
    reading: Reading = IN_EXPLORER
