"""The command line. Every command is a public function elsewhere, imported when it is called: --help must be quick."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from tyro.conf import DisallowNone
from tyro.extras import SubcommandApp

from hmrnn.cli import read
from hmrnn.cli import train as training
from hmrnn.cli.flags import Runs, in_flags
from hmrnn.cli.parsing import REGISTRY, UNSET, Dir, asks_for_help, ending_in_examples
from hmrnn.domains import DOMAINS
from hmrnn.errors import Stopped, UsageError
from hmrnn.printable import printable

app = SubcommandApp()
train = SubcommandApp()
EXAMPLES = {
    "--help": ("demo", 'segment builtin --text "The value of the argument"', "train text --help"),
    "demo": ("demo", "demo --epochs 1 --out first"),
    "train": ("train text --data novel.txt --minutes 10 --out runs/novel", "train text --help"),
    "plot": ("plot runs/novel runs/other --out curves.svg",),
    "bench": ("bench", "bench --hidden 256 --repeats 3 --plot bench.svg"),
    "build": ("build",),
    "version": ("version",),
}
EXAMPLES["-h"] = EXAMPLES["--help"]
OUT_OF_MEMORY = ("allocate memory", "out of memory")  # in torch's errors: on a CPU, and on a GPU


@app.command(name="demo")
def demo(out: Dir = Path("demo"), epochs: float = 8.0, seed: Annotated[int | None, UNSET] = None) -> None:
    """Train a small model on the built-in text (no download), score it, and print the segments that it found.

    Args:
        out: Directory for the run. A run that is there already is continued.
        epochs: Number of epochs.
        seed: Random seed. By default 0, or that of the run that is continued.
    """
    from hmrnn.cli.read import bad_usage
    from hmrnn.errors import check_positive

    with bad_usage("hmrnn demo"):
        check_positive("epochs", epochs)
    from hmrnn.cli.demo import demo

    demo(out, epochs, seed)


def in_help(what: str) -> Callable[[], None]:
    """A command whose flags depend on the domain: here it only stands in the list."""

    def command() -> None: ...

    command.__doc__ = what
    return command


app.command(train, name="train", help="Train a model, or continue a run.")
for domain in DOMAINS.values():
    train.command(name=domain.name)(in_help(f"Train a model to predict {domain.goal}."))
for name, what in read.COMMANDS.items():
    app.command(name=name)(in_help(what))


@app.command(name="plot")
def plot(runs: Runs, out: Path = Path("curves.png"), json: bool = False) -> None:
    """Draw learning curves of several runs in one picture: against data read, and against minutes.

    Args:
        runs: Directories of runs of one kind. They may still be training: config.json and metrics.jsonl are enough.
        out: Picture to write: .png, .svg or .pdf.
        json: Print how far each run is, and its last and best validation, as one line of JSON.
    """
    if not runs:
        raise UsageError("say which runs to draw")
    from hmrnn.cli.plotting import plot_runs

    plot_runs(runs, out, as_json=json)


@app.command(name="bench")
def bench(
    hidden: int = 512,
    batch: int = 64,
    steps: int = 100,
    rates: tuple[float, float] = (0.21, 0.03),
    layer_norm: bool = False,
    repeats: int = 5,
    plot: Annotated[Path | None, UNSET] = None,
    device: str = "cpu",
) -> None:
    """Measure the speed of every engine, torch.nn.LSTM and the layer-norm LSTM on this machine. Prints a table and,
    last, one line of JSON.

    Args:
        hidden: Units of each of the three layers.
        batch: Sequences in a batch.
        steps: Length of the sequences in time steps.
        rates: Firing rates of the two detectors, set by their biases.
        layer_norm: Use layer normalisation.
        repeats: Number of rounds; the median counts.
        plot: Also sweep firing rate, steps, batch and units, and draw this figure (.png, .svg or .pdf).
        device: Device: cpu, cuda, cuda:N or mps.
    """
    from hmrnn.cli import bench, bench_gpu
    from hmrnn.cli.read import bad_usage
    from hmrnn.devices import resolve
    from hmrnn.errors import check_size

    with bad_usage("hmrnn bench"):
        setting = bench.Setting(hidden, batch, steps, rates, layer_norm)
        check_size("repeats", repeats)
        place = resolve(device)
        if plot is not None and place.type != "cpu":
            raise ValueError("--plot draws engines on a CPU")
        if plot is not None:
            bench.check_to_draw(setting, plot)
    if place.type == "cpu":
        bench.main(setting, repeats, plot)
    else:
        bench_gpu.main(setting, place, repeats)


@app.command(name="build")
def build(json: bool = False) -> None:
    """Build the native engine now, not at first use, and print its path. CXX names the compiler, HMRNN_CACHE the folder
    to keep it in (by default ~/.cache/hmrnn).

    Args:
        json: Print the answer as one line of JSON.
    """
    from hmrnn.cli.building import build_native

    build_native(as_json=json)


@app.command(name="version")
def version() -> None:
    """Print the version."""
    from hmrnn import __version__

    print(__version__)


def open_streams() -> None:
    """Python has None for a stream that was closed before it started, and the next file opened would take its place."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that can't show a symbol is no reason to fail


def main() -> None:
    """Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted, 143 terminated."""
    open_streams()
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        dispatch(sys.argv[1:])
        sys.stdout.flush()
    except Stopped as stopped:
        sys.exit(stopped.status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has enough. What is left goes nowhere, or Python would complain at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        # a name may have line ends
        print(f"hmrnn: {printable(' '.join(in_flags(error).splitlines()))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(told in str(error) for told in OUT_OF_MEMORY):
            raise  # a fault of ours: its traceback is wanted
        print("hmrnn: not enough memory: try smaller --hidden-sizes, --batch-size or --window", file=sys.stderr)
        sys.exit(1)


def dispatch(arguments: list[str]) -> None:
    match arguments:
        case ["--version"]:
            version()
        case ["train", name, *rest] if name in DOMAINS:
            training.train(DOMAINS[name], rest)
        case ["train", *rest] if not asks_for_help(rest):
            kinds = " or ".join([", ".join([*DOMAINS][:-1]), [*DOMAINS][-1]])
            raise UsageError(f"say what to train on: {kinds}, as in hmrnn train text (see hmrnn train --help)")
        case [name, *rest] if name in read.COMMANDS:
            read.command(name, rest)
        case _:
            what = "Hierarchical multiscale recurrent networks."
            with ending_in_examples(arguments, EXAMPLES.get(arguments[0], ()) if arguments else ()):
                app.cli(prog="hmrnn", description=what, args=arguments, config=(DisallowNone,), registry=REGISTRY)
