"""Lines from a model, vector by vector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hmrnn.domains.vectors.reading import read_on
from hmrnn.errors import check_not_negative
from hmrnn.structure.reading import Place, PredictsNothing, Read
from hmrnn.training.batches import Line

if TYPE_CHECKING:
    from hmrnn.domains.vectors.model import VectorModel


@dataclass(frozen=True)
class GeneratedPoint:
    """A point that was read or made."""

    point: tuple[float, ...]  # in the data's own units
    z: tuple[bool, ...]  # for each detector, whether it saw a segment end here
    new: bool  # made, and not of what was given


@torch.no_grad()
def generate_points(
    model: VectorModel[Any], prime: Line | None, max_new: int, bias: float, seed: int | None
) -> Iterator[GeneratedPoint]:
    """The points of `prime`, and then new ones as they are made; without `prime`, a new line from its start."""
    check_not_negative("max_new", max_new)
    check_not_negative("bias", bias)
    if prime is not None and len(prime) == 0:
        raise ValueError("there is no point to go on from")
    generator = torch.Generator()  # on the CPU: the same line on every device
    _ = generator.seed() if seed is None else generator.manual_seed(seed)
    read = read_on(
        model,
        torch.from_numpy(model.start if prime is None else np.array(prime, dtype=np.float32)),
        Place.start(model),
        generator,
    )
    yield from points_of(read, new=False)
    for made in islice(generate_on(model, read.after, bias, generator), max_new):
        yield from points_of(made, new=True)


def generate_on(
    model: VectorModel[Any], place: Place, bias: float, generator: torch.Generator | None = None
) -> Iterator[Read]:
    """Draws point after point, without end: each is read before the next is drawn."""
    while True:
        expected = place.expected[0, 0].to("cpu")
        if not expected.log_pi.isfinite().any():
            raise PredictsNothing
        drawn = expected.biased(bias).sample(generator)
        points = model.in_units(drawn.to(model.mean)).to("cpu", torch.float32).unsqueeze(0)
        read = read_on(model, points, place, generator)
        yield read
        place = read.after


def points_of(read: Read, new: bool) -> Iterator[GeneratedPoint]:
    for point, z in zip(read.inputs.tolist(), read.z.tolist(), strict=True):
        yield GeneratedPoint(tuple(point), tuple(z), new)
