"""What can be set of a run on series, and settings by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Suppress

from hmrnn.config import (
    MOST_VALUES,
    SMALL,
    DataConfig,
    MadeDataConfig,
    Measure,
    NameOrFile,
    RunConfig,
    TrainingConfig,
    freeze_lists,
    shown_as,
)
from hmrnn.domains.vectors.config import VectorModelConfig, Words
from hmrnn.errors import SettingError, check_not_negative, check_range, check_share, check_size

MEASURE = Measure("nats", "nats a step (-log p: less is better)", 1.0, "steps")
WORDS = Words("sequence", "step")
SERIES_SETS = ("builtin",)
MOST_COLUMNS = MOST_VALUES  # a run keeps the names of those that were asked for as a setting
MOST_NUMBERS = 10**8  # of made series

ColumnName = Annotated[str, shown_as("NAME", str)]


@dataclass(frozen=True)
class SeriesModelConfig(VectorModelConfig):
    """Settings of the network of a series model."""

    embedding_size: int = 64
    """Size of the input embedding."""
    hidden_sizes: tuple[int, ...] = (128, 128, 128)
    """Units of each layer, the lowest first."""
    output_size: int = 128
    """Size of the output embedding."""
    components: int = 10
    """Number of Gaussians in the mixture that predicts the next step."""
    rank: int = 0
    """Rank of the covariance that columns share in each Gaussian, for columns that vary together. 0: diagonal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rank <= 100:
            raise ValueError(f"rank must lie between 0 and 100; got {self.rank}")
        if self.model == "hrnn":
            raise ValueError("an hrnn must be given boundaries, and a series has none to give")


@dataclass(frozen=True)
class PlantedSeriesConfig(MadeDataConfig):
    """The built-in series: motifs that repeat, joined without a jump; which ones are drawn depends on the regime."""

    sequences: int = 200
    """Number of sequences."""
    steps: int = 400
    """Steps of each sequence."""
    columns: int = 3
    """Numbers in each step."""
    motifs: int = 8
    """Number of motifs: short curves that begin and end at 0."""
    length: tuple[int, int] = (8, 16)
    """Shortest and longest motif, in steps."""
    regimes: int = 4
    """Number of regimes. Each draws from some of the motifs at random."""
    motifs_of_regime: int = 3
    """Motifs of each regime."""
    stay: tuple[int, int] = (4, 8)
    """Fewest and most motifs until another regime begins."""
    noise: float = 0.05
    """Standard deviation of the noise on each number, relative to that of a motif."""
    missing: float = 0.0
    """Share of the numbers that are missing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("sequences", self.sequences, 10**6)
        check_size("columns", self.columns, MOST_COLUMNS)
        check_size("motifs", self.motifs, 1000)
        check_size("regimes", self.regimes, 1000)
        check_size("motifs_of_regime", self.motifs_of_regime, self.motifs)
        check_range("length", self.length, most=1000)
        check_range("stay", self.stay, most=1000)
        check_share("missing", self.missing)
        if not 2 <= self.steps <= 10**6:
            raise ValueError(f"steps must be between 2 and 1,000,000; got {self.steps}")
        for name, count in (("sequences", self.sequences * self.steps), ("motifs", self.motifs * self.length[1])):
            check_size(f"the numbers in all {name}", count * self.columns, MOST_NUMBERS)
        if self.length[0] < 3:
            raise ValueError(f"a motif must have 3 steps; got length {self.length}")
        check_not_negative("noise", self.noise, 100)


@dataclass(frozen=True)
class SeriesDataConfig(DataConfig):
    """The series to learn from."""

    sets = SERIES_SETS
    made = ("builtin", "planted")
    data: NameOrFile = "builtin"
    """builtin, a file (.csv with a header, .npy, .npz), or a folder of such files, one sequence each."""
    columns: tuple[ColumnName, ...] | None = None
    """Columns to read, in this order. By default all but time and dates: each must then be numeric, and in every
    sequence."""
    ends: ColumnName | None = None
    """Column that is 1 where a segment ends and 0 elsewhere. The model does not read it; hmrnn score does."""
    piece: int = 1000
    """Training: cut sequences that are longer than this many steps."""
    division_seed: int = 0
    """Random seed of the split into 90, 5 and 5 % of the sequences.
    Fewer than 20 sequences are each split in time instead, without those shorter than 40 steps."""
    planted: PlantedSeriesConfig = field(default_factory=PlantedSeriesConfig)
    called: Annotated[str | None, Suppress] = field(default=None, compare=False)  # its path tells
    """The name that a file had before it was moved: sequences are named after it, and divided by their names."""

    def elsewhere(self, data: str) -> SeriesDataConfig:
        moved = super().elsewhere(data)
        was_file = self.is_path and moved.is_path and moved.data != self.data
        return replace(moved, called=self.called or Path(self.data).name) if was_file else moved

    def __post_init__(self) -> None:
        freeze_lists(self)
        if self.piece < 2:
            raise ValueError(f"piece must be at least 2, a step and the next to predict; got {self.piece}")
        if self.columns is not None:
            check_size("the number of columns", len(self.columns), MOST_COLUMNS)
            if len(set(self.columns)) < len(self.columns):
                raise ValueError(f"columns must be different; got {', '.join(self.columns)}")
            if self.ends in self.columns:
                raise ValueError(f"{self.ends} tells where segments end: it can't be one of the columns to read")

    def check_used(self) -> None:
        super().check_used()
        if self.ends is not None and not self.is_path:
            raise SettingError("{0} is for files; it is known where segments of {data} end", "ends", data=self.data)


@dataclass(frozen=True)
class SeriesRunConfig(RunConfig):
    """All that decides what comes of a training run on series."""

    kind: ClassVar[str] = "series"
    data: SeriesDataConfig = field(default_factory=SeriesDataConfig)
    model: SeriesModelConfig = field(default_factory=SeriesModelConfig)
    training: TrainingConfig = field(default_factory=lambda: replace(SMALL, target_rate=0.08, epochs=30, patience=1000))


PRESETS: Mapping[str, SeriesRunConfig] = {"small": SeriesRunConfig()}
