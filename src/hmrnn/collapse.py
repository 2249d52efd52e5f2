"""Detectors that have collapsed: they fire never, or always."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from hmrnn.sequence import HMLSTMOutput

RARE, OFTEN = 0.005, 0.995
LONG = 200  # looks
EVERY = 10  # training forward passes of which a network looks at one
HARM = {"never": "the layers above get nothing to do", "always": "there is no hierarchy above it"}


class CollapseWatch:
    """Notices a detector that has stopped deciding: one warning each."""

    def __init__(
        self, detectors: int, span: str = f"{LONG} updates", remedy: str = "Try another seed, target_rate or"
    ) -> None:
        """`span` is how long `LONG` looks are, and `remedy` what to do, before "a higher boundary_bias"."""
        self.span, self.remedy = span, remedy
        self.rates = [0.5] * detectors  # how often each fires: a running mean, since single updates scatter
        self.since = [0] * detectors  # looks for which it has been stuck
        self.warned = [False] * detectors

    def see(self, rates: Sequence[float]) -> list[str]:
        """Takes note of how often each detector fired since the last look, and gives the warnings that are due."""
        due = []
        for l, rate in enumerate(rates[: len(self.rates)]):
            mean = self.rates[l] = self.rates[l] + (rate - self.rates[l]) / (LONG / 10)
            self.since[l] = self.since[l] + 1 if mean < RARE or mean > OFTEN else 0
            if self.since[l] >= LONG and not self.warned[l]:
                self.warned[l] = True
                how, change = ("never", "higher") if mean < RARE else ("always", "lower")
                due.append(
                    f"the detector of layer {l + 1} has fired almost {how} ({mean:.1%} of steps) for {self.span}: "
                    f"{HARM[how]}. {self.remedy} a {change} boundary_bias"
                )
        return due

    def state_dict(self) -> dict[str, Any]:
        return {"rates": list(self.rates), "since": list(self.since), "warned": list(self.warned)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rates, self.since, self.warned = state["rates"], state["since"], state["warned"]


class CollapseWarning(UserWarning):
    """Warns that a detector has collapsed: it fires almost never, or almost always."""


class CollapseAlarm:
    """Warns of collapsed detectors while a network is trained, once for each."""

    def __init__(self, detectors: int) -> None:
        span, remedy = f"{LONG * EVERY:,} forward passes", "Guide it (hmrnn.Guide), or begin with"
        self.watch, self.passes = CollapseWatch(detectors, span, remedy), 0

    def see(self, out: HMLSTMOutput) -> None:
        """After each forward pass of training. Most are not looked at, and none on a GPU: one would wait for it."""
        self.passes += 1
        if self.passes % EVERY or type(out.z) is not torch.Tensor or out.z.device.type != "cpu":
            return
        try:
            rates = out.rates.tolist()
        except RuntimeError:  # inside torch.func, nobody may ask for numbers
            return
        for warning in self.watch.see(rates):
            warnings.warn(warning, CollapseWarning, stacklevel=2)
