"""The flags of runs on text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from hmrnn.cli import flags
from hmrnn.cli.metavars import NameOrFile
from hmrnn.config import STANDARD_INPUT, UsageError, check_size
from hmrnn.domains.text.config import (
    IN_EXPLORER,
    AdaptingConfig,
    TextReadingConfig,
    TextRunConfig,
)

if TYPE_CHECKING:
    from hmrnn.domains import Domain

Reading = Annotated[TextReadingConfig, arg(name="")]
BY_DEFAULT = TextReadingConfig()


@dataclass(frozen=True, kw_only=True)
class Train(flags.Train):
    """Train a model to predict the next symbol of a text. What comes of it is a run: a directory.

    The other flags start from the settings of --preset, or of the run that is resumed. With several processes:
    torchrun --nproc-per-node 2 -m hmrnn train text …
    """

    run: Annotated[TextRunConfig, arg(name="")]
    preset: Literal["small", "ptb", "text8", "enwik8", "paper-ptb", "paper-text8", "paper-enwik8"] = "small"
    """Settings by name. small: for a laptop. ptb, text8, enwik8: the best that we know. paper-…: what the paper did."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(flags.OfData):
    """Measure how well a run predicts a text, in bits per character or token. The state is carried over all of it."""

    data: NameOrFile | None = None
    """The text: ptb, text8, enwik8, builtin, planted, a file or a folder. By default the run's own."""
    streams: int = 1
    """Read the text as so many streams side by side. 1 is exact; more are quicker, and each but the first starts
    without a past."""
    temperature: float | Literal["auto"] | None = None
    """Tell the figure with logits divided by this number, too. auto: the one that is best on the validation part of the
    run's text."""
    dynamic: float | Literal["auto"] | None = None
    """Tell the figure of a model that goes on learning as it reads, too, in steps of this size (eta, 0.0005 is a start)
    after each 100 symbols. auto: the size that is best on the validation part. What gradients are like is measured on
    the training part. The run is left as it is."""
    decay: float | None = None
    """With --dynamic: how soon it forgets again what it has learnt (lambda, 0 to 1). By default what is best on the
    validation part."""
    reading: Reading = BY_DEFAULT

    @property
    def adapting(self) -> AdaptingConfig:
        return AdaptingConfig(self.temperature, self.dynamic, self.decay)

    def check(self) -> None:
        check_size("--streams", self.streams)
        _ = self.adapting  # refuses what it can't be
        if self.dynamic is not None and self.streams != 1:
            raise UsageError("--dynamic reads one stream: it can't be combined with --streams")

    def carry_out(self) -> None:
        from hmrnn.domains.text.commands import evaluate

        evaluate(self)


@dataclass(frozen=True, kw_only=True)
class Generate(flags.Generate):
    """Let a run write text: the prompt, and what it makes of it, symbol by symbol."""

    start: Annotated[Positional[str], arg(metavar="[PROMPT]")] = ""
    """What the text starts with."""
    prompt: str = ""
    """The same as a flag."""
    max_new: int = 500
    """How many symbols to make."""
    temperature: float = 1.0
    """Below 1 likely symbols become likelier; 0 always takes the likeliest."""
    top_k: int | None = None
    """Draw from the so many likeliest symbols only."""
    top_p: float | None = None
    """Draw from the likeliest symbols that together have this probability."""
    show_boundaries: bool = False
    """Mark where segments end: | in layer 1, ‖ in layer 2, ⦀ above."""
    reading: Reading = BY_DEFAULT

    def check(self) -> None:
        super().check()
        if self.start and self.prompt:
            raise UsageError("the text starts with one prompt: give it with --prompt, or without")

    def carry_out(self) -> None:
        from hmrnn.domains.text.commands import generate

        generate(self)


@dataclass(frozen=True, kw_only=True)
class Segment(flags.Segment):
    """Show the segments that a run finds in a text, while it is read: any length, in constant memory."""

    format: Literal["text", "json", "html"] = "text"
    """text: the text with marks, | where a segment of layer 1 ends, ‖ of layer 2, ⦀ above. json: one object, a segment
    a line. html: one page for a browser, of up to 100,000 symbols, that shows every step."""
    text: str | None = None
    """A text to segment, in place of files."""
    layer: int | None = None
    """Show the segments of this layer alone; 1 is the lowest."""
    separator: str | None = None
    """What stands between the segments of a layer (the first, without --layer), in place of the mark. \\n and \\t are
    a line's end and a tab."""
    lines: bool = False
    """Write each segment of a layer (the first, without --layer) on a line of its own. Line ends in it are shown as
    \\n, and \\ as \\\\."""
    bytes: bool = False
    """Read files that are not UTF-8, too. A byte that is no character is a symbol that the model does not know
    (--on-unknown). Models of bytes read any file."""
    reading: Reading = BY_DEFAULT

    @property
    def of_layer(self) -> int | None:
        """The one layer that is shown; None for all."""
        one = self.lines or self.separator is not None
        return self.layer or (1 if one else None)

    def check(self) -> None:
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

    def carry_out(self) -> None:
        from hmrnn.domains.text.commands import segment

        segment(self)


@dataclass(frozen=True, kw_only=True)
class Score(flags.Score):
    """Score the boundaries of each layer against known ones, beside what chance alone would reach.

    Known are the words of the text, between white space and punctuation: a boundary may be meant to fall before, on or
    after what separates them, and each is scored. Of the planted hierarchy, its words and phrases are known. Where
    segments of tokens end, a file may tell (--gold).
    """

    data: NameOrFile | None = None
    """The text: ptb, text8, enwik8, builtin, planted, a file or a folder. By default the run's own."""
    gold: Path | None = None
    """Instead: a file with an utterance a line, words separated by spaces. The run reads it without spaces. For a run
    on tokens: a file with a segment a line."""
    first: int | None = None
    """Only so many symbols, from the start of the text."""
    reading: Reading = BY_DEFAULT

    def check(self) -> None:
        if self.first is not None:
            check_size("--first", self.first)
        if self.gold is not None and (self.data, self.split, self.first) != (None, None, None):
            raise UsageError("--gold is a text of its own: it can't be combined with --data, --split or --first")
        if self.reading.on_unknown == "skip" and (self.gold is not None or self.data == "planted"):
            raise UsageError("--on-unknown skip would move the text against its known boundaries; replace does not")

    def look(self, domain: Domain) -> None:
        super().look(domain)
        flags.check_there(self.gold)

    def carry_out(self) -> None:
        from hmrnn.domains.text.commands import score

        score(self)


@dataclass(frozen=True, kw_only=True)
class Figure(flags.Figure):
    """Draw what a run found in a text, and how it was trained: figures for a paper."""

    kind: Literal["all", "training", "boundaries", "norms", "classes"] = "all"
    """boundaries: of every layer under the text. norms: of the hidden states, with the operations. training: loss,
    firing rates and slope. classes: how often each detector fires on which kind of symbol."""
    text: Path | None = None
    """A file. By default the start of the validation part of the run's text."""
    symbols: int = 270
    """How many of its symbols boundaries and norms show."""
    reading: Reading = BY_DEFAULT

    def check(self) -> None:
        check_size("--symbols", self.symbols)

    def look(self, domain: Domain) -> None:
        flags.check_there(self.text)

    def carry_out(self) -> None:
        from hmrnn.domains.text.commands import figure

        figure(self)


@dataclass(frozen=True, kw_only=True)
class Explore(flags.Explore):
    """Serve a page on 127.0.0.1 on which one types, and watches what the layers make of it."""

    reading: Reading = IN_EXPLORER
