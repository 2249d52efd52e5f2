"""A run that a page can ask: what all domains have in common."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from hmrnn.explorer.reading import Block, Memory, read_blocks
from hmrnn.explorer.requests import Request
from hmrnn.storage.files import finite
from hmrnn.storage.pretrained import Pretrained
from hmrnn.structure.operations import Steps
from hmrnn.structure.reading import Place, Read

Model = TypeVar("Model", bound=Pretrained)
Answer: TypeAlias = dict[str, Any]
Answers: TypeAlias = Iterator["Answer | None"]
"""What is told bit by bit. To make each takes little time, so that those of several users can take turns; None: there
is nothing to tell yet."""

SLOPES_KEPT = 8


class Run(ABC, Generic[Model]):
    """A model, and what it answers."""

    def __init__(self, number: int, name: str, model: Model, memory: Memory) -> None:
        self.number, self.name, self.memory = number, name, memory
        self.directory: Path | None = None  # where it was loaded from
        self.model: Model = model.requires_grad_(False)
        _ = model.rnn.engine  # built now if it must be, and not while a user waits
        self.with_slope: Callable[[float], Model] = lru_cache(maxsize=SLOPES_KEPT)(self._with_slope)

    @property
    @abstractmethod
    def kinds(self) -> Mapping[str, Callable[[Request], Answers]]:
        """What can be asked for."""

    @abstractmethod
    def read_on(self, model: Model, inputs: Tensor, before: Place) -> Read:
        """Reads from a place on."""

    @property
    def detectors(self) -> int:
        """Layers that have boundaries."""
        return 0 if self.model.config.model == "lstm" else self.model.rnn.num_layers - 1

    def described(self) -> Answer:
        """What a page must know of it."""
        rnn = self.model.rnn
        learnt = self.model.config.model == "hm-lstm"
        return {
            "name": self.name,
            "kind": self.model.kind,
            "model": self.model.config.model,
            "hidden": rnn.hidden_sizes,
            "detectors": self.detectors,
            "slope": rnn.slope if learnt else None,
            "boundary": self.model.config.boundary if learnt else None,
        }

    def _with_slope(self, slope: float) -> Model:
        """The same weights behind detectors of another slope."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        model = copy.deepcopy(self.model, {id(tensor): tensor for tensor in tensors})
        model.rnn.slope = slope
        return model

    def asked_model(self, request: Request) -> Model:
        return self.with_slope(request.slope(self.model.rnn.slope))

    def read_all(self, model: Model, inputs: Tensor) -> Iterator[Block]:
        """Block by block; what is remembered comes at once."""
        key = f"{self.number} {model.rnn.slope}".encode()
        return read_blocks(self.memory, key, inputs, Place.start(model), lambda part, at: self.read_on(model, part, at))


def answer_of(steps: Steps, first: int = 0) -> Answer:
    """Steps from `first` on, each value a list for each layer. Numbers are rounded to three places."""
    return {
        "start": steps.start + first,
        "operations": steps.operations[first:].T.tolist(),
        "z": steps.z[first:].T.int().tolist(),
        "z_tilde": rounded(steps.z_tilde[first:].T),
        "norms": rounded(steps.norms[first:].T),
        "surprisal": rounded(steps.surprisal[first:]),
    }


def rounded(values: Tensor) -> Any:
    return finite(np.round(values.to(torch.float64).numpy(), 3).tolist())
