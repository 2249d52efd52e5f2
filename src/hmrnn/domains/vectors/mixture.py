"""Mixtures of Gaussians over vectors, in log space. Scales are bounded: where values repeat exactly, a density could
otherwise grow without end by sitting on them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

LOG_SIGMA_BOUND = 6.0  # sigma is at most exp(6) times the data's own deviation
FAR = 1e12  # where means and points are cut off: the square of what lies there is still a number in float32


@dataclass(frozen=True)
class Density(ABC):
    """The density of a vector of D numbers, at each of (...) steps: a mixture of K Gaussians, and what else it has."""

    log_pi: Tensor  # (..., K)
    mu: Tensor  # (..., K, D)
    log_sigma: Tensor  # (..., K, D)

    def __getitem__(self, where: Any) -> Self:
        """The density at some of the steps."""
        return self._map(lambda values: values[where])

    def to(self, *args: Any) -> Self:
        """As `Tensor.to`."""
        return self._map(lambda values: values.to(*args))

    def _map(self, f: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(*(f(getattr(self, name.name)) for name in fields(self)))

    @abstractmethod
    def log_prob(self, points: Tensor) -> Tensor:
        """(..., the numbers of a point) -> (...,), in nats."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """(..., the numbers of a point): one drawn at each step."""

    def variances(self) -> Tensor:
        """(..., K, D): of each number in each component."""
        return (2 * self.log_sigma).exp()

    def spread(self) -> Tensor:
        """(...,): the entropy of a Gaussian with the variances of this mixture, in nats and but for a constant.

        The entropy itself has no closed form, and the loss of a step, which is right on average, is mostly noise.
        """
        pi = self.log_pi.exp().unsqueeze(-1)
        mean = (pi * self.mu).sum(-2, keepdim=True)
        variance = (pi * (self.variances() + (self.mu - mean).square())).sum(-2)
        return 0.5 * variance.log().sum(-1)

    def biased(self, bias: float) -> Self:
        """Graves's bias: weights are sharpened and deviations shrunk; 0 changes nothing."""
        bias = min(bias, FAR)  # beyond it nothing gets neater, and float32 overflows
        # The largest becomes 0, so that no bias, however large, makes all of them -infinity.
        relative = self.log_pi - self.log_pi.max(-1, keepdim=True).values
        return replace(self, log_pi=(relative * (1 + bias)).log_softmax(-1), log_sigma=self.log_sigma - bias)

    def floored(self, sigma: float) -> Self:
        """With no deviation below `sigma`."""
        return replace(self, log_sigma=self.log_sigma.clamp_min(math.log(sigma)))

    def drawn_component(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Draws a component at each step: its number (..., 1), its mean (..., D) and its deviation (..., D)."""
        flat = self.log_pi.exp().flatten(0, -2) if self.log_pi.dim() > 1 else self.log_pi.exp().unsqueeze(0)
        k = torch.multinomial(flat, 1, generator=generator).view(*self.log_pi.shape[:-1], 1)
        own = k.unsqueeze(-1).expand(*k.shape, self.mu.shape[-1])
        mu, sigma = (values.gather(-2, own)[..., 0, :] for values in (self.mu, self.log_sigma.exp()))
        return k, mu, sigma


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """Between low < 0 and high > 0; x itself near 0."""
    return torch.where(x < 0, low * (x / low).tanh(), high * (x / high).tanh())
