"""The flags of `hmrnn train text` and `hmrnn train strokes`. Where they start from depends on some of them, which are
looked at first."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import arg

from hmrnn.config import Engine, RunConfig, UsageError
from hmrnn.domains.strokes.config import STROKE_PRESETS, StrokeRunConfig
from hmrnn.domains.text.config import TEXT_PRESETS, TextRunConfig
from hmrnn.printable import printable


@dataclass(frozen=True, kw_only=True)
class Train:
    out: Path | None = None
    """Directory for a new run."""
    resume: Path | None = None
    """Go on with the run in this directory, exactly where it stopped. Only its end may be set anew."""
    data_dir: Path | None = None
    """Where published sets lie. By default HMRNN_DATA, or ~/.cache/hmrnn."""
    engine: Engine = "auto"
    """How the network is computed. auto takes the fastest that works here."""
    tensorboard: bool = False
    """Write what TensorBoard shows, too, into the run's folder tensorboard."""
    json: bool = False
    """Print the outcome as one line of JSON."""


@dataclass(frozen=True, kw_only=True)
class TrainText(Train):
    """Train a model to predict the next symbol of a text. What comes of it is a run: a directory.

    The other flags start from the settings of --preset, or of the run that is resumed. With several processes:
    torchrun --nproc-per-node 2 -m hmrnn train text …
    """

    run: Annotated[TextRunConfig, arg(name="")]
    preset: Literal["small", "ptb", "text8", "enwik8", "paper-ptb", "paper-text8", "paper-enwik8"] = "small"
    """Settings by name. small: for a laptop. ptb, text8, enwik8: the best that we know. paper-…: what the paper did."""


@dataclass(frozen=True, kw_only=True)
class TrainStrokes(Train):
    """Train a model to predict the next point of a pen. What comes of it is a run: a directory.

    The other flags start from the settings of --preset, or of the run that is resumed. With several processes:
    torchrun --nproc-per-node 2 -m hmrnn train strokes …
    """

    run: Annotated[StrokeRunConfig, arg(name="")]
    preset: Literal["small", "iam-ondb", "paper-iam-ondb"] | None = None
    """Settings by name. small: for a laptop. iam-ondb: the best that we know. paper-iam-ondb: what the paper did. By
    default the one with the name of the data, or small."""


PRESETS: Mapping[str, Mapping[str, RunConfig]] = {"text": TEXT_PRESETS, "strokes": STROKE_PRESETS}


def train(what: str, arguments: list[str]) -> None:
    """`hmrnn train WHAT`."""
    presets = PRESETS[what]
    first_look = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first_look.add_argument("--preset")
    first_look.add_argument("--resume", type=Path)
    first_look.add_argument("--data")
    seen, _ = first_look.parse_known_args(arguments)
    start = presets.get(seen.preset or (what == "strokes" and seen.data) or "small", presets["small"])
    if seen.resume is not None:
        from hmrnn.cli.training import run_settings

        start = run_settings(seen.resume)
        if {"-h", "--help"} & set(arguments):  # which shows it
            start = replace(start, data=replace(start.data, data=printable(start.data.data)))
    asked = parsed(what, arguments, start)
    directory = asked.resume or asked.out
    if directory is None or (asked.out and asked.resume):
        raise UsageError("say where the run goes, with --out DIRECTORY; or which one goes on, with --resume DIRECTORY")
    if asked.resume is not None and seen.preset is not None:
        raise UsageError("--preset can't be combined with --resume: the run has its settings")

    from hmrnn.cli import training

    training.train(
        asked.run,
        directory,
        resume=asked.resume is not None,
        data_dir=asked.data_dir,
        engine=asked.engine,
        tensorboard=asked.tensorboard,
        as_json=asked.json,
    )


def parsed(what: str, arguments: list[str], start: RunConfig) -> TrainText | TrainStrokes:
    """The flags, from where they start."""
    prog = f"hmrnn train {what}"
    with bad_usage():
        if what == "text" and isinstance(start, TextRunConfig):
            return tyro.cli(TrainText, prog=prog, args=arguments, default=TrainText(run=start))
        if what == "strokes" and isinstance(start, StrokeRunConfig):
            return tyro.cli(TrainStrokes, prog=prog, args=arguments, default=TrainStrokes(run=start))
    raise UsageError(f"that is a run on {start.kind}: hmrnn train {start.kind} --resume goes on with it")


@contextmanager
def bad_usage() -> Iterator[None]:
    """A setting that is refused here came from a flag."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None
