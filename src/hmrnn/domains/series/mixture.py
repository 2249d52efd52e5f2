"""The density of the next step of a series: a mixture of Gaussians, with diagonal or diagonal and low-rank covariances.

    p(x) = sum_k pi_k N(x; mu_k, S_k (I + B_k B_k') S_k)          S = diag(sigma), B: (D, rank)

Numbers that are missing are marginalised exactly: the density of the others is that of their rows of mu, S and B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hmrnn.config import SMALLEST_SIGMA
from hmrnn.domains.vectors.mixture import FAR, LOG_SIGMA_BOUND, Density, bounded

FACTOR_BOUND = 10.0  # of what numbers share, against what each has of its own


@dataclass(frozen=True)
class StepDensity(Density):
    """The density of the D numbers of a step."""

    factors: Tensor  # (..., K, D, rank): B

    def log_prob(self, points: Tensor) -> Tensor:
        """(..., D): NaN where missing -> (...,), in nats; 0 where all are missing."""
        points = points.to(self.mu.dtype).unsqueeze(-2)
        missing = points.isnan()
        x = points.masked_fill(missing, 0.0).clamp(-FAR, FAR)
        u = ((x - self.mu) * (-self.log_sigma).exp()).masked_fill(missing, 0.0)
        each = -0.5 * (u.square() + math.log(2 * math.pi)) - self.log_sigma
        of_components = each.masked_fill(missing, 0.0).sum(-1)
        if self.factors.shape[-1] > 0:
            of_components = of_components + low_rank(u, self.factors.masked_fill(missing.unsqueeze(-1), 0.0))
        return torch.logsumexp(self.log_pi + of_components, -1)

    def variances(self) -> Tensor:
        return super().variances() * (1 + self.factors.square().sum(-1))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        k, mu, sigma = self.drawn_component(generator)
        noise = torch.randn(mu.shape, generator=generator, dtype=mu.dtype, device=mu.device)
        if self.factors.shape[-1] > 0:
            shape = self.factors.shape[-2:]
            own = self.factors.gather(-3, k[..., None, None].expand(*k.shape, *shape))[..., 0, :, :]
            shared = torch.randn(*own.shape[:-2], shape[-1], 1, generator=generator, dtype=mu.dtype, device=mu.device)
            noise = noise + (own @ shared)[..., 0]
        return mu + sigma * noise


def low_rank(u: Tensor, factors: Tensor) -> Tensor:
    """(..., D), (..., D, rank) -> (...,): by how much log N(u; 0, I + B B') differs from log N(u; 0, I).

    By Woodbury's identity and the matrix determinant lemma, with M = I + B'B = L L', of size rank:
    u' (I + B B')^-1 u = u'u - |L^-1 B'u|^2, and log det (I + B B') = 2 sum log diag L.
    """
    small = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device) + factors.mT @ factors
    L: Tensor = torch.linalg.cholesky(small)
    projected: Tensor = torch.linalg.solve_triangular(L, factors.mT @ u.unsqueeze(-1), upper=False)
    return 0.5 * projected.square().sum((-2, -1)) - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class StepHead(nn.Linear):
    """(..., output_size) -> the density of the next step."""

    def __init__(
        self, output_size: int, width: int, components: int, smallest_sigma: float = SMALLEST_SIGMA, rank: int = 0
    ) -> None:
        super().__init__(output_size, components * (1 + (2 + rank) * width))
        self.width, self.components, self.smallest_sigma, self.rank = width, components, smallest_sigma, rank

    def density(self, h_e: Tensor) -> StepDensity:
        raw = self(h_e)
        raw = raw if raw.dtype == torch.float64 else raw.float()
        each = self.components * self.width
        log_pi, mu, log_sigma, factors = raw.split([self.components, each, each, each * self.rank], -1)
        shape = (*raw.shape[:-1], self.components, self.width)
        return StepDensity(
            log_pi.log_softmax(-1),
            mu.view(shape).clamp(-FAR, FAR),
            bounded(log_sigma.view(shape), math.log(self.smallest_sigma), LOG_SIGMA_BOUND),
            bounded(factors.view(*shape, self.rank), -FACTOR_BOUND, FACTOR_BOUND),
        )
