"""The training loop."""

from __future__ import annotations

import copy
import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hmrnn.boundary import SlopeSchedule
from hmrnn.collapse import CollapseWatch
from hmrnn.config import TrainingConfig
from hmrnn.devices import description, fetched, on_cpu
from hmrnn.engines import native
from hmrnn.errors import SettingError
from hmrnn.guidance.guide import Guide
from hmrnn.guidance.steering import matching, obstacle
from hmrnn.sequence import HMLSTMState
from hmrnn.storage.pretrained import Pretrained
from hmrnn.training.averaging import WeightAverage
from hmrnn.training.checkpoint import (
    SavedRun,
    check_alike,
    save_model,
    save_run,
)
from hmrnn.training.distributed import Processes
from hmrnn.training.metrics import Reporter
from hmrnn.training.news import report, tell_validation
from hmrnn.training.schedules import Checkpoints, LearningRate
from hmrnn.training.stopping import STOPPED, stop_signals
from hmrnn.training.task import Task, Validation

CONVERGED = "validation has stopped improving"
GIVE_UP = 20  # updates in a row that gave no finite loss and gradient
MATCHED = 16  # windows that the detectors of an average are set by


class Diverged(SettingError):
    """Training can't go on: losses, gradients or weights are not finite any more."""

    def __init__(self, what: str) -> None:
        super().__init__(
            "{what}. The last good checkpoint stays. Try a lower {0} in a new run", "learning_rate", what=what
        )


@dataclass(frozen=True)
class Update:
    """What came of one update."""

    loss: float  # in the task's measure
    rates: list[float]  # how often each detector fired
    steps: int  # symbols or points that were read
    gradient_norm: float
    learning_rate: float
    applied: bool  # False if the loss or the gradient was not finite
    # What the processes agreed upon:
    stopped: signal.Signals | None  # by which one of them was asked to stop
    over: bool  # the time is over, by the first one's clock
    checkpoint: bool  # a checkpoint is due, by the first one's clock


class Training:
    """A run in progress: all that the next update depends on."""

    def __init__(self, task: Task, run: SavedRun, processes: Processes) -> None:
        self.task, self.run, self.config, self.processes = task, run, run.config.training, processes
        task.model.train()
        task.model.rnn.warn_collapse = False  # `watch` does, for all processes
        self.parameters = [p for p in task.model.parameters() if p.requires_grad]
        self.matrices = [p for p in self.parameters if p.dim() > 1]
        self.average = WeightAverage(task.model, self.config.average) if self.config.average else None
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.config.learning_rate, fused=True)
        self.rate = LearningRate(self.config)
        self.guide = self.new_guide()
        self.slope = SlopeSchedule(self.config.slope_per_epoch, self.config.slope_limit)
        self.watch = CollapseWatch(task.model.rnn.num_layers - 1 if task.model.config.model == "hm-lstm" else 0)
        self.generator = torch.Generator().manual_seed(self.config.seed + processes.rank)
        self.update = 0  # how many are done
        self.skipped = 0  # of those, how many were not applied
        self.skipped_in_a_row = 0
        self.minutes = 0.0
        self.saving = 0.0  # seconds that the latest checkpoint took
        self.best = math.inf  # of all validations, in the task's measure
        self.judged: Pretrained = task.model  # what the latest validation looked at, and what best/ holds

    def new_guide(self) -> Guide:
        rates = self.task.rates or ([] if self.config.target_rate == "auto" else [self.config.target_rate])
        rnn = self.task.model.rnn
        guide = Guide(
            rnn,
            self.optimizer,
            rates=[] if obstacle(rnn) else rates[: rnn.num_layers - 1],
            weight=self.config.uncertainty_weight,
            updates=self.config.guided_updates,
            strength=self.strength,
            radius=self.config.detector_radius,
        )
        guide.imitates_rate = self.config.imitates_rate
        return guide

    def strength(self) -> float:
        """Of steering: it falls with the learning rate, and does not wait while that warms up."""
        learning_rate: float = self.optimizer.param_groups[0]["lr"]
        return learning_rate / self.rate.warmth(self.update) / self.config.learning_rate

    @property
    def epoch(self) -> float:
        return self.task.epochs.at(self.update)

    @property
    def last_update(self) -> int:
        return self.task.epochs.updates(self.config.epochs)

    @property
    def validation_due(self) -> bool:
        return self.validates_after(self.update)

    def validates_after(self, update: int) -> bool:
        return self.task.epochs.is_multiple(update, self.config.validate_every)

    @property
    def share(self) -> float:
        """How much of the run is behind us."""
        return self.share_of(self.config)

    def share_of(self, config: TrainingConfig) -> float:
        """How much of a run that ends as these settings say."""
        done = self.update / max(1, self.task.epochs.updates(config.epochs))
        return done if config.minutes is None else max(done, self.minutes / max(config.minutes, 1e-9))

    def learning_rate(self) -> float:
        """Of the next update: all processes must ask for it, since their clocks differ and it must not."""
        return self.rate.at(self.processes.of_first(self.share)) * self.rate.warmth(self.update)

    @property
    def over(self) -> bool:
        return self.config.minutes is not None and self.minutes >= self.config.minutes

    def make_update(self, stop: int | None, checkpoint: bool) -> Update:
        """One step of truncated backpropagation and of Adam. `stop`, a signal, and `checkpoint` are this process's
        wishes."""
        self.set_slope(self.update)
        learning_rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        with self.guide:
            loss = self.task.loss(self.update, self.generator)
        self.optimizer.zero_grad()
        (loss.mean + self.guide.loss(uncertainty=loss.uncertainty)).backward()
        length = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.gradient_clip)
        wishes = [stop == number for number in STOPPED]
        wishes += [self.over and self.processes.first, checkpoint and self.processes.first]
        # The one time that an update waits for a GPU.
        norm, *means = fetched(self.device, length, loss.mean, *loss.rates)
        sums = self.processes.sum([*means, *map(float, wishes)])
        mean_loss, *rates = (value / self.processes.world for value in sums[: len(means)])
        # Every process sees the same sums and, after averaging, the same gradient: all decide alike.
        applied = math.isfinite(mean_loss) and math.isfinite(norm)
        if applied:
            self.apply_gradient()
            if self.average is not None:
                self.average.see(self.task.model)
        else:
            self.guide.skip()
            self.task.forget()
        self.skipped += not applied
        self.skipped_in_a_row = 0 if applied else self.skipped_in_a_row + 1
        self.update += 1
        *stops, over, checkpoint = (value > 0 for value in sums[len(means) :])
        stopped = next((number for number, asked in zip(STOPPED, stops, strict=True) if asked), None)
        told_loss = self.task.measure.of(mean_loss)
        return Update(told_loss, rates, loss.steps, norm, learning_rate, applied, stopped, over, checkpoint)

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    @torch.no_grad()
    def apply_gradient(self) -> None:
        """Adam, with decoupled weight decay (AdamW); and what the guide does after it."""
        shrink = 1 - self.optimizer.param_groups[0]["lr"] * self.config.weight_decay
        if shrink < 1:
            for matrix in self.matrices:
                matrix.mul_(shrink)
        self.optimizer.step()

    def averaged_model(self) -> Pretrained:
        """A model with the average of the weights, whose detectors fire as often as the model's own.

        Biases move while detectors are guided. Their averages lag behind, and threshold what they were not made for.
        """
        assert self.average is not None
        model, task = copy.deepcopy(self.average.model), self.task
        model.rnn.slope = task.model.rnn.slope
        if not obstacle(model.rnn):
            state: HMLSTMState | None = None
            with matching(model.rnn, self.watch.rates):
                for window in range(MATCHED):
                    state = task.read(model, window, state)
        return model

    def set_slope(self, update: int) -> None:
        epoch, _ = self.task.epochs.place(update)
        self.task.model.rnn.slope = self.slope(epoch)

    def validate(self) -> tuple[Validation, bool]:
        """How the model does, and whether that is the best so far."""
        own = Validation(0.0, ())
        if self.processes.first:
            self.judged = self.task.model if self.average is None else self.averaged_model()
            own = self.task.validate(self.judged, show=True)
        loss = self.processes.of_first(own.loss)
        improved = loss < self.best
        self.best = min(loss, self.best) if math.isfinite(loss) else self.best
        return Validation(loss, own.rates), improved

    def save(self, directory: Path) -> None:
        start = time.monotonic()
        self.check_finite()
        progress = self.state_dict()  # by all processes: it gathers
        if self.processes.first:
            save_run(directory, self.task.model, self.run, progress)
        self.saving = time.monotonic() - start

    def save_best(self, directory: Path) -> None:
        self.check_finite()
        if self.processes.first:
            save_model(directory / "best", self.judged, self.run)

    def save_best_again(self, directory: Path) -> None:
        """The best model as it was, with the settings that the run has now."""
        best = directory / "best"
        if self.processes.first and (best / "config.json").exists():
            save_model(best, type(self.task.model).from_pretrained(best), self.run)

    def check_finite(self) -> None:
        """An update from a finite gradient may still have spoilt the weights. Those never reach the disk."""
        if not all(bool(weight.isfinite().all()) for weight in self.task.model.state_dict().values()):
            raise Diverged(f"after update {self.update} the weights are not finite")

    def state_dict(self) -> dict[str, Any]:
        state, gather = self.task.state, self.processes.gather
        progress: dict[str, Any] = {
            "update": self.update,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "minutes": self.minutes,
            "best": self.best,
            "model": self.task.model.state_dict(),
            "optimizer": {str(i): kept for i, kept in self.optimizer.state_dict()["state"].items()},
            "average": None if self.average is None else self.average.state_dict(),
            "rate": self.rate.state_dict(),
            "guide": self.guide.state_dict(),
            "watch": self.watch.state_dict(),
            "random": gather(self.generator.get_state().unsqueeze(0)),
            "recurrent": None
            if state is None
            else {
                "h": [gather(h) for h in state.h],
                "c": [gather(c) for c in state.c],
                "z": gather(state.z),
            },
            "machine": self.machine(),
        }
        moved: dict[str, Any] = on_cpu(progress)
        return moved

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = {"guide": {**self.guide.state_dict(), "update": state["update"]}, **state}  # older runs have none
        self.check(state)
        self.update, self.minutes, self.best = state["update"], state["minutes"], state["best"]
        self.skipped, self.skipped_in_a_row = state["skipped"], state["skipped_in_a_row"]
        self.task.model.load_state_dict(state["model"])
        kept = {int(i): own for i, own in state["optimizer"].items()}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": kept})
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.rate.load_state_dict(state["rate"])
        self.guide.load_state_dict(state["guide"])
        self.watch.load_state_dict(state["watch"])
        own, recurrent = self.processes.own, state["recurrent"]
        self.generator.set_state(own(state["random"])[0])
        if recurrent is not None:
            h, c = (tuple(own(rows) for rows in recurrent[name]) for name in ("h", "c"))
            self.task.state = HMLSTMState(h, c, own(recurrent["z"])).to(self.device)
        self.set_slope(max(0, self.update - 1))

    def check(self, state: dict[str, Any]) -> None:
        """Refuses a state that this run can't have had. Its weights are checked when they are loaded."""
        own = self.state_dict()
        for name in ("update", "skipped", "skipped_in_a_row", "minutes", "best", "rate", "guide", "watch", "random"):
            check_alike(state[name], own[name], name)
        if self.average is not None:
            check_alike(state["average"], own["average"], "average")
        step = torch.zeros((), dtype=torch.float32)  # as a fused Adam counts
        moments = {str(i): {"step": step, "exp_avg": p, "exp_avg_sq": p} for i, p in enumerate(self.parameters)}
        for i, kept in state["optimizer"].items():
            check_alike(kept, moments[i], f"optimizer: {i}")
        if state["recurrent"] is not None:
            start = self.task.model.rnn.initial_state(self.task.rows * self.processes.world)
            check_alike(state["recurrent"], {"h": list(start.h), "c": list(start.c), "z": start.z}, "recurrent")

    def machine(self) -> dict[str, Any]:
        """What must be the same for a resumed run to give the same bits."""
        rnn = self.task.model.rnn
        rounded = {"bfloat16": native.bfloat16_kernel()} if rnn.rounds_products and rnn.engine == "native" else {}
        return {
            "device": description(self.device),
            "engine": rnn.engine,
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            **rounded,
        }


def train(training: Training, directory: Path, reporter: Reporter) -> str:
    """Trains to the end, or until it is told to stop. Says why it ended."""
    before, start = training.minutes, time.monotonic()
    checkpoints = Checkpoints(training.config.checkpoint_minutes, start)
    speed = 0.0  # steps a second, a running mean
    ended = end_of(training) or ("the time is over" if training.over else "")
    with stop_signals() as stop:
        while not ended:
            began = time.monotonic()
            done = training.make_update(
                stop.asked, checkpoints.due(began, training.saving, training.validates_after(training.update + 1))
            )
            now = time.monotonic()
            training.minutes = before + (now - start) / 60
            speed += (done.steps / (now - began) - speed) * (0.05 if speed else 1.0)
            report(training, done, speed, reporter)
            if training.validation_due:
                loss, _ = validate(training, directory, reporter)
                training.rate.after(loss)
            ended = (
                STOPPED[done.stopped] if done.stopped else end_of(training) or ("the time is over" if done.over else "")
            )
            # Not saved while updates fail: if the one before spoilt the weights, the last good checkpoint must stay.
            good = done.applied
            if ended and not done.stopped and not training.validation_due:
                # Not part of the schedule: had the run gone on, it would not have been made.
                _, improved = validate(training, directory, reporter)
                good = good or improved
            if good and (done.checkpoint or ended):
                training.minutes = before + (time.monotonic() - start) / 60
                training.save(directory)
                checkpoints.latest = time.monotonic()
    return ended


def validate(training: Training, directory: Path, reporter: Reporter) -> tuple[float, bool]:
    """The loss, and whether it is the best so far: then the model is kept."""
    validation, improved = training.validate()
    tell_validation(training, validation, improved, reporter)
    if improved:
        training.save_best(directory)
    return validation.loss, improved


def end_of(training: Training) -> str:
    """Why training is over, or nothing."""
    if training.skipped_in_a_row >= GIVE_UP:
        raise Diverged(
            f"{GIVE_UP} updates in a row gave a loss or a gradient that is not finite (the last was update "
            f"{training.update})"
        )
    if training.rate.finished:
        return CONVERGED
    return "all epochs are done" if training.update >= training.last_update else ""
