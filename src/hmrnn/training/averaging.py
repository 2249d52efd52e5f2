"""The exponential moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from hmrnn.storage.pretrained import Pretrained

Model = TypeVar("Model", bound=Pretrained)
HEAD_START = 10  # the n-th model weighs at least HEAD_START / (HEAD_START + n): early ones are soon forgotten


class WeightAverage(Generic[Model]):
    """Follows a model: average = decay * average + (1 - decay) * weights, after each update."""

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self._averaged = AveragedModel(model, multi_avg_fn=self._average)  # type: ignore[no-untyped-call, unused-ignore]
        self._averaged.eval()

    @torch.no_grad()
    def _average(self, averaged: Sequence[Tensor], weights: Sequence[Tensor], count: Tensor | int) -> None:
        decay = min(self.decay, int(count) / (HEAD_START + int(count)))
        for mean, weight in zip(averaged, weights, strict=True):
            mean.lerp_(weight, 1 - decay)

    def see(self, model: Model) -> None:
        """Takes the model's weights as they are now into the average."""
        self._averaged.update_parameters(model)

    @property
    def model(self) -> Model:
        return cast(Model, self._averaged.module)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._averaged.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averaged.load_state_dict(state)
