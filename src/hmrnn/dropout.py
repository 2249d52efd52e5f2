"""Dropout for a network that COPYs: one mask for a whole call, so that a segment keeps one value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hmrnn.equations import LayerWeights

LEVELS = 2**16  # of a share: random numbers of 16 bits are four times as fast to draw as those of a float


def mask(like: Tensor, shape: Sequence[int], share: float, generator: torch.Generator | None) -> Tensor:
    """Numbers of which a `share` is 0 and the rest so large that the mean is 1, of the kind of `like`.

    The share is rounded to a multiple of 1/65536.
    """
    numbers = math.prod(shape)
    source = like.device if generator is None else generator.device
    bits = torch.empty(-(-numbers // 4), dtype=torch.int64, device=source)
    bits.random_(-(2**63), None, generator=generator)  # four numbers in each
    bits = bits.to(like.device, non_blocking=True)
    dropped = min(round(share * LEVELS), LEVELS - 1)
    kept = bits.view(torch.int16)[:numbers] >= dropped - LEVELS // 2
    return kept.to(like.dtype).mul_(LEVELS / (LEVELS - dropped)).view(*shape)


def drop(x: Tensor, share: float, generator: torch.Generator | None, *, each_step: bool = False) -> Tensor:
    """(T, B, H) of which a share is 0: the same units of a row at all steps, or others at each."""
    return x if share == 0 else x * mask(x, x.shape if each_step else x.shape[1:], share, generator)


def drop_weights(layer: LayerWeights, share: float, generator: torch.Generator | None) -> LayerWeights:
    """Weight-drop: sets some of W, U and V to 0. What leads into the detector is left alone."""
    matrices = {name: getattr(layer, name) for name in ("W", "U", "V")}
    return layer._replace(
        **{name: w * mask(w, w.shape, share, generator) for name, w in matrices.items() if w is not None}
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode meanwhile: without dropout."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
