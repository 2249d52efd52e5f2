"""What can be set of a run on pen strokes, and settings by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from hmrnn.config import (
    LONGEST_RUN,
    OURS,
    SMALL,
    DataConfig,
    MadeDataConfig,
    Measure,
    NameOrFile,
    RunConfig,
    TrainingConfig,
    freeze_lists,
    paper_training,
)
from hmrnn.domains.vectors.config import VectorModelConfig, Words
from hmrnn.errors import check_not_negative, check_range, check_share, check_size

MEASURE = Measure("nats", "nats a point (-log p: less is better)", 1.0, "points")
WORDS = Words("line", "point")
STROKE_SETS = ("iam-ondb", "builtin")


@dataclass(frozen=True)
class StrokeModelConfig(VectorModelConfig):
    """Settings of the network of a stroke model."""

    hidden_sizes: tuple[int, ...] = (400, 400, 400)
    """Units of each layer, the lowest first."""
    output_size: int = 400
    """Size of the output embedding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model == "hrnn" and len(self.hidden_sizes) != 2:
            raise ValueError(
                "pen strokes give an hrnn boundaries for 2 layers: hidden_sizes must be two numbers; "
                f"got {self.hidden_sizes}"
            )


@dataclass(frozen=True)
class WritingConfig(MadeDataConfig):
    """The built-in handwriting: words in a Hershey font, as an unsteady hand would draw them."""

    lines: int = 2000
    """Number of lines."""
    words: tuple[int, int] = (2, 4)
    """Fewest and most words of a line."""
    font: Literal["futural", "scripts"] = "futural"
    """Hershey font: plain letters (futural) or a script."""
    spacing: float = 2.5
    """Mean distance between points of a stroke. A small letter is about 14 high, 9 in the script."""
    jitter: float = 0.15
    """Standard deviation of the noise on each coordinate."""
    slant: float = 0.15
    """Standard deviation of the slant of lines (tangent of the angle)."""
    size: float = 0.1
    """Relative standard deviation of the size of lines."""
    speed: float = 0.2
    """Relative standard deviation of the distance between points, within and between lines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("lines", self.lines, 10**7)
        check_range("words", self.words, most=1000)
        if not 0.01 <= self.spacing < float("inf"):
            raise ValueError(f"spacing must be at least 0.01, and finite; got {self.spacing}")
        for name in ("jitter", "slant", "size", "speed"):
            check_not_negative(name, getattr(self, name), 100)


@dataclass(frozen=True)
class StrokeDataConfig(DataConfig):
    """The handwriting to learn from."""

    sets = STROKE_SETS
    made = ("builtin", "writing")
    data: NameOrFile = "builtin"
    """iam-ondb, builtin (no download), or a file of JSON lines: each a list of strokes, a stroke a list of [x, y]."""
    shortest: int | None = None
    """Leave out lines with fewer points. By default 300 for iam-ondb, as in the paper, else 2."""
    division: Literal["shuffled", "by-writer"] = "shuffled"
    """How lines are split. shuffled: 90, 5 and 5 %, as in the paper.
    by-writer: the published lists t1 of IAM-OnDB, in which no writer occurs in two parts."""
    division_seed: int = 0
    """Random seed of the shuffled split."""
    scaling: float = 0.0
    """In training, scale each line by a random factor between 1 - this and 1 + this, a new one in each epoch."""
    late_window: tuple[int, int] | None = None
    """An epoch E, counted from 0, and a number of steps N: from epoch E on, windows have N steps in place of
    --window."""
    writing: WritingConfig = field(default_factory=WritingConfig)

    def elsewhere(self, data: str) -> StrokeDataConfig:
        # of other lines the writers are not known
        alike = self if data == "iam-ondb" else replace(self, division="shuffled")
        return super(StrokeDataConfig, alike).elsewhere(data)

    def __post_init__(self) -> None:
        freeze_lists(self)
        check_share("scaling", self.scaling)
        if self.late_window is not None and not (0 <= self.late_window[0] <= LONGEST_RUN and self.late_window[1] >= 1):
            raise ValueError(f"late_window must be an epoch and a number of steps from 1; got {self.late_window}")
        if self.shortest is not None and self.shortest < 2:
            raise ValueError(f"shortest must be at least 2, a point and the next to predict; got {self.shortest}")
        if self.division == "by-writer" and self.data != "iam-ondb":
            raise ValueError(f"division by-writer is for iam-ondb, whose writers are known; not for {self.data}")


@dataclass(frozen=True)
class StrokeRunConfig(RunConfig):
    """All that decides what comes of a training run on pen strokes."""

    kind: ClassVar[str] = "strokes"
    data: StrokeDataConfig = field(default_factory=StrokeDataConfig)
    model: StrokeModelConfig = field(default_factory=StrokeModelConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(target_rate=0.25, uncertainty_weight=0.0))


PRESETS: Mapping[str, StrokeRunConfig] = {
    "small": StrokeRunConfig(
        model=StrokeModelConfig(hidden_sizes=(128, 128, 128), output_size=128),
        training=replace(SMALL, detector_radius=1.94, target_rate=0.1, epochs=20),
    ),
    "iam-ondb": StrokeRunConfig(
        data=StrokeDataConfig(scaling=0.1, late_window=(12, 300)),
        model=StrokeModelConfig(dropout=0.05, output_dropout=0.05, smallest_sigma=1e-4),
        training=replace(
            OURS,
            learning_rate=0.001,
            slope_per_epoch=0.004,
            slope_limit=3.0,
            detector_radius=0.5,
            target_rate=0.25,
            uncertainty_weight=0.0,
            guided_updates=20_000,
            epochs=25,
        ),
    ),
    "paper-iam-ondb": StrokeRunConfig(
        training=paper_training(32, 0.0003, slope_per_epoch=0.004, slope_limit=3.0),
    ),
}
