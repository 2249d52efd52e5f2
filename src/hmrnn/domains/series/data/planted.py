"""The built-in series: motifs that repeat, of which it is known where each ends, and where another regime begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmrnn.domains.series.config import PlantedSeriesConfig

WAVES = 3  # sines that a motif's curve is the sum of: half a wave, a whole one, one and a half
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Planted:
    values: npt.NDArray[np.float32]  # (T, D): NaN where missing
    motifs: npt.NDArray[np.bool_]  # (T,): whether a motif ends with this step
    regimes: npt.NDArray[np.bool_]  # (T,): whether a regime ends with this step


def plant(config: PlantedSeriesConfig) -> list[Planted]:
    """Makes sequences. The first ones are the same however many are asked for."""
    random = np.random.default_rng(config.seed)
    motifs = [_motif(config, random) for _ in range(config.motifs)]
    regimes = [random.choice(config.motifs, config.motifs_of_regime, replace=False) for _ in range(config.regimes)]
    return [_sequence(config, motifs, regimes, random) for _ in range(config.sequences)]


def _motif(config: PlantedSeriesConfig, random: np.random.Generator) -> Floats:
    """(length, D): a curve from 0 to 0, of mean square 1."""
    steps = int(random.integers(config.length[0], config.length[1] + 1))
    places = np.arange(1, steps + 1)[:, None] / steps  # the last is the end, at 0: the next motif goes on from there
    waves = np.sin(np.pi * places * np.arange(1, WAVES + 1))  # (steps, WAVES)
    curve: Floats = waves @ random.normal(size=(WAVES, config.columns))
    size = float(np.sqrt(np.square(curve).mean()))
    return curve / size


def _sequence(
    config: PlantedSeriesConfig,
    motifs: list[Floats],
    regimes: list[npt.NDArray[np.int64]],
    random: np.random.Generator,
) -> Planted:
    parts: list[Floats] = []
    last_of_motif: list[int] = []
    last_of_regime: list[int] = []
    regime, end = int(random.integers(config.regimes)), 0
    while end < config.steps:
        for _ in range(int(random.integers(config.stay[0], config.stay[1] + 1))):
            parts.append(motifs[random.choice(regimes[regime])])
            end += len(parts[-1])
            last_of_motif.append(end - 1)
        last_of_regime.append(end - 1)
        if config.regimes > 1:
            regime = (regime + int(random.integers(1, config.regimes))) % config.regimes
    values = np.concatenate(parts)[: config.steps]
    values = values + config.noise * random.normal(size=values.shape)
    values[random.random(values.shape) < config.missing] = np.nan
    ends = np.zeros((end, 2), dtype=bool)
    ends[last_of_motif, 0] = ends[last_of_regime, 1] = True
    return Planted(values.astype(np.float32), ends[: config.steps, 0], ends[: config.steps, 1])
