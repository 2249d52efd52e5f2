"""Settings by name: the paper's sizes and rates for its sets, and small ones for a laptop."""

from __future__ import annotations

from collections.abc import Mapping

from hmrnn.config import StrokeModelConfig, StrokeRunConfig, TextModelConfig, TextRunConfig, TrainingConfig


def _wikipedia() -> TextRunConfig:
    model = TextModelConfig(hidden_sizes=(1024, 1024, 1024), output_size=2048)
    training = TrainingConfig(batch_size=128, learning_rate=0.001, epochs=20, validate_every=0.25)
    return TextRunConfig(model=model, training=training)


TEXT_PRESETS: Mapping[str, TextRunConfig] = {
    "small": TextRunConfig(
        model=TextModelConfig(hidden_sizes=(128, 128, 128), output_size=128),
        training=TrainingConfig(batch_size=32, learning_rate=0.004, epochs=10, patience=4, cooldown=0.5),
    ),
    "ptb": TextRunConfig(),
    "text8": _wikipedia(),
    "enwik8": _wikipedia(),
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
        training=TrainingConfig(
            batch_size=32,
            learning_rate=0.0003,
            slope_per_epoch=0.004,
            slope_limit=3.0,
            detector_radius=0.5,
            target_rate=0.25,
            uncertainty_weight=0.0,
            guided_updates=20_000,
            validate_every=0.5,
            patience=3,
        ),
    ),
}
