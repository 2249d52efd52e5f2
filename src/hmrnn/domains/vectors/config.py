"""What can be set of runs on vectors, and what domains call them."""

from __future__ import annotations

from dataclasses import dataclass

from hmrnn.config import MOST_UNITS, SMALLEST_SIGMA, ModelConfig
from hmrnn.errors import check_size


@dataclass(frozen=True)
class Words:
    """What a domain calls its lines and their points."""

    line: str
    point: str


@dataclass(frozen=True)
class VectorModelConfig(ModelConfig):
    """The shape of a model that predicts vectors by a mixture of Gaussians."""

    components: int = 20
    """Number of Gaussians in the mixture that predicts the next vector."""
    smallest_sigma: float = SMALLEST_SIGMA
    """Lower bound of the standard deviations of the mixture, relative to those of the data.
    If the data are whole numbers, a smaller bound raises the likelihood by itself: compare models at the same bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("components", self.components, MOST_UNITS)
        if not 1e-5 <= self.smallest_sigma < 1:
            raise ValueError(f"smallest_sigma must be at least 1e-5, and less than 1; got {self.smallest_sigma}")
