"""What `hmrnn train` tells."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from hmrnn.cli.common import print_json
from hmrnn.config import RunConfig, Stopped
from hmrnn.training.checkpoint import load_run
from hmrnn.training.run import train_run


def run_settings(directory: Path) -> RunConfig:
    """The settings of a run that is to be resumed."""
    return load_run(directory).config


def train(
    run: RunConfig,
    directory: Path,
    *,
    resume: bool,
    data_dir: Path | None,
    engine: str,
    device: str,
    tensorboard: bool,
    as_json: bool,
) -> None:
    """Trains, and tells how it ended."""
    outcome = train_run(
        run, directory, resume=resume, data_dir=data_dir, engine=engine, device=device, tensorboard=tensorboard
    )
    measure = outcome.measure
    if outcome.processes.first:
        if as_json:
            told = {
                name: value for name, value in asdict(outcome).items() if name not in ("processes", "measure", "best")
            }
            print_json({**told, f"best_{measure.name}": outcome.best})
        elif outcome.stopped_by:
            world = outcome.processes.world
            hmrnn = "hmrnn" if world == 1 else f"torchrun --nproc-per-node {world} -m hmrnn"
            on = f"{hmrnn} train {run.kind} --resume {directory}"
            print(f"{outcome.ended} after update {outcome.update}; go on with: {on}")
        else:
            print(
                f"{outcome.ended}: {outcome.update} updates, {outcome.epoch:.2f} epochs, {outcome.minutes:.1f} min; "
                f"best validation {outcome.best:.4f} {measure.text}; {outcome.skipped} updates not applied\n"
                f"next: hmrnn eval {directory}"
            )
    if outcome.stopped_by:
        raise Stopped(outcome.stopped_by)
