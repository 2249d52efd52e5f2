"""What each layer did at each step of a sequence: UPDATE, COPY or FLUSH, with what went on in the detectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from hmrnn.boundary import hard_sigmoid
from hmrnn.hmlstm import HMLSTM
from hmrnn.sequence import (
    COPY,
    HMLSTMOutput,
    HMLSTMState,
    Piecewise,
)
from hmrnn.storage.pretrained import Pretrained


@dataclass(frozen=True)
class Steps:
    """Consecutive steps of a sequence, as a model with L layers read them.

    Attributes:
        start: Index of the first step.
        inputs: (T, …) what was read, such as the numbers of symbols.
        operations: (T, L) int8: UPDATE, COPY or FLUSH.
        z: (T, L-1) bool: where the detectors fired.
        z_tilde: (T, L-1) values of the detectors between 0 and 1; z itself where there is no detector.
        norms: (T, L) norms of the hidden states.
        surprisal: (T,) -log p of each step given those before it, in bits for text and else in nats; NaN for the first.
        h: Hidden states of each layer, (T, H_l), if they were requested.
    """

    start: int
    inputs: Tensor
    operations: Tensor
    z: Tensor
    z_tilde: Tensor
    norms: Tensor
    surprisal: Tensor
    h: tuple[Tensor, ...] | None

    def __repr__(self) -> str:
        return f"Steps({self.start} to {self.start + len(self.inputs)}, {self.operations.shape[1]} layers)"

    @staticmethod
    def joined(parts: Iterable[Steps]) -> Steps:
        """Stretches that follow each other, as one."""
        parts = list(parts)
        if not parts:
            raise ValueError("there are no steps to join: the sequence is empty")
        values: dict[str, Any] = {f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Steps)[1:-1]}
        columns = [p.h for p in parts if p.h is not None]
        h = tuple(torch.cat(column) for column in zip(*columns, strict=True)) if columns else None
        return Steps(parts[0].start, **values, h=h)


@dataclass(frozen=True)
class Updates:
    """How often layers did something, as the paper counts: 270, 56 and 9 of 810, for instance."""

    layers: tuple[int, ...]  # UPDATE and FLUSH operations of each layer
    steps: int

    @property
    def all(self) -> int:
        """What a network without COPY would have done."""
        return self.steps * len(self.layers)

    @property
    def saved(self) -> float:
        """The share of it that COPY saved."""
        return 1 - sum(self.layers) / self.all if self.steps else 0.0

    def description(self) -> str:
        layers = " / ".join(f"{count:,}" for count in self.layers)
        each = f"{self.steps:,} steps × {len(self.layers)} layers"
        return f"{layers} updates of {self.all:,} ({each}): {self.saved:.0%} saved by COPY"

    def __add__(self, other: Updates) -> Updates:
        return Updates(tuple(a + b for a, b in zip(self.layers, other.layers, strict=True)), self.steps + other.steps)


def updates(operations: Tensor) -> Updates:
    """(T, L) -> the count of each layer."""
    return Updates(tuple((operations != COPY).sum(0).tolist()), len(operations))


def norms(steps: Piecewise) -> Tensor:
    """(T, B)"""
    return steps.map(lambda values: values.norm(dim=-1, keepdim=True)).dense()[..., 0]


def detector_values(model: Pretrained, inputs: Tensor, out: HMLSTMOutput, before: HMLSTMState) -> Tensor:
    """(T, 1, L-1): z~ of every detector at every step, as in `equations.py`, from what the engine put out."""
    rnn = model.rnn
    if not isinstance(rnn, HMLSTM) or model.config.model == "hrnn":
        return out.z
    x = model.embed(inputs.to(out.z.device).unsqueeze(1))
    return hard_sigmoid(rnn.detector_sums(x, before, out), rnn.slope)
