"""The density of the next step of a series: a mixture of Gaussians, each with a diagonal covariance.

    p(x) = sum_k pi_k prod_d N(x_d; mu_kd, sigma_kd)

Where a number is missing, its factor is left out of the product: that is the density of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hmrnn.config import SMALLEST_SIGMA
from hmrnn.mixture import FAR, LOG_SIGMA_BOUND, Density, bounded


@dataclass(frozen=True)
class StepDensity(Density):
    """Of D numbers. Their correlations are those of the components' means."""

    def log_prob(self, points: Tensor) -> Tensor:
        """(..., D): NaN where missing -> (...,), in nats; 0 where all are missing."""
        points = points.to(self.mu.dtype).unsqueeze(-2)
        missing = points.isnan()
        x = points.masked_fill(missing, 0.0).clamp(-FAR, FAR)
        u = (x - self.mu) * (-self.log_sigma).exp()
        each = -0.5 * (u.square() + math.log(2 * math.pi)) - self.log_sigma
        return torch.logsumexp(self.log_pi + each.masked_fill(missing, 0.0).sum(-1), -1)

    def spread(self) -> Tensor:
        """(...,): the entropy of a Gaussian with the variances of this mixture, in nats and but for a constant.

        The entropy itself has no closed form, and the loss of a step, which is right on average, is mostly noise.
        """
        pi = self.log_pi.exp().unsqueeze(-1)
        mean = (pi * self.mu).sum(-2, keepdim=True)
        variance = (pi * ((2 * self.log_sigma).exp() + (self.mu - mean).square())).sum(-2)
        return 0.5 * variance.log().sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        _, mu, sigma = self.drawn_component(generator)
        return mu + sigma * torch.randn(mu.shape, generator=generator, dtype=mu.dtype, device=mu.device)


class StepHead(nn.Linear):
    """(..., output_size) -> the density of the next step."""

    def __init__(self, output_size: int, width: int, components: int, smallest_sigma: float = SMALLEST_SIGMA) -> None:
        super().__init__(output_size, components * (1 + 2 * width))
        self.width, self.components, self.smallest_sigma = width, components, smallest_sigma

    def density(self, h_e: Tensor) -> StepDensity:
        raw = self(h_e)
        raw = raw if raw.dtype == torch.float64 else raw.float()
        each = self.components * self.width
        log_pi, mu, log_sigma = raw.split([self.components, each, each], -1)
        shape = (*raw.shape[:-1], self.components, self.width)
        return StepDensity(
            log_pi.log_softmax(-1),
            mu.view(shape).clamp(-FAR, FAR),
            bounded(log_sigma.view(shape), math.log(self.smallest_sigma), LOG_SIGMA_BOUND),
        )
