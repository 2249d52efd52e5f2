"""The density of the next pen point: a mixture of bivariate Gaussians and a Bernoulli pen (Graves, 2013, section 4.1).

    p(x, y, pen) = sum_k pi_k N(x, y; mu_k, sigma_k, rho_k) * (e if pen else 1 - e)

All in log space. Scales and correlations are bounded: coordinates are whole numbers, and a density could otherwise grow
without end by sitting on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmrnn.config import SMALLEST_SIGMA
from hmrnn.domains.vectors.mixture import FAR, LOG_SIGMA_BOUND, Density, bounded

RHO_BOUND = 0.999


def gaussian_log_prob(x: Tensor, mu: Tensor, log_sigma: Tensor, rho: Tensor) -> Tensor:
    """(..., 2), and (...) for rho -> (...,): of bivariate Gaussians."""
    u, v = ((x - mu) * (-log_sigma).exp()).unbind(-1)
    rest = (1 - rho) * (1 + rho)
    # u^2 + (v - rho u)^2 / (1 - rho^2) is (u^2 - 2 rho u v + v^2) / (1 - rho^2) without the cancellation
    square = u.square() + (v - rho * u).square() / rest
    return -math.log(2 * math.pi) - log_sigma.sum(-1) - 0.5 * (rest.log() + square)


@dataclass(frozen=True)
class PointDensity(Density):
    """The density of a pen point: a mixture of Gaussians for the offset, and a Bernoulli variable for the pen."""

    rho: Tensor  # (..., K)
    pen: Tensor  # (...,): the log-odds of e

    def log_prob(self, points: Tensor) -> Tensor:
        """Returns the log-density of points, (..., 3) of x, y and pen, in nats: (...,)."""
        points = points.to(self.mu.dtype)  # those of a model in float16 may not hold FAR
        x, pen = points[..., :2].clamp(-FAR, FAR), points[..., 2]
        of_components = gaussian_log_prob(x.unsqueeze(-2), self.mu, self.log_sigma, self.rho)
        off_paper = F.binary_cross_entropy_with_logits(self.pen, pen, reduction="none")
        return torch.logsumexp(self.log_pi + of_components, -1) - off_paper

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draws a point at each step, (..., 3)."""
        k, mu, sigma = self.drawn_component(generator)
        rho = self.rho.gather(-1, k)[..., 0]
        u, w = torch.randn(*self.pen.shape, 2, generator=generator, dtype=rho.dtype, device=rho.device).unbind(-1)
        v = rho * u + ((1 - rho) * (1 + rho)).sqrt() * w
        lifted = (
            torch.rand(self.pen.shape, generator=generator, dtype=rho.dtype, device=rho.device) < self.pen.sigmoid()
        )
        return torch.cat([mu + sigma * torch.stack([u, v], -1), lifted.to(rho.dtype).unsqueeze(-1)], -1)


class MixtureHead(nn.Linear):
    """Maps the output embedding, (..., output_size), to the density of the next point."""

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
