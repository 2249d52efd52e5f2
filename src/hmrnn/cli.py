"""The command line. Every command is a public function elsewhere, imported when it is called: --help must be quick."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from hmrnn.config import (
    TEXT_PRESETS,
    Engine,
    ReadingConfig,
    TextRunConfig,
    UsageError,
    check_positive,
    check_size,
)

Reading = Annotated[ReadingConfig, arg(name="")]  # its flags have no prefix
BY_DEFAULT = ReadingConfig()

app = SubcommandApp()
train = SubcommandApp()
app.command(train, name="train", help="Train a model, or go on training it.")


@app.command(name="demo")
def demo(out: Path = Path("demo"), epochs: float = 8.0, seed: int = 0) -> None:
    """Train a small model on the built-in text (no download), score it, and print the segments that it found.

    Args:
        out: Directory for the run. If the demo was stopped, or is to have more epochs, it goes on there.
        epochs: How often to read the text.
        seed: The same seed gives the same model.
    """
    from hmrnn.demo import demo

    demo(out, epochs, seed)


@dataclass(frozen=True)
class TrainText:
    """Train a model to predict the next symbol of a text. What comes of it is a run: a directory.

    The other flags start from the settings of --preset, or of the run that is resumed. With several processes:
    torchrun --nproc-per-node 2 -m hmrnn train text …
    """

    run: Annotated[TextRunConfig, arg(name="")]
    out: Path | None = None
    """Directory for a new run."""
    resume: Path | None = None
    """Go on with the run in this directory, exactly where it stopped. Only its end may be set anew."""
    preset: Literal["small", "ptb", "text8", "enwik8"] = "small"
    """Settings by name: small suits a laptop, the others are the paper's."""
    data_dir: Path | None = None
    """Where published sets lie. By default HMRNN_DATA, or ~/.cache/hmrnn."""
    engine: Engine = "auto"
    """How the network is computed. auto takes the fastest that works here."""
    tensorboard: bool = False
    """Write what TensorBoard shows, too, into the run's folder tensorboard."""
    json: bool = False
    """Print the outcome as one line of JSON."""


def train_text(arguments: list[str]) -> None:
    """`hmrnn train text`: where the flags start from depends on two of them, which are looked at first."""
    first_look = argparse.ArgumentParser(prog="hmrnn train text", add_help=False, allow_abbrev=False)
    first_look.add_argument("--preset")
    first_look.add_argument("--resume", type=Path)
    seen, _ = first_look.parse_known_args(arguments)
    start = TEXT_PRESETS.get(seen.preset, TEXT_PRESETS["small"])
    if seen.resume is not None:
        from hmrnn.commands import run_settings

        start = run_settings(seen.resume)
    with bad_usage():
        asked = tyro.cli(TrainText, prog="hmrnn train text", args=arguments, default=TrainText(start))
    directory = asked.resume or asked.out
    if directory is None or (asked.out and asked.resume):
        raise UsageError("say where the run goes, with --out DIRECTORY; or which one goes on, with --resume DIRECTORY")
    if asked.resume is not None and seen.preset is not None:
        raise UsageError("--preset can't be combined with --resume: the run has its settings")

    from hmrnn import commands

    commands.train(
        asked.run,
        directory,
        resume=asked.resume is not None,
        data_dir=asked.data_dir,
        engine=asked.engine,
        tensorboard=asked.tensorboard,
        as_json=asked.json,
    )


@contextmanager
def bad_usage() -> Iterator[None]:
    """A setting that is refused here came from a flag."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


@train.command(name="text")
def _listed_in_help() -> None:
    """Train a model to predict the next symbol of a text."""


@app.command(name="eval")
def evaluate(
    run: Positional[Path],
    data: str | None = None,
    split: Literal["train", "valid", "test", "all"] | None = None,
    streams: int = 1,
    dynamic: float | None = None,
    data_dir: Path | None = None,
    reading: Reading = BY_DEFAULT,
    json: bool = False,
) -> None:
    """Measure how well a run predicts a text: bits per character, with the state carried over the whole text.

    Args:
        run: Directory of the run.
        data: The text: ptb, text8, enwik8, builtin, planted, a file or a folder. By default the run's own.
        split: Which part of it. By default test; all of a file that the run was not trained on.
        streams: Read the text as so many streams side by side. 1 is exact; more are quicker, and each but the first
            starts without a past.
        dynamic: Dynamic evaluation: the model goes on learning as it reads, by gradient descent with this learning rate
            (0.1 is a start), after each 100 symbols. The run is left as it is.
        data_dir: Where published sets lie. By default where the run found its own, or HMRNN_DATA, or ~/.cache/hmrnn.
        json: Print the answer as one line of JSON.
    """
    with bad_usage():
        check_size("--streams", streams)
        if dynamic is not None:
            check_positive("--dynamic", dynamic)

    from hmrnn import commands

    commands.evaluate(
        run,
        data,
        split=split,
        streams=streams,
        dynamic=dynamic,
        data_dir=data_dir,
        reading=reading,
        as_json=json,
    )


@app.command(name="generate")
def generate(
    run: Positional[Path],
    prompt: str = "",
    max_new: int = 500,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    show_boundaries: bool = False,
    reading: Reading = BY_DEFAULT,
    json: bool = False,
) -> None:
    """Let a run write: the prompt, and what it makes of it, as it is made.

    Args:
        run: Directory of the run.
        prompt: What the text starts with.
        max_new: How many symbols to make.
        temperature: Below 1 likely symbols become likelier; 0 always takes the likeliest.
        top_k: Draw from the so many likeliest symbols only.
        top_p: Draw from the likeliest symbols that together have this probability.
        seed: The same seed gives the same text.
        show_boundaries: Mark where segments end: | in layer 1, ‖ in layer 2, ⦀ above.
        json: Print prompt, text and boundaries as one line of JSON.
    """
    from hmrnn import commands
    from hmrnn.generation import Sampling

    with bad_usage():
        sampling = Sampling(temperature, top_k, top_p)
        if max_new < 0:
            raise UsageError(f"--max-new must not be negative; got {max_new}")
    commands.write(
        run,
        prompt,
        max_new,
        sampling,
        seed=seed,
        show_boundaries=show_boundaries,
        reading=reading,
        as_json=json,
    )


@app.command(name="segment")
def segment(
    run: Positional[Path],
    file: Positional[str] = "-",
    format: Literal["text", "json", "html"] = "text",
    vectors: bool = False,
    reading: Reading = BY_DEFAULT,
) -> None:
    """Show the segments that a run finds in a text, while it is read: any length, in constant memory.

    Args:
        run: Directory of the run.
        file: The text; - is standard input.
        format: text: the text with marks, | where a segment of layer 1 ends, ‖ of layer 2, ⦀ above. json: one object, a
            segment a line. html: one page for a browser, of up to 100,000 symbols, that shows every step.
        vectors: With each segment's vector (json): the state that its layer hands up at the boundary.
    """
    from hmrnn import commands

    commands.segment(run, file, form=format, vectors=vectors, reading=reading)


@app.command(name="score")
def score(
    run: Positional[Path],
    data: str | None = None,
    gold: Path | None = None,
    split: Literal["train", "valid", "test", "all"] | None = None,
    first: int | None = None,
    data_dir: Path | None = None,
    reading: Reading = BY_DEFAULT,
    json: bool = False,
) -> None:
    """Score the boundaries of each layer against known ones, beside what chance alone would reach.

    Known are the words of the text, between white space and punctuation: a boundary may be meant to fall before, on or
    after what separates them, and each is scored. Of the planted hierarchy, its words and phrases are known.

    Args:
        run: Directory of the run.
        data: The text: ptb, text8, enwik8, builtin, planted, a file or a folder. By default the run's own.
        gold: Instead: a file with an utterance a line, words separated by spaces. The run reads it without spaces.
        split: Which part of the text. By default test; all of a file that the run was not trained on.
        first: Only so many symbols, from the start of it.
        data_dir: Where published sets lie. By default where the run found its own, or HMRNN_DATA, or ~/.cache/hmrnn.
        json: Print the scores as one line of JSON.
    """
    with bad_usage():
        if first is not None:
            check_size("--first", first)
        if gold is not None and (data is not None or split is not None or first is not None):
            raise UsageError("--gold is a text of its own: it can't be combined with --data, --split or --first")

    from hmrnn import commands

    commands.score_run(
        run,
        data,
        gold=gold,
        split=split,
        first=first,
        data_dir=data_dir,
        reading=reading,
        as_json=json,
    )


@app.command(name="figure")
def figure(
    runs: Positional[tuple[Path, ...]],
    out: Path,
    kind: Literal["all", "boundaries", "norms", "training", "classes"] = "all",
    text: Path | None = None,
    symbols: int = 270,
    data_dir: Path | None = None,
    reading: Reading = BY_DEFAULT,
) -> None:
    """Draw what a run found in a text, and how it was trained: figures for a paper.

    Args:
        runs: Directory of the run. With several, their training curves are drawn together, and the first one's text.
        out: A folder, for every figure as pdf, svg and png; or one file, whose ending says how.
        kind: boundaries: of every layer under the text. norms: of the hidden states, with the operations. training:
            bits, firing rates and slope. classes: how often each detector fires on which kind of symbol.
        text: A file. By default the start of the validation part of the run's text.
        symbols: How many of its symbols boundaries and norms show.
        data_dir: Where published sets lie. By default where the run found its own, or HMRNN_DATA, or ~/.cache/hmrnn.
    """
    with bad_usage():
        check_size("--symbols", symbols)
        if not runs:
            raise UsageError("say which run to draw")

    from hmrnn import commands

    commands.figure(
        runs,
        out,
        kind=kind,
        text=text,
        symbols=symbols,
        data_dir=data_dir,
        reading=reading,
    )


@app.command(name="bench")
def bench(
    hidden: int = 512,
    batch: int = 64,
    steps: int = 100,
    rates: tuple[float, float] = (0.21, 0.03),
    layer_norm: bool = False,
    repeats: int = 5,
    plot: Path | None = None,
) -> None:
    """Measure speed on this machine: every engine, torch.nn.LSTM and the layer-norm LSTM, in one run and in turn.

    Three layers, float32. Prints a table, and last one line of JSON.

    Args:
        hidden: Units of each layer.
        batch: Batch rows.
        steps: Time steps of a training step.
        rates: How often the first and the second detector fire. The bias of each is set so that it does.
        layer_norm: With layer normalisation.
        repeats: How often everything is timed. The median counts.
        plot: Also sweep firing rate, steps, batch and units, and write a figure (png, svg or pdf) here.
    """
    from hmrnn import bench

    bench.main(bench.Setting(hidden, batch, steps, rates, layer_norm), repeats, plot)


@app.command(name="version")
def version() -> None:
    """Print the version."""
    from hmrnn import __version__

    print(__version__)


def main() -> None:
    """Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that can't show a symbol is no reason to fail
    arguments = sys.argv[1:]
    try:
        if arguments[:2] == ["train", "text"]:
            train_text(arguments[2:])
        else:
            app.cli(prog="hmrnn", description="Hierarchical multiscale recurrent networks.")
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has enough. What is left goes nowhere, or Python would complain at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        print(f"hmrnn: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise  # a fault of ours: its traceback is wanted
        print("hmrnn: not enough memory: try smaller --hidden-sizes, --batch-size or --window", file=sys.stderr)
        sys.exit(1)
