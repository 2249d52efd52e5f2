"""Settings by name: the best that we know for the paper's sets, what the paper says, and small ones for a laptop.
docs/training.md compares the first two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hmrnn.config import (
    StrokeDataConfig,
    StrokeModelConfig,
    StrokeRunConfig,
    TextDataConfig,
    TextModelConfig,
    TextRunConfig,
    TrainingConfig,
)

NEVER = 10**6  # validations, epochs
# What the presets of full size share, but for the paper's.
OURS = TrainingConfig(batch_size=32, warmup=500, average=0.999, patience=NEVER, cooldown=0.5)


def _ptb() -> TextRunConfig:
    model = TextModelConfig(weight_drop=0.2, embedding_dropout=0.05, dropout=0.1, output_dropout=0.1)
    training = replace(OURS, weight_decay=0.01, epochs=30)
    return TextRunConfig(TextDataConfig(random_start=True), model, training)


def _wikipedia() -> TextRunConfig:
    """One epoch is no time to overfit in: no dropout."""
    model = TextModelConfig(hidden_sizes=(1024, 1024, 1024), output_size=2048)
    training = replace(OURS, learning_rate=0.001, epochs=1, validate_every=0.05)
    return TextRunConfig(TextDataConfig(random_start=True), model, training)


def _paper_training(
    batch_size: int, learning_rate: float, slope_per_epoch: float, slope_limit: float
) -> TrainingConfig:
    """Adam, whose learning rate is divided by 50 when validation stops improving; detectors on their own."""
    return TrainingConfig(
        batch_size=batch_size,
        learning_rate=learning_rate,
        slope_per_epoch=slope_per_epoch,
        slope_limit=slope_limit,
        detector_radius=0.0,
        guided_updates=0,
        epochs=NEVER,
    )


_PAPER_WIKIPEDIA = TextRunConfig(
    model=TextModelConfig(hidden_sizes=(1024, 1024, 1024), output_size=2048),
    training=_paper_training(batch_size=128, learning_rate=0.001, slope_per_epoch=0.0, slope_limit=1.0),
)

TEXT_PRESETS: Mapping[str, TextRunConfig] = {
    "small": TextRunConfig(
        data=TextDataConfig(random_start=True),
        model=TextModelConfig(hidden_sizes=(128, 128, 128), output_size=128),
        training=TrainingConfig(batch_size=32, learning_rate=0.004, epochs=10, patience=4, cooldown=0.5),
    ),
    "ptb": _ptb(),
    "text8": _wikipedia(),
    "enwik8": _wikipedia(),
    "paper-ptb": TextRunConfig(training=_paper_training(64, 0.002, slope_per_epoch=0.04, slope_limit=5.0)),
    "paper-text8": _PAPER_WIKIPEDIA,
    "paper-enwik8": _PAPER_WIKIPEDIA,
}

STROKE_PRESETS: Mapping[str, StrokeRunConfig] = {
    "small": StrokeRunConfig(
        model=StrokeModelConfig(hidden_sizes=(128, 128, 128), output_size=128),
        training=TrainingConfig(
            batch_size=32,
            learning_rate=0.004,
            detector_radius=1.94,
            target_rate=0.1,
            uncertainty_weight=0.0,
            epochs=20,
            patience=4,
            cooldown=0.5,
        ),
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
        training=_paper_training(32, 0.0003, slope_per_epoch=0.004, slope_limit=3.0),
    ),
}
