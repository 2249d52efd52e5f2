"""A training run from its settings to its directory: started, or resumed."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hmrnn.config import KEPT_INPUT, STANDARD_INPUT, DataConfig, Measure, Precision, RunConfig
from hmrnn.devices import description as description_of
from hmrnn.devices import resolve
from hmrnn.domains import DOMAINS, Data
from hmrnn.engines import ASKED_FOR, choose, native
from hmrnn.errors import UsageError
from hmrnn.guidance.branching import Branching
from hmrnn.storage.config_json import check_same
from hmrnn.storage.files import writing
from hmrnn.storage.pretrained import check_weights, shapes_only, size_of
from hmrnn.training.checkpoint import (
    SavedRun,
    check_new,
    check_resumable,
    forget_after,
    load_own,
    load_progress,
    load_run,
    locked,
    other_release,
    remove_leftovers,
    resumable,
)
from hmrnn.training.distributed import Processes, joined
from hmrnn.training.loop import Training, train
from hmrnn.training.metrics import Reporter
from hmrnn.training.stopping import STOPPED
from hmrnn.training.teachers import load_teacher, save_teacher

MOST_ROWS = 2**16  # of a batch, as far as the size of a checkpoint goes


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
    made: int  # updates that this call made; none if the run had ended before

    @property
    def stopped_by(self) -> int | None:
        """The signal that asked it to stop, if one did."""
        return next((number for number, ended in STOPPED.items() if ended == self.ended), None)


def train_run(
    run: RunConfig,
    directory: str | Path,
    *,
    resume: bool = False,
    data_dir: str | Path | None = None,
    engine: str = "auto",
    device: str = "auto",
    tensorboard: bool = False,
) -> Outcome:
    """Trains a model into a directory, as `hmrnn train` does.

    Args:
        run: Settings of data, model and training. A resumed run keeps its own; only its end may differ.
        directory: The directory of the run.
        resume: Continue the run in `directory` exactly where it stopped.
        data_dir: Where published data sets are.
        engine: Engine of the recurrent network, see `HMLSTM`.
        device: cpu, cuda, cuda:N, mps or auto.
        tensorboard: Also write TensorBoard logs.

    Returns:
        How training ended, and the best validation.
    """
    directory, data_dir = Path(directory), None if data_dir is None else Path(data_dir)
    given = run.data.data == str(STANDARD_INPUT)
    run = replace(run, data=replace(run.data, data=str(directory / KEPT_INPUT)) if given else run.data)
    run = replace(run, data=run.data.at_home())
    with joined() as processes, ExitStack() as stack:

        def open_run() -> tuple[Data, SavedRun, dict[str, Any] | None]:
            if processes.first:
                stack.enter_context(locked(directory))
                remove_leftovers(directory)
            if resume:
                return reopen(run, directory, data_dir, processes)
            if processes.first:
                check_new(directory, run.data)
                if given:
                    keep_standard_input(directory)
            data = DOMAINS[run.kind].load(run, data_dir)
            teacher = new_teacher(run, data, directory, processes)
            chosen = settled(run, fastest_precision(run, engine, resolve(device, processes.local)), teacher)
            return data, SavedRun(chosen, data.fingerprint, data_dir.absolute() if data_dir else None, teacher), None

        data, saved, progress = processes.first_before_others(open_run)
        machine = {} if progress is None else progress["machine"]
        place = resolve(went_on(device, machine), processes.local)
        kept = engine
        if engine == "auto" and description_of(place) == machine.get("device", "cpu"):
            kept = str(machine.get("engine", engine))
        training = prepare(saved, data, kept, processes, place)
        return carry_out(training, progress, directory, tensorboard, asked_for=engine != "auto")


def keep_standard_input(directory: Path) -> None:
    """As a file of the run, so that it can be read again."""
    if sys.stdin.isatty():
        print("reading from the keyboard: Ctrl-D ends", file=sys.stderr)
    with writing(directory / KEPT_INPUT) as file:
        shutil.copyfileobj(sys.stdin.buffer, file)


def went_on(device: str, machine: dict[str, Any]) -> str:
    """The device to go on with: that of the run if there is one of its kind here, and no other is asked for."""
    kind = str(machine.get("device", "auto" if not machine else "cpu")).partition(" ")[0]
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return kind if device == "auto" and here.get(kind, False) else device


def reopen(
    run: RunConfig, directory: Path, data_dir: Path | None, processes: Processes
) -> tuple[Data, SavedRun, dict[str, Any]]:
    """What is there to go on with."""
    check_resumable(directory)
    saved = load_run(directory, files=False)  # symbols are those of the data
    if type(run) is not type(saved.config):
        raise UsageError(f"{directory} is a run on {saved.config.kind}")
    teacher = load_teacher(directory, saved.config)
    run = settled(run, saved.config.model.precision, teacher)
    expected, differs = where_it_is(saved.config, run.data, directory)
    check_same(run, expected, directory)
    run = replace(run, data=expected.data)
    if data_dir is not None:
        saved = replace(saved, data_dir=data_dir.absolute())
    data = load_own(run.data, saved.fingerprint, lambda: DOMAINS[run.kind].load(run, saved.data_dir), differs)
    progress = load_fitting(run, data, directory, processes)
    before = {"training": saved.config.training, "moved": run.data != saved.config.data}
    return data, replace(saved, config=run, teacher=teacher), {**progress, **before}


def where_it_is(saved: RunConfig, asked: DataConfig, directory: Path) -> tuple[RunConfig, str]:
    """The settings of a run, with the place to which its data may have been moved; and what is wrong if it is not the
    same data that lies there."""
    no_other = f"{asked.data}: this is not what {directory} was trained on: "
    given = (directory / KEPT_INPUT).absolute()
    contradicts = asked.data == str(given) and not given.exists()  # standard input, for a run that has none
    if saved.data.is_path and asked.is_path and asked.data != saved.data.data and not contradicts:
        moved = replace(saved, data=saved.data.elsewhere(asked.data))
        return moved, f"{no_other}its content differs from that of {saved.data.data}"
    saved.data.check_still_there(directory)
    changed = f"{no_other}it has changed" if asked.is_path else f"{directory} was trained on {other_release(asked)}"
    return saved, changed


def load_fitting(run: RunConfig, data: Data, directory: Path, processes: Processes) -> dict[str, Any]:
    """The checkpoint, unless the settings ask for another model than its own: they must cost no memory before."""
    with shapes_only():
        model = DOMAINS[run.kind].build(run, data, "auto")
    rows = min(run.training.batch_size, MOST_ROWS) * processes.world
    units = sum(map(sum, ((1, *run.model.hidden_sizes), run.model.hidden_sizes)))
    # Of the weights: themselves, two moments and their average.
    progress = load_progress(directory, 4 * size_of(model) + 8 * rows * units + (1 << 20) * processes.world)
    try:
        check_weights(progress["model"], model)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{resumable(directory)} does not fit {directory / 'config.json'}: {error}") from None
    return progress


def settled(run: RunConfig, precision: Precision, teacher: Branching | None) -> RunConfig:
    """A run whose precision is not left open, nor where its detectors fire."""
    if run.model.precision == "auto":
        run = replace(run, model=replace(run.model, precision=precision))
    return DOMAINS[run.kind].taught(run, teacher)


def new_teacher(run: RunConfig, data: Data, directory: Path, processes: Processes) -> Branching | None:
    """The first process makes it, and the others read what it left."""
    if not processes.first:
        return load_teacher(directory, run)
    teacher = DOMAINS[run.kind].teacher(run, data)
    if teacher is not None:
        save_teacher(directory, teacher)
    return teacher


def fastest_precision(run: RunConfig, engine: str, device: torch.device) -> Precision:
    """Of a new run, which keeps it also where it is resumed on another processor."""
    if run.model.model == "clockwork":  # which no engine computes
        return "float32"
    chosen, _ = choose(engine, run.model.boundary, device, torch.float32)
    return "bfloat16" if chosen == native.ENGINE.name and native.multiplies_bfloat16_fast() else "float32"


def prepare(
    run: SavedRun, data: Data, engine: str, processes: Processes, device: torch.device | str = "cpu"
) -> Training:
    """A run before its first update."""
    config = run.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        domain = DOMAINS[config.kind]
        model = domain.build(config, data, engine).to(device)
        return Training(domain.task(model, data, config, processes, run.teacher), run, processes)


def carry_out(
    training: Training, progress: dict[str, Any] | None, directory: Path, tensorboard: bool, asked_for: bool
) -> Outcome:
    """Trains, from `progress` if there is any. `asked_for`: the engine was, by whoever called."""
    processes = training.processes
    if progress is not None:
        restore(training, progress, directory)
        if processes.first:  # not before all of it fits: a run that is refused stays as it is
            forget_after(directory / "metrics.jsonl", training.update)
        if progress["moved"]:  # a run that has ended, too, knows the place from now on
            training.save(directory)
            training.save_best_again(directory)
    first = training.update
    with Reporter(directory, processes.first, tensorboard, training.update, training.share) as reporter:
        if progress is None:
            training.save(directory)  # so that a run which is killed early can be resumed, too
            reporter.say(description(training, asked_for))
        else:
            reporter.say(f"{description(training, asked_for)}\n{restored(training, progress)}")
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
        training.update - first,
    )


def restore(training: Training, progress: dict[str, Any], directory: Path) -> None:
    try:
        rows = progress["random"].shape[0]
        if rows != training.processes.world:
            raise ValueError(f"it was trained by {rows} processes, and these are {training.processes.world}")
        training.load_state_dict(progress)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{directory}: can't be resumed: {error}") from None


def description(training: Training, asked_for: bool) -> str:
    """What a user should know before the first update."""
    model, task = training.task.model, training.task
    reason = model.rnn.engine_reason
    if reason == ASKED_FOR and not asked_for:
        reason = "as before"
    weights = sum(p.numel() for p in model.parameters())
    precision = "bfloat16 products" if model.rnn.rounds_products else "float32"
    if model.rnn.rounds_products and model.rnn.engine == "native" and not native.multiplies_bfloat16_fast():
        precision += ", no faster than float32 on this processor"
    return (
        f"{task.description()}\n"
        f"{model.config.model} {list(model.config.hidden_sizes)}, {weights:,} weights; engine {model.rnn.engine} "
        f"({reason}), {precision}; on {description_of(training.device)}; "
        f"threads: {torch.get_num_threads()}, processes: {training.processes.world}\n"
        f"{task.epochs.first:,} updates an epoch"
    )


def restored(training: Training, progress: dict[str, Any]) -> str:
    """What a resumed run has, and what it has not."""
    machine, before = progress["machine"], progress["training"]
    average = "" if training.average is None else ", and the average of the weights,"
    lines = [
        f"restored: weights, optimiser, recurrent state and random state{average} after update {training.update:,} "
        f"(epoch {training.epoch:.2f}, {training.minutes:.1f} min); best validation {training.best:.4f}; learning rate "
        f"{training.learning_rate():.2g}; {training.skipped} updates not applied"
    ]
    if progress["moved"]:
        lines.append(f"the data are what it was trained on, and are now at {training.run.config.data.data}")
    machine = {"device": "cpu", **machine}  # the only one there was
    for name, now in training.machine().items():
        if machine.get(name) != now:
            lines.append(f"warning: {name} was {machine.get(name)} and is {now} now: the last bits will differ")
    cooled = replace(training.rate, config=before).at(training.share_of(before))
    again = training.rate.at(training.share)
    if cooled < again:
        lines.append(
            f"warning: the learning rate had cooled down to {cooled:.2g}, and starts again at {again:.2g}, since the "
            "run ends later now"
        )
    return "\n".join(lines)
