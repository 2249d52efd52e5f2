"""The density of the next pen point: a mixture of bivariate Gaussians and a Bernoulli pen (Graves, 2013, section 4.1).

    p(x, y, pen) = sum_k pi_k N(x, y; mu_k, sigma_k, rho_k) * (e if pen else 1 - e)

All in log space. Scales and correlations are bounded: coordinates are whole numbers, and a density could otherwise grow
without end by sitting on them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmrnn.config import SMALLEST_SIGMA

if TYPE_CHECKING:
    from typing_extensions import Self

LOG_SIGMA_BOUND = 6.0  # sigma is at most exp(6) times the data's own deviation
RHO_BOUND = 0.999
FAR = 1e12  # where means and points are cut off: the square of what lies there is still a number in float32


def gaussian_log_prob(x: Tensor, mu: Tensor, log_sigma: Tensor, rho: Tensor) -> Tensor:
    """(..., 2), and (...) for rho -> (...,): of bivariate Gaussians."""
    u, v = ((x - mu) * (-log_sigma).exp()).unbind(-1)
    rest = (1 - rho) * (1 + rho)
    # u^2 + (v - rho u)^2 / (1 - rho^2) is (u^2 - 2 rho u v + v^2) / (1 - rho^2) without the cancellation
    square = u.square() + (v - rho * u).square() / rest
    return -math.log(2 * math.pi) - log_sigma.sum(-1) - 0.5 * (rest.log() + square)


@dataclass(frozen=True)
class Density(ABC):
    """Of a vector of D numbers, at each of (...) steps: a mixture of K Gaussians, and what else there is to it."""

    log_pi: Tensor  # (..., K)
    mu: Tensor  # (..., K, D)
    log_sigma: Tensor  # (..., K, D)

    def __getitem__(self, where: Any) -> Self:
        """Of some of the steps."""
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
        """Of each step one component: its number (..., 1), its mean (..., D) and its deviation (..., D)."""
        flat = self.log_pi.exp().flatten(0, -2) if self.log_pi.dim() > 1 else self.log_pi.exp().unsqueeze(0)
        k = torch.multinomial(flat, 1, generator=generator).view(*self.log_pi.shape[:-1], 1)
        own = k.unsqueeze(-1).expand(*k.shape, self.mu.shape[-1])
        mu, sigma = (values.gather(-2, own)[..., 0, :] for values in (self.mu, self.log_sigma.exp()))
        return k, mu, sigma


@dataclass(frozen=True)
class PointDensity(Density):
    """Of a pen point: D is 2."""

    rho: Tensor  # (..., K)
    pen: Tensor  # (...,): the log-odds of e

    def log_prob(self, points: Tensor) -> Tensor:
        """(..., 3): x, y, pen -> (...,), in nats."""
        points = points.to(self.mu.dtype)  # those of a model in float16 may not hold FAR
        x, pen = points[..., :2].clamp(-FAR, FAR), points[..., 2]
        of_components = gaussian_log_prob(x.unsqueeze(-2), self.mu, self.log_sigma, self.rho)
        off_paper = F.binary_cross_entropy_with_logits(self.pen, pen, reduction="none")
        return torch.logsumexp(self.log_pi + of_components, -1) - off_paper

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """(..., 3): a point drawn at each step."""
        k, mu, sigma = self.drawn_component(generator)
        rho = self.rho.gather(-1, k)[..., 0]
        u, w = torch.randn(*self.pen.shape, 2, generator=generator, dtype=rho.dtype, device=rho.device).unbind(-1)
        v = rho * u + ((1 - rho) * (1 + rho)).sqrt() * w
        lifted = (
            torch.rand(self.pen.shape, generator=generator, dtype=rho.dtype, device=rho.device) < self.pen.sigmoid()
        )
        return torch.cat([mu + sigma * torch.stack([u, v], -1), lifted.to(rho.dtype).unsqueeze(-1)], -1)


class MixtureHead(nn.Linear):
    """(..., output_size) -> the density of the next point."""

    def __init__(self, output_size: int, components: int, smallest_sigma: float = SMALLEST_SIGMA) -> None:
        super().__init__(output_size, 6 * components + 1)
        self.components = components
        self.smallest_sigma = smallest_sigma

    def density(self, h_e: Tensor) -> PointDensity:
        return density_of(self(h_e), self.components, self.smallest_sigma)


def density_of(raw: Tensor, components: int, smallest_sigma: float = SMALLEST_SIGMA) -> PointDensity:
    """(..., 6 K + 1) numbers of any size -> a density with bounded scales and correlations."""
    raw = raw if raw.dtype == torch.float64 else raw.float()
    log_pi, mu, log_sigma, rho, pen = raw.split([components, 2 * components, 2 * components, components, 1], -1)
    pairs = (*raw.shape[:-1], components, 2)
    return PointDensity(
        log_pi.log_softmax(-1),
        mu.view(pairs).clamp(-FAR, FAR),
        bounded(log_sigma.view(pairs), math.log(smallest_sigma), LOG_SIGMA_BOUND),
        RHO_BOUND * rho.tanh(),
        pen[..., 0].clamp(-FAR, FAR),
    )


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """Between low < 0 and high > 0; x itself near 0."""
    return torch.where(x < 0, low * (x / low).tanh(), high * (x / high).tanh())
