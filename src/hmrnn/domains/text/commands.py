"""What the commands tell of runs on text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from io import BufferedReader, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from tqdm import tqdm

from hmrnn.cli.common import (
    Split,
    best_or_last,
    chosen,
    matplotlib_figures,
    one_file,
    print_json,
    save_figures,
    tell_scores,
)
from hmrnn.config import OnUnknown, ReadingConfig, UsageError
from hmrnn.domains.text.adapting import measure, prepare, told
from hmrnn.domains.text.config import (
    AdaptingConfig,
    TextDataConfig,
    TextRunConfig,
)
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.data.planted import planted
from hmrnn.domains.text.data.store import TextData
from hmrnn.domains.text.data.symbols import Symbols, numbered, texts
from hmrnn.domains.text.evaluation import check_length, show_bar
from hmrnn.domains.text.generation import Sampling, generate
from hmrnn.domains.text.known import at_separators, from_planted, from_words
from hmrnn.domains.text.marks import with_mark
from hmrnn.domains.text.model import TextModel
from hmrnn.domains.text.page import MOST, page
from hmrnn.domains.text.reading import AT_ONCE
from hmrnn.domains.text.structure import follow, segment_numbers
from hmrnn.domains.text.written import write_json, write_marked
from hmrnn.storage.pretrained import read_config
from hmrnn.structure.scores import scores_of
from hmrnn.structure.written import Counted
from hmrnn.training.checkpoint import load_run
from hmrnn.training.history import read_metrics

READ_AT_ONCE = 1 << 16  # bytes
CLASSIFIED = 50_000  # symbols of a text that are enough to tell how often a detector fires on a kind of them
FIGURES = ("training", "boundaries", "norms", "classes")


def load_model(directory: Path, reading: ReadingConfig) -> TextModel:
    return TextModel.from_pretrained(
        best_or_last(directory, reading), engine=reading.engine, precision=reading.precision
    )


def text_to_evaluate(
    directory: Path, data: str | None, symbols: Symbols, on_unknown: OnUnknown, data_dir: Path | None
) -> tuple[TextDataConfig, TextData, bool]:
    """The text that `data` names, or else the run's own; and whether it has parts of its own, or is the run's."""
    if data is not None and not read_config(directory)[1]:  # a model that is no run
        config = TextDataConfig(data).at_home()
        return config, load_text(config, data_dir, symbols, on_unknown), not config.is_path
    run = load_run(directory)
    assert isinstance(run.config, TextRunConfig)
    config = replace(run.config.data, data=data or run.config.data.data).at_home()
    text = load_text(config, data_dir or run.data_dir, symbols, on_unknown)
    if config == run.config.data and text.fingerprint != run.fingerprint:
        raise ValueError(
            f"{config.data} has changed since {directory} was trained on it, and so have its parts. A copy under "
            "another name can be evaluated as a whole"
        )
    return config, text, not config.is_path or config == run.config.data


def text_trained_on(directory: Path, symbols: Symbols, data_dir: Path | None) -> TextData:
    """The run's own text, for what has to be measured or chosen on it."""
    try:
        return text_to_evaluate(directory, None, symbols, "error", data_dir)[1]
    except (ValueError, OSError) as error:
        raise ValueError(
            f"--dynamic, and --temperature auto, need the text that {directory} was trained on: what gradients are "
            f"like is measured on its training part, whatever rates are given, and the rest is chosen on its "
            f"validation part. {error}"
        ) from None


def evaluate(
    directory: Path,
    data: str | None,
    *,
    split: Split | None,
    streams: int,
    adapting: AdaptingConfig,
    data_dir: Path | None,
    reading: ReadingConfig,
    as_json: bool,
) -> None:
    """Tells the bits per character of a text, and beside them what was asked for."""
    if adapting.dynamic is not None and streams != 1:
        raise UsageError("--dynamic reads one stream: it can't be combined with --streams")
    model = load_model(directory, reading)
    own = text_trained_on(directory, model.symbols, data_dir) if adapting.needs_own_text else None
    config, text, in_parts = text_to_evaluate(directory, data, model.symbols, reading.on_unknown, data_dir)
    split = split or ("test" if in_parts else "all")
    numbers = text.split(split)
    check_length(numbers)  # before minutes of choosing
    found = measure(prepare(model, own, adapting), model, numbers, streams)
    if as_json:
        answer = {"run": str(directory), "checkpoint": reading.checkpoint, "data": config.data, "split": split}
        print_json({**answer, "symbols": len(numbers), "streams": streams, **found})
        return
    how = "one stream, exact" if streams == 1 else f"{streams} streams: each but the first starts without a past"
    speed = f"{len(numbers) / found['seconds']:,.0f} symbols/s"
    bits = found["bits_per_character"]
    print(f"{bits:.4f} bits per character: {config.data}, {split}, {len(numbers):,} symbols ({how}; {speed})")
    for line in told(found, len(numbers)):
        print(line)


def write(
    directory: Path,
    prompt: str,
    max_new: int,
    sampling: Sampling,
    *,
    seed: int | None,
    show_boundaries: bool,
    reading: ReadingConfig,
    as_json: bool,
) -> None:
    """Prints the prompt and what the model makes of it, symbol by symbol as it is made."""
    model = load_model(directory, reading)
    decoder, text, boundaries = model.symbols.decoder(), {True: "", False: ""}, []
    for symbol in generate(model, prompt, max_new, sampling, seed, reading.on_unknown):
        shown = decoder(symbol.number)
        text[symbol.new] += shown
        boundaries.append([int(fires) for fires in symbol.z])
        if not as_json:
            sys.stdout.write(with_mark(shown, symbol.z, model.delay) if show_boundaries else shown)
            sys.stdout.flush()
    if as_json:
        print_json({"prompt": text[False], "text": text[True], "boundaries": boundaries})
    else:
        print()


def segment(
    directory: Path,
    file: str,
    *,
    form: Literal["text", "json", "html"],
    vectors: bool,
    reading: ReadingConfig,
) -> None:
    """Prints the segments of a file or of standard input while it is read."""
    model = load_model(directory, reading)
    if form != "text" and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's is: these are files
    if file == "-" and sys.stdin.isatty():
        print("reading from the keyboard, line by line: Ctrl-D ends", file=sys.stderr)
    with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as stream:
        # read1: what is there already, so that lines from a pipe are answered as they come
        chunks = iter(lambda: cast(BufferedReader, stream).read1(READ_AT_ONCE), b"")
        pieces = (
            part
            for piece in numbered(chunks, model.symbols, reading.on_unknown, "standard input" if file == "-" else file)
            for part in piece.split(AT_ONCE)
        )
        if form == "html":
            print(page(segment_numbers(model, at_most(MOST, pieces)), f"{Path(file).name}, read by {directory.name}"))
            return
        count = Counted(follow(model, pieces, hidden=vectors))
        if form == "json":
            write_json(model, count, sys.stdout)
        else:
            write_marked(model, count, sys.stdout)
    if count.updates is None:
        raise ValueError(f"{file}: empty: there is nothing to segment")
    done, layers = count.updates, " / ".join(f"{n:,}" for n in count.updates.layers)
    print(f"{layers} updates of {done.all:,} ({done.saved:.0%} saved)", file=sys.stderr)


def at_most(most: int, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
    """All pieces as one, if they are not too many: what is too long is not even read to its end."""
    kept, length = [torch.zeros(0, dtype=torch.int64)], 0
    for piece in pieces:
        kept.append(piece)
        length += len(piece)
        if length > most:
            raise ValueError(f"a page shows at most {most:,} symbols, and this text has more")
    return torch.cat(kept)


def score_run(
    directory: Path,
    data: str | None,
    *,
    gold: Path | None,
    split: Split | None,
    first: int | None,
    data_dir: Path | None,
    reading: ReadingConfig,
    as_json: bool,
    all_scores: bool = False,
) -> None:
    """Tells how well the boundaries of each layer fit known ones, and what chance alone would reach."""
    model = load_model(directory, reading)
    if reading.on_unknown == "skip" and (gold is not None or data == "planted"):
        raise UsageError("--on-unknown skip would move the text against its known boundaries; replace does not")
    if gold is not None:
        content = "".join(texts([gold.read_bytes()], model.symbols.unit, str(gold)))
        text, known = from_words(content.splitlines(), newline="\n" in model.symbols.table)
        numbers, what = model.symbols.encode(text, reading.on_unknown), str(gold)
    else:
        config, loaded, in_parts = text_to_evaluate(directory, data, model.symbols, reading.on_unknown, data_dir)
        split = split or ("test" if in_parts else "all")
        numbers = torch.from_numpy(loaded.split(split)[:first].astype(np.int64))
        what = f"{config.data}, {split}"
        if config.data == "planted":
            start = 0 if split == "all" else loaded.splits[split][0]
            known = from_planted(planted(config.planted), start, start + len(numbers))
        else:
            known = at_separators(model.symbols.text(numbers.tolist()))
    if len(numbers) == 0:
        raise ValueError(f"{what}: empty: there is nothing to score")
    pieces = tqdm(numbers.split(AT_ONCE), leave=False, disable=not show_bar(True))
    z = torch.cat([part.z for part in follow(model, pieces)]).numpy()
    if z.shape[1] == 0:
        raise ValueError(f"{directory}: a {model.config.model} has no boundaries")
    tell_scores(directory, what, len(numbers), "symbols", scores_of(z, known), as_json, all_scores)


def figure(
    directories: Sequence[Path],
    out: Path,
    *,
    kinds: Sequence[str],
    text: Path | None,
    symbols: int,
    data_dir: Path | None,
    reading: ReadingConfig,
) -> None:
    """Draws a run, or the training curves of several."""
    figures = matplotlib_figures("figures")
    kinds = chosen(kinds, FIGURES, "text")
    as_file = one_file(out, kinds)
    made = {}
    if "training" in kinds:
        runs = {str(directory): read_metrics(directory) for directory in directories}
        made["training"] = figures.training_figure(runs)
    if set(kinds) != {"training"}:
        model = load_model(directories[0], reading)
        if text is not None:
            with text.open("rb") as stream:
                chunks = iter(lambda: stream.read(READ_AT_ONCE), b"")
                read = numbered(chunks, model.symbols, reading.on_unknown, str(text))
                enough = 1 + 4 * CLASSIFIED // READ_AT_ONCE  # chunks: a character has at most 4 bytes
                numbers = torch.cat(list(islice(read, enough)))
        else:
            loaded = text_to_evaluate(directories[0], None, model.symbols, reading.on_unknown, data_dir)[1]
            numbers = torch.from_numpy(loaded.split("valid").astype(np.int64))
        short = segment_numbers(model, numbers[:symbols])
        if "boundaries" in kinds:
            made["boundaries"] = figures.boundaries_figure(short)
        if "norms" in kinds:
            made["norms"] = figures.norms_figure(short)
        if "classes" in kinds:
            made["classes"] = figures.classes_figure(segment_numbers(model, numbers[:CLASSIFIED]))
    save_figures(made, out, as_file)
