"""A training run from its settings to its directory: started, or resumed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from hmrnn.config import Precision, RunConfig, UsageError
from hmrnn.domains.strokes.data.lines import StrokeData, load_strokes
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.domains.strokes.task import StrokeTask
from hmrnn.domains.text.config import TextModelConfig, TextRunConfig
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.data.store import TextData
from hmrnn.domains.text.model import TextModel
from hmrnn.domains.text.task import TextTask
from hmrnn.engines import native
from hmrnn.guidance.branching import Branching
from hmrnn.storage.config_json import contradictions
from hmrnn.storage.pretrained import check_weights
from hmrnn.training.checkpoint import (
    RESUMABLE,
    SavedRun,
    check_new,
    forget_after,
    load_progress,
    load_run,
    locked,
    remove_leftovers,
)
from hmrnn.training.distributed import Processes, joined
from hmrnn.training.loop import STOPPED, Training, train
from hmrnn.training.metrics import Reporter
from hmrnn.training.task import Measure
from hmrnn.training.teachers import load_teacher, save_teacher, teacher_of

Data: TypeAlias = TextData | StrokeData


@dataclass(frozen=True)
class Outcome:
    """How a run stands when `train_run` returns."""

    directory: Path
    ended: str  # why
    update: int
    epoch: float
    minutes: float
    best: float  # the best validation; infinite if there was none
    measure: Measure  # what that is
    skipped: int  # updates that were not applied, since something was not finite
    processes: Processes

    @property
    def stopped_by(self) -> int | None:
        """The signal that asked it to stop, if one did."""
        return next((number for number, ended in STOPPED.items() if ended == self.ended), None)


def train_run(
    run: RunConfig,
    directory: Path,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    engine: str = "auto",
    tensorboard: bool = False,
) -> Outcome:
    """Trains a model of text or of strokes into a directory. With `resume`, goes on with what is there, exactly where
    it stopped.

    A run that goes on keeps its settings: `run` may only set another end. `data_dir` and `engine` are its own, too,
    unless they are given.
    """
    run = replace(run, data=run.data.at_home())
    with joined() as processes, ExitStack() as stack:

        def open_run() -> tuple[Data, SavedRun, dict[str, Any] | None]:
            if processes.first:
                stack.enter_context(locked(directory))
            if resume:
                return reopen(run, directory, data_dir, processes)
            if processes.first:
                check_new(directory, run.data)
            data = load(run, data_dir)
            teacher = new_teacher(run, data, directory, processes)
            chosen = settled(run, fastest_precision(run, engine), teacher)
            return data, SavedRun(chosen, data.fingerprint, data_dir.absolute() if data_dir else None, teacher), None

        data, saved, progress = processes.first_before_others(open_run)
        if progress is not None and engine == "auto":
            engine = str(progress["machine"].get("engine", engine))
        return carry_out(prepare(saved, data, engine, processes), progress, directory, tensorboard)


def reopen(
    run: RunConfig, directory: Path, data_dir: Path | None, processes: Processes
) -> tuple[Data, SavedRun, dict[str, Any]]:
    """What is there to go on with."""
    progress = load_progress(directory)
    saved = load_run(directory)
    if type(run) is not type(saved.config):
        raise UsageError(f"{directory} is a run on {saved.config.kind}")
    teacher = load_teacher(directory, saved.config) if isinstance(saved.config, TextRunConfig) else None
    run = settled(run, saved.config.model.precision, teacher)
    wrong = contradictions(run, saved.config)
    if wrong:
        raise UsageError(f"{', '.join(wrong)} contradicts the run in {directory}")
    if data_dir is not None:
        saved = replace(saved, data_dir=data_dir.absolute())
    data = load(run, saved.data_dir)
    if saved.fingerprint != data.fingerprint:
        raise ValueError(f"{run.data.data}: this is not what {directory} was trained on: it has changed")
    check_sizes(run, data, progress, directory)
    if processes.first:
        remove_leftovers(directory)
        forget_after(directory / "metrics.jsonl", progress["update"])
    return data, replace(saved, config=run, teacher=teacher), progress


def check_sizes(run: RunConfig, data: Data, progress: dict[str, Any], directory: Path) -> None:
    """Refuses settings that ask for another model than the checkpoint's, before they cost memory."""
    with torch.device("meta"):
        model = build(run, data, "auto")
    try:
        check_weights(progress["model"], model)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory / RESUMABLE} does not fit {directory / 'config.json'}: {error}") from None


def settled(run: RunConfig, precision: Precision, teacher: Branching | None) -> RunConfig:
    """A run whose precision is not left open, nor where its detectors fire."""
    model = run.model
    if model.precision == "auto":
        model = replace(model, precision=precision)
    if isinstance(model, TextModelConfig):
        model = replace(model, boundary_delay=teacher.delay if teacher else 0)
    return replace(run, model=model)


def new_teacher(run: RunConfig, data: Data, directory: Path, processes: Processes) -> Branching | None:
    """Of a run on text: the first process makes it, and the others read what it left."""
    if not isinstance(run, TextRunConfig) or not isinstance(data, TextData):
        return None
    if not processes.first:
        return load_teacher(directory, run)
    teacher = teacher_of(run, data)
    if teacher is not None:
        save_teacher(directory, teacher)
    return teacher


def fastest_precision(run: RunConfig, engine: str) -> Precision:
    """Of a new run, which keeps it also where it is resumed on another processor."""
    takes_it = engine in ("auto", "native") and run.model.model != "clockwork" and run.model.boundary != "soft"
    return "bfloat16" if takes_it and native.multiplies_bfloat16_fast() else "float32"


def load(run: RunConfig, data_dir: Path | None) -> Data:
    return load_text(run.data, data_dir) if isinstance(run, TextRunConfig) else load_strokes(run.data, data_dir)


def build(run: RunConfig, data: Data, engine: str) -> TextModel | StrokeModel:
    """A model that has learnt nothing yet."""
    if isinstance(run, TextRunConfig):
        assert isinstance(data, TextData)
        return TextModel(data.symbols, run.model, engine=engine)
    return StrokeModel(run.model, engine=engine)


def prepare(run: SavedRun, data: Data, engine: str, processes: Processes) -> Training:
    """A run before its first update."""
    config = run.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        model = build(config, data, engine)
        if isinstance(config, TextRunConfig):
            assert isinstance(model, TextModel)
            assert isinstance(data, TextData)
            teacher = run.teacher
            if teacher is None and config.training.target_rate == "auto":
                teacher = teacher_of(config, data)
            return Training(TextTask(model, data, config, processes, teacher), run, processes)
        assert isinstance(model, StrokeModel)
        assert isinstance(data, StrokeData)
        model.normalise_as(data.split("train"))
        return Training(StrokeTask(model, data, config, processes), run, processes)


def carry_out(training: Training, progress: dict[str, Any] | None, directory: Path, tensorboard: bool) -> Outcome:
    """Trains, from `progress` if there is any."""
    processes = training.processes
    if progress is not None:
        restore(training, progress, directory)
    with Reporter(directory, processes.first, tensorboard, training.update, training.share) as reporter:
        if progress is None:
            training.save(directory)  # so that a run which is killed early can be resumed, too
            reporter.say(description(training))
        else:
            reporter.say(f"{description(training)}\n{restored(training, progress['machine'])}")
        ended = train(training, directory, reporter)
    return Outcome(
        directory,
        ended,
        training.update,
        training.epoch,
        training.minutes,
        training.best,
        training.task.measure,
        training.skipped,
        processes,
    )


def restore(training: Training, progress: dict[str, Any], directory: Path) -> None:
    try:
        rows = progress["random"].shape[0]
        if rows != training.processes.world:
            raise ValueError(f"it was trained by {rows} processes, and these are {training.processes.world}")
        training.load_state_dict(progress)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{directory}: can't be resumed: {error}") from None


def description(training: Training) -> str:
    """What a user should know before the first update."""
    model, task = training.task.model, training.task
    weights = sum(p.numel() for p in model.parameters())
    precision = "bfloat16 products" if model.rnn.rounds_products else "float32"
    if model.rnn.rounds_products and not native.multiplies_bfloat16_fast():
        precision += ", no faster than float32 on this processor"
    return (
        f"{task.description()}\n"
        f"{model.config.model} {list(model.config.hidden_sizes)}, {weights:,} weights; engine {model.rnn.engine} "
        f"({model.rnn.engine_reason}), {precision}; {torch.get_num_threads()} threads, "
        f"{training.processes.world} process(es)\n"
        f"{task.epochs.first:,} updates an epoch"
    )


def restored(training: Training, machine: dict[str, Any]) -> str:
    """What a resumed run has, and what it has not."""
    average = "" if training.average is None else ", and the average of the weights,"
    lines = [
        f"restored: weights, optimiser, recurrent state and random state{average} after update {training.update:,} "
        f"(epoch {training.epoch:.2f}, {training.minutes:.1f} min); best validation {training.best:.4f}; learning rate "
        f"{training.learning_rate():.2g}; {training.skipped} updates not applied"
    ]
    for name, now in training.machine().items():
        if machine.get(name) != now:
            lines.append(f"warning: {name} was {machine.get(name)} and is {now} now: the last bits will differ")
    return "\n".join(lines)
