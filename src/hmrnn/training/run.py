"""A training run from its settings to its directory: started, or resumed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hmrnn.config import TextRunConfig
from hmrnn.data.corpora import load_text
from hmrnn.data.store import TextData
from hmrnn.models import TextModel
from hmrnn.training.checkpoint import check_new, forget_after, load_progress, load_run, locked, remove_leftovers
from hmrnn.training.distributed import Processes, joined
from hmrnn.training.loop import Training, train
from hmrnn.training.metrics import Reporter
from hmrnn.training.text import TextTask


@dataclass(frozen=True)
class Outcome:
    """How a run stands when `train_text` returns."""

    directory: Path
    ended: str  # why
    update: int
    epoch: float
    minutes: float
    best_bits: float  # the best validation, in bits per character
    skipped: int  # updates that were not applied, since something was not finite
    first: bool  # whether this process is the one that speaks


def train_text(
    run: TextRunConfig,
    directory: Path,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    engine: str = "auto",
    tensorboard: bool = False,
) -> Outcome:
    """Trains a model of text into a directory. With `resume`, goes on with what is there, exactly where it stopped."""
    with joined() as processes, locked(directory) if processes.first else nullcontext():
        if processes.first and resume:
            remove_leftovers(directory)
        elif processes.first:
            check_new(directory)
        progress = load_progress(directory) if resume else None
        data = load_together(run, data_dir, processes)
        if progress is not None and load_run(directory)[1] != data.fingerprint:
            raise ValueError(f"{run.data.data}: this is not the text that {directory} was trained on: it has changed")
        return carry_out(prepare(run, data, engine, processes), progress, directory, tensorboard)


def carry_out(training: Training, progress: dict[str, Any] | None, directory: Path, tensorboard: bool) -> Outcome:
    """Trains, from `progress` if there is any."""
    first = training.processes.first
    if progress is None:
        training.save(directory)  # so that a run which is killed early can be resumed, too
    else:
        restore(training, progress, directory)
        if first:
            forget_after(directory / "metrics.jsonl", training.update)
    with Reporter(directory, first, tensorboard, training.share) as reporter:
        reporter.say(description(training, resumed=progress is not None))
        ended = train(training, directory, reporter)
    return Outcome(
        directory,
        ended,
        training.update,
        training.epoch,
        training.minutes,
        training.best,
        training.skipped,
        first,
    )


def load_together(run: TextRunConfig, data_dir: Path | None, processes: Processes) -> TextData:
    """The text. The first process reads it before the others, which then find it in the cache."""
    if processes.first:
        data = load_text(run.data, data_dir)
    processes.wait()
    return data if processes.first else load_text(run.data, data_dir)


def prepare(run: TextRunConfig, data: TextData, engine: str, processes: Processes) -> Training:
    """A run before its first update."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.training.seed)
        model = TextModel(data.symbols, run.model, engine=engine)
    return Training(TextTask(model, data, run, processes), run, data.fingerprint, processes)


def restore(training: Training, progress: dict[str, Any], directory: Path) -> None:
    try:
        rows = progress["random"].shape[0]
        if rows != training.processes.world:
            raise ValueError(f"it was trained by {rows} processes, and these are {training.processes.world}")
        training.load_state_dict(progress)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{directory}: can't be resumed: {error}") from None


def description(training: Training, resumed: bool) -> str:
    """What a user should know before the first update."""
    model, task = training.task.model, training.task
    engine = training.machine()["engine"]
    reason = getattr(model.rnn, "engine_reason", "")
    weights = sum(p.numel() for p in model.parameters())
    lines = [
        f"{len(model.symbols)} distinct symbols; {len(task.train):,} to train on, {len(task.valid):,} to validate",
        f"{model.config.model} {list(model.config.hidden_sizes)}, {weights:,} weights; engine {engine}"
        + (f" ({reason})" if reason else "")
        + f", {torch.get_num_threads()} threads, {training.processes.world} process(es)",
        f"{task.updates_per_epoch:,} updates an epoch, {task.symbols_per_update:,} symbols each",
    ]
    if resumed:
        lines.append(
            f"restored: weights, optimiser, recurrent state and random state after update {training.update:,} (epoch "
            f"{training.epoch:.2f}, {training.minutes:.1f} min); best validation {training.best:.4f}; learning rate "
            f"{training.rate.value:g}; {training.skipped} updates not applied"
        )
    return "\n".join(lines)
