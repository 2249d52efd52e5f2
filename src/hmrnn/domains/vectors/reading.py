"""A model of vectors that reads on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hmrnn.dropout import evaluating
from hmrnn.structure.reading import Place, Read

if TYPE_CHECKING:
    from hmrnn.domains.vectors.model import VectorModel


@torch.no_grad()
def read_on(model: VectorModel[Any], points: Tensor, before: Place, generator: torch.Generator | None = None) -> Read:
    """(T, D) float32. `generator` is for sampled boundaries. What is expected next is a density, (1, 1)."""
    device = model.mean.device
    x = points.unsqueeze(1).to(device)
    with evaluating(model):
        out, state = model(x, before.state, generator=generator or before.generator(device))

    def surprisal() -> Tensor:
        """In nats."""
        normalised = model.normalised(x)
        first = torch.full((1, 1), math.nan, device=device)
        if before.expected is not None:
            first = before.expected.log_prob(normalised[:1])
        return -torch.cat([first, out.density[:-1].log_prob(normalised[1:])])[:, 0].double().cpu()

    after = Place(before.at + len(points), state.select([0]), before.past, out.density[[-1]])
    return Read(model, points, before, out.rnn, after, surprisal)
