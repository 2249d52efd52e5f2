"""What the commands tell of runs on text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, reduce
from io import BufferedReader, BytesIO
from itertools import islice
from operator import add
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO, cast

import numpy as np
import torch
from tqdm import tqdm

from hmrnn.cli.common import (
    check_boundaries,
    draw_figures,
    matplotlib_figures,
    output,
    print_json,
    tell_own,
    tell_scores,
)
from hmrnn.cli.flags import Split
from hmrnn.cli.read import bad_usage
from hmrnn.config import STANDARD_INPUT
from hmrnn.domains.text import flags, generation
from hmrnn.domains.text.adapting import lines_of, measure, prepare
from hmrnn.domains.text.config import OnUnknown, TextDataConfig, TextRunConfig
from hmrnn.domains.text.data.corpora import division_of, files_below, load_text
from hmrnn.domains.text.data.planted import planted
from hmrnn.domains.text.data.store import TextData, told_left_out
from hmrnn.domains.text.data.symbols import Symbols, numbered, texts
from hmrnn.domains.text.evaluation import check_length
from hmrnn.domains.text.generation import Sampling
from hmrnn.domains.text.known import at_separators, from_planted, from_segments, from_words, shows_words
from hmrnn.domains.text.marks import Marked, mark_of_layer
from hmrnn.domains.text.model import TextModel
from hmrnn.domains.text.page import MOST_ON_PAGE, page
from hmrnn.domains.text.reading import PIECE
from hmrnn.domains.text.structure import follow, segment_numbers
from hmrnn.domains.text.written import write_json, write_marked
from hmrnn.errors import SettingError, UsageError
from hmrnn.printable import for_stream, printable
from hmrnn.show.progress import show_bar
from hmrnn.storage.pretrained import load_model
from hmrnn.structure.operations import Updates
from hmrnn.structure.scores import Gold, check_to_find, scores_of
from hmrnn.structure.segments import ends_of
from hmrnn.structure.written import Counted
from hmrnn.training.checkpoint import SavedRun, changed, load_own, no_run, run_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READ_AT_ONCE = 1 << 16  # bytes
CLASSIFIED = 50_000  # symbols of a text that are enough to tell how often a detector fires on a kind of them
FIGURES = ("training", "boundaries", "norms", "classes")


@dataclass(frozen=True)
class Source:
    """Where the text comes from that a run reads: its own, or another."""

    directory: Path  # of the run
    symbols: Symbols
    data_dir: Path | None

    @cached_property
    def run(self) -> SavedRun | None:
        """None if the directory has only a model."""
        return run_in(self.directory)

    def text(
        self, data: str | None, split: Split | None, on_unknown: OnUnknown
    ) -> tuple[TextDataConfig, TextData, Split]:
        """The text that `data` names, or else the run's own; and which part of it is to be read."""
        if self.run is None:
            if data is None:
                raise no_run(self.directory)
            config = TextDataConfig(data).at_home()
            loaded = load_text(config, self.data_dir, self.symbols, on_unknown)
            return config, loaded, split or ("all" if config.is_path else "test")
        config = self.own_config if data is None else self.own_config.elsewhere(data)
        if config == self.own_config:
            return config, self.own(), split or "test"
        loaded = load_text(config, self.data_dir or self.run.data_dir, self.symbols, on_unknown)
        print(told_left_out(loaded.left_out), end="", file=sys.stderr)
        moved = config.is_path and self.is_own(config, loaded)
        split = split or ("test" if moved or not config.is_path else "all")
        if moved:
            tell_own(config, split, self.directory)
        return config, loaded, split

    @property
    def own_config(self) -> TextDataConfig:
        if self.run is None:
            raise no_run(self.directory)
        assert isinstance(self.run.config, TextRunConfig)
        return self.run.config.data

    def own(self) -> TextData:
        """The run's own text, where it was."""
        config = self.own_config
        assert self.run is not None
        data_dir = self.data_dir or self.run.data_dir
        loaded = load_own(
            config,
            self.run.fingerprint,
            lambda: load_text(config, data_dir, self.symbols),
            changed(config, self.directory),
        )
        print(told_left_out(loaded.left_out), end="", file=sys.stderr)
        return loaded

    def is_own(self, config: TextDataConfig, text: TextData) -> bool:
        """Whether a text is what the run was trained on, in the same parts."""
        if self.run is None or division_of(config) is not division_of(self.own_config):
            return False
        return text.fingerprint == self.run.fingerprint

    def trained_on(self, config: TextDataConfig, text: TextData) -> TextData:
        """The run's own text, for what has to be measured or chosen on it. It may be the one that is to be read."""
        if self.is_own(config, text):
            return text
        try:
            return self.own()
        except (ValueError, OSError) as error:
            raise ValueError(
                f"--dynamic, and --temperature auto, need the text that {self.directory} was trained on: what "
                f"gradients are like is measured on its training part, whatever rates are given, and the rest is "
                f"chosen on its validation part. {error}"
            ) from None


def evaluate(asked: flags.Evaluate) -> None:
    """Tells the bits per character of a text, and beside them what was asked for."""
    directory, reading, adapting, streams = asked.run, asked.reading, asked.adapting, asked.streams
    model = load_model(TextModel, directory, reading)
    source = Source(directory, model.symbols, asked.data_dir)
    config, text, split = source.text(asked.data, asked.split, reading.on_unknown)
    own = source.trained_on(config, text) if adapting.needs_own_text else None
    numbers = text.split(split)
    check_length(numbers)  # before minutes of choosing
    found = measure(prepare(model, own, adapting), model, numbers, streams)
    if asked.json:
        answer = {"run": str(directory), "checkpoint": reading.checkpoint, "data": config.data, "split": split}
        print_json({**answer, "symbols": len(numbers), "streams": streams, **found})
        return
    how = "one stream, exact" if streams == 1 else f"{streams} streams: each but the first starts without a past"
    speed = f"{len(numbers) / found['seconds']:,.0f} symbols/s"
    per, name = model.symbols.counted, printable(config.data)
    bits = f"bits_per_{per}"
    print(f"{found[bits]:.4f} bits per {per}: {name}, {split}, {len(numbers):,} symbols ({how}; {speed})")
    for line in lines_of(found, bits, len(numbers)):
        print(line)


def generate(asked: flags.Generate) -> None:
    """Prints the prompt and what the model makes of it, symbol by symbol as it is made."""
    with bad_usage("hmrnn generate RUN"):
        sampling = Sampling(asked.temperature, asked.top_k, asked.top_p)
    model = load_model(TextModel, asked.run, asked.reading)
    if asked.show_boundaries:
        check_boundaries(asked.run, model)
    decoder, text, z = model.symbols.decoder(), {True: "", False: ""}, []
    marked, prompt = Marked(model.delay), asked.start or asked.prompt
    for symbol in generation.generate(model, prompt, asked.max_new, sampling, asked.seed, asked.reading.on_unknown):
        shown = decoder(symbol.number)
        text[symbol.new] += shown
        z.append(symbol.z)
        if not asked.json:
            sys.stdout.write(for_stream(marked(shown, symbol.z) if asked.show_boundaries else shown))
            sys.stdout.flush()
    rest = decoder.rest()
    text[True] += rest
    if asked.json:
        print_json({"prompt": text[False], "text": text[True], "boundaries": ends_of(z, model.delay)})
    else:
        print(for_stream(marked.rest() + rest))


def segment(asked: flags.Segment) -> None:
    """Writes the segments of texts while they are read."""
    model = load_model(TextModel, asked.run, asked.reading)
    check_boundaries(asked.run, model)
    detectors = model.rnn.state_sizes[2]
    if asked.of_layer is not None and asked.of_layer > detectors:
        raise UsageError(
            f"there are no segments of layer {asked.of_layer}: this run has boundaries in {detectors} layers"
        )
    sources = list(texts_to_segment(asked, model))
    several = len(sources) > 1
    if several and asked.format == "html":
        raise UsageError(f"--format html shows one text, and these are {len(sources)}")
    counts = []
    with output(asked.out, is_file=asked.format != "text") as out:
        for i, (name, opened) in enumerate(sources):
            if several and asked.format == "json":
                out.write(",\n" if i else '{"files": [\n')
            elif several:
                out.write("\n" * (i > 0) + f"==> {printable(name)} <==\n")
            with opened as stream:
                # read1: what is there already, so that lines from a pipe are answered as they come
                chunks = iter(lambda: cast(BufferedReader, stream).read1(READ_AT_ONCE), b"")
                counts.append(write_segments(asked, model, chunks, out, name, several))
        if several and asked.format == "json":
            out.write("]}\n")
    found = [count for count in counts if count is not None]
    if not found:
        raise ValueError(f"{sources[0][0]}: empty: there is nothing to segment")
    print(reduce(add, found).description(), file=sys.stderr)


def texts_to_segment(asked: flags.Segment, model: TextModel) -> Iterator[tuple[str, AbstractContextManager[IO[bytes]]]]:
    """Each text that was asked for: its name, and what it is read from."""
    if asked.text is not None:
        yield "--text", nullcontext(BytesIO(asked.text.encode("utf-8", "surrogateescape")))
        return
    for path in asked.files:
        if path == STANDARD_INPUT:
            if sys.stdin.isatty():
                print("reading from the keyboard, line by line: Ctrl-D ends", file=sys.stderr)
            yield "standard input", nullcontext(sys.stdin.buffer)
            continue
        files, left_out = files_below(path, "byte" if asked.bytes else model.symbols.unit)
        print(told_left_out(left_out), end="", file=sys.stderr)
        for file in files:
            yield str(file), named_file(file)


@contextmanager
def named_file(path: Path) -> Iterator[IO[bytes]]:
    """Opened when it is its turn: a folder may have more files than a process can hold open."""
    with path.open("rb") as file:
        yield file


def write_segments(
    asked: flags.Segment, model: TextModel, chunks: Iterator[bytes], out: TextIO, name: str, several: bool
) -> Updates | None:
    """Of one text. What was counted, if there was anything."""
    read = numbered(chunks, model.symbols, asked.reading.on_unknown, name, asked.bytes, "bytes")
    pieces = (part for piece in read for part in piece.split(PIECE))
    if asked.format == "html":
        shown = segment_numbers(model, at_most(MOST_ON_PAGE, pieces))
        out.write(page(shown, printable(f"{Path(name).name}, read by {asked.run.name}")) + "\n")
        return shown.updates
    reads = follow(model, pieces)
    if asked.format == "json":
        steps = Counted(read.steps(hidden=asked.vectors) for read in reads)
        return write_json(model, steps, out, asked.layer, name if several else None)
    if asked.of_layer is None:
        return write_marked(model, Counted(reads), out)
    separator = "\n" if asked.lines else asked.separator and asked.separator.replace("\\n", "\n").replace("\\t", "\t")
    marks = mark_of_layer(asked.of_layer, separator)
    return write_marked(model, Counted(reads), out, marks, separates=separator is not None, escape=asked.lines)


def at_most(most: int, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
    """All pieces as one, if they are not too many: what is too long is not even read to its end."""
    kept, length = [torch.zeros(0, dtype=torch.int64)], 0
    for piece in pieces:
        kept.append(piece)
        length += len(piece)
        if length > most:
            raise ValueError(f"a page shows at most {most:,} symbols, and this text has more")
    return torch.cat(kept)


def score(asked: flags.Score) -> None:
    """Tells how well the boundaries of each layer fit known ones, and what chance alone would reach."""
    model = load_model(TextModel, asked.run, asked.reading)
    check_boundaries(asked.run, model)
    what, numbers, known = with_gold(asked.gold, asked, model) if asked.gold else with_known_ends(asked, model)
    if len(numbers) == 0:
        raise ValueError(f"{what}: empty: there is nothing to score")
    check_to_find(known, what)
    pieces = tqdm(numbers.split(PIECE), leave=False, disable=not show_bar(True))
    z = torch.cat([read.z.cpu() for read in follow(model, pieces)]).numpy()
    tell_scores(asked, what, len(numbers), "symbols", scores_of(z, known))


def with_gold(path: Path, asked: flags.Score, model: TextModel) -> tuple[str, torch.Tensor, Mapping[str, Gold]]:
    """The name of a text, its symbols, and the boundaries that a file marks in it."""
    # not by splitlines, to which a form feed ends a line, too
    content = re.split(r"\r\n?|\n", "".join(texts([path.read_bytes()], model.symbols.unit, str(path))))
    if model.symbols.unit == "token":
        text, known = "\n".join(content), from_segments([len(line.split()) for line in content])
    else:
        text, known = from_words(content, newline="\n" in model.symbols.table)
    return str(path), model.symbols.encode(text, asked.reading.on_unknown), known


def with_known_ends(asked: flags.Score, model: TextModel) -> tuple[str, torch.Tensor, Mapping[str, Gold]]:
    """The same of a text that shows its boundaries by itself."""
    source = Source(asked.run, model.symbols, asked.data_dir)
    config, loaded, split = source.text(asked.data, asked.split, asked.reading.on_unknown)
    numbers = torch.from_numpy(loaded.split(split)[: asked.first].astype(np.int64))
    what = f"{config.data}, {split}"
    if config.data == "planted":
        start = 0 if split == "all" else loaded.splits[split][0]
        return what, numbers, from_planted(planted(config.planted), start, start + len(numbers))
    if model.symbols.unit == "token":
        raise SettingError(
            "{data}: it is not known where segments of tokens end: {0}, a file with a segment a line, tells it",
            "gold",
            data=config.data,
        )
    text = model.symbols.text(numbers.tolist())
    if not shows_words(text):
        raise SettingError(
            "{what}: it is not known where words end: there is hardly any white space or punctuation within lines. "
            "{0}, a file with words separated by spaces, tells it",
            "gold",
            what=what,
        )
    return what, numbers, at_separators(text)


def figure(asked: flags.Figure) -> None:
    """Draws a run, or the training curves of several."""
    figures = matplotlib_figures("hmrnn.domains.text.figures")

    def own(kinds: Sequence[str]) -> dict[str, Figure]:
        model = load_model(TextModel, asked.runs[0], asked.reading)
        reads_tokens = model.symbols.unit == "token"
        if reads_tokens and asked.kind == "classes":
            raise UsageError("--kind classes tells apart kinds of characters, and this run reads tokens")
        numbers, made = numbers_to_draw(asked, model), {}
        short = segment_numbers(model, numbers[: asked.symbols])
        if {"boundaries", "norms"} & set(kinds) and (hint := figures.font_hint(short.text)):
            print(hint, file=sys.stderr)
        if "boundaries" in kinds:
            made["boundaries"] = figures.boundaries_figure(short)
        if "norms" in kinds:
            made["norms"] = figures.norms_figure(short)
        if "classes" in kinds and not reads_tokens:
            made["classes"] = figures.classes_figure(segment_numbers(model, numbers[:CLASSIFIED]))
        return made

    draw_figures(asked, FIGURES if asked.kind == "all" else (asked.kind,), own)


def numbers_to_draw(asked: flags.Figure, model: TextModel) -> torch.Tensor:
    """The text that is asked for, or the validation part of the run's own."""
    run, unknown = asked.runs[0], asked.reading.on_unknown
    if asked.text is None:
        own = Source(run, model.symbols, asked.data_dir).own()
        return torch.from_numpy(own.split("valid").astype(np.int64))
    with asked.text.open("rb") as stream:
        read = numbered(iter(lambda: stream.read(READ_AT_ONCE), b""), model.symbols, unknown, str(asked.text))
        enough = 1 + 4 * CLASSIFIED // READ_AT_ONCE  # chunks: a character has at most 4 bytes
        return torch.cat(list(islice(read, enough)))
