"""What changes in the course of training by a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hmrnn.config import TrainingConfig

SOONEST, LATEST = 5.0, 300.0  # seconds from one checkpoint to the next
LOST = 0.05  # share of a run that a kill may cost, between these
MOST_SAVING = 0.02  # share of the time


class Checkpoints:
    """When the next checkpoint is due. Times are in seconds.

    A run that is killed in its first minutes loses seconds, a long one minutes; and one whose checkpoints take long as
    much time as 50 of them do.
    """

    def __init__(self, minutes: float | None, now: float) -> None:
        """`minutes` from one to the next, if they are set."""
        self.minutes, self.start, self.latest = minutes, now, now

    def due(self, now: float, cost: float, validation: bool) -> bool:
        """`cost`: of writing the latest one. `validation`: one comes now, and a checkpoint keeps what it decides."""
        since = now - self.latest
        if self.minutes is not None:
            return validation or since > 60 * self.minutes
        soon = min(LATEST, max(SOONEST, LOST * (now - self.start)))
        return since >= cost / MOST_SAVING and (validation or since > soon)


@dataclass
class LearningRate:
    """Divided once when validation stops improving; when it stops again, training is finished. In the last part of a
    run it cools down."""

    config: TrainingConfig
    best: float = float("inf")
    stale: int = 0  # validations since the best
    divided: bool = False
    finished: bool = False

    @property
    def value(self) -> float:
        return self.config.learning_rate / (self.config.learning_rate_divisor if self.divided else 1.0)

    def at(self, share: float) -> float:
        """When this share of the run is behind us."""
        cooldown = self.config.cooldown
        return self.value * (min(1.0, max(0.0, 1 - share) / cooldown) if cooldown else 1.0)

    def warmth(self, update: int) -> float:
        """What an update takes of the learning rate, 0 to 1: less in the first ones."""
        return min(1.0, (update + 1) / (self.config.warmup + 1))

    def after(self, validation: float) -> None:
        """Takes note of a validation: less is better. One that is not a number is none."""
        if validation < self.best:
            self.best, self.stale = validation, 0
            return
        self.stale += 1
        if self.stale >= self.config.patience:
            self.finished = self.divided
            self.divided, self.stale = True, 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "stale": self.stale, "divided": self.divided, "finished": self.finished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.stale = state["best"], state["stale"]
        self.divided, self.finished = state["divided"], state["finished"]
