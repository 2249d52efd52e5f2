"""What the commands tell. The work is done by public functions elsewhere, the flags are in cli.py."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from hmrnn.config import BOUNDS, TextDataConfig, TextRunConfig, UsageError, differences
from hmrnn.data.corpora import PUBLISHED, load_text
from hmrnn.data.text import OnUnknown
from hmrnn.evaluation import bits_per_character, dynamic_bits_per_character
from hmrnn.generation import Sampling, generate
from hmrnn.models import TextModel
from hmrnn.structure.marks import mark
from hmrnn.training.checkpoint import load_run
from hmrnn.training.loop import INTERRUPTED
from hmrnn.training.run import train_text

Checkpoint = Literal["best", "last"]
Split = Literal["train", "valid", "test", "all"]


def run_settings(directory: Path) -> TextRunConfig:
    """The settings of a run that is to be resumed."""
    return load_run(directory)[0]


def train(
    run: TextRunConfig,
    out: Path | None,
    resume: Path | None,
    *,
    data_dir: Path | None,
    engine: str,
    tensorboard: bool,
    as_json: bool,
) -> None:
    """Trains, and tells how it ended."""
    run = replace(run, data=at_home(run.data))
    if resume is not None:
        refuse_contradictions(run, resume)
    directory = resume or out
    assert directory is not None
    outcome = train_text(
        run, directory, resume=resume is not None, data_dir=data_dir, engine=engine, tensorboard=tensorboard
    )
    if not outcome.first:
        return
    if outcome.ended == INTERRUPTED:
        print(f"interrupted after update {outcome.update}; go on with: hmrnn train text --resume {directory}")
    elif as_json:
        print_json({name: value for name, value in asdict(outcome).items() if name != "first"})
    else:
        print(
            f"{outcome.ended}: {outcome.update} updates, {outcome.epoch:.2f} epochs, {outcome.minutes:.1f} min; best "
            f"validation {outcome.best_bits:.4f} bits per character; {outcome.skipped} updates not applied\n"
            f"next: hmrnn eval {directory}"
        )
    if outcome.ended == INTERRUPTED:
        raise KeyboardInterrupt


def refuse_contradictions(run: TextRunConfig, directory: Path) -> None:
    """A run is resumed with the settings that it has. Only its end may be set anew."""
    for name, (asked, was) in differences(run, run_settings(directory)).items():
        if name not in BOUNDS:
            raise UsageError(f"--{name.replace('_', '-')} {asked} contradicts the run in {directory}, which has {was}")


def at_home(data: TextDataConfig) -> TextDataConfig:
    """With an absolute path, so that the run can be resumed from another folder."""
    known = (*PUBLISHED, "builtin", "planted")
    return data if data.data in known else replace(data, data=str(Path(data.data).absolute()))


def load_model(directory: Path, checkpoint: Checkpoint, engine: str = "auto") -> TextModel:
    """The best or the last model of a run; a model that is no run has only one."""
    best = directory / "best"
    path = best if checkpoint == "best" and best.is_dir() else directory
    if not (path / "config.json").is_file():
        raise ValueError(f"{directory}: there is no config.json here: this is not a run")
    return TextModel.from_pretrained(path, engine=engine)


def evaluate(
    directory: Path,
    data: str | None,
    *,
    split: Split | None,
    streams: int,
    dynamic: float | None,
    on_unknown: OnUnknown,
    data_dir: Path | None,
    checkpoint: Checkpoint,
    engine: str,
    as_json: bool,
) -> None:
    """Tells the bits per character of a text."""
    if dynamic is not None and streams != 1:
        raise UsageError("--dynamic reads one stream: it can't be combined with --streams")
    model = load_model(directory, checkpoint, engine)
    config = TextDataConfig(data) if data else None
    if config is None or config.data == "planted":
        config = run_settings(directory).data
    own = data is None or config.data in PUBLISHED or config.data in ("builtin", "planted")
    split = split or ("test" if own else "all")
    text = load_text(config, data_dir, model.symbols, on_unknown).split(split)
    start = time.perf_counter()
    if dynamic is None:
        bits = bits_per_character(model, text, streams, show=True)
    else:
        bits = dynamic_bits_per_character(model, text, dynamic, show=True)
    seconds = time.perf_counter() - start
    if as_json:
        answer: dict[str, Any] = {"run": str(directory), "checkpoint": checkpoint, "data": config.data, "split": split}
        answer |= {"symbols": len(text), "streams": streams, "dynamic": dynamic}
        print_json({**answer, "bits_per_character": bits, "seconds": seconds})
        return
    how = "one stream, exact" if streams == 1 else f"{streams} streams: each but the first starts without a past"
    how += "" if dynamic is None else f", dynamic: it goes on learning as it reads, with learning rate {dynamic:g}"
    speed = f"{len(text) / seconds:,.0f} symbols/s"
    print(f"{bits:.4f} bits per character: {config.data}, {split}, {len(text):,} symbols ({how}; {speed})")


def write(
    directory: Path,
    prompt: str,
    max_new: int,
    sampling: Sampling,
    *,
    seed: int | None,
    show_boundaries: bool,
    on_unknown: OnUnknown,
    checkpoint: Checkpoint,
    engine: str,
    as_json: bool,
) -> None:
    """Prints the prompt and what the model makes of it, symbol by symbol as it is made."""
    model = load_model(directory, checkpoint, engine)
    decoder, text, boundaries = model.symbols.decoder(), {True: "", False: ""}, []
    for symbol in generate(model, prompt, max_new, sampling, seed, on_unknown):
        shown = decoder(symbol.number)
        text[symbol.new] += shown
        boundaries.append([int(fires) for fires in symbol.z])
        if not as_json:
            sys.stdout.write(shown + (mark(symbol.z) if show_boundaries else ""))
            sys.stdout.flush()
    if as_json:
        print_json({"prompt": text[False], "text": text[True], "boundaries": boundaries})
    else:
        print()


def print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, default=str))
