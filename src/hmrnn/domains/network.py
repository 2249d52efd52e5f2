"""The recurrent network of a model, by its configuration."""

from __future__ import annotations

from typing import Any

from hmrnn.baselines import HRNN, LSTM, ClockworkRNN
from hmrnn.config import ModelConfig
from hmrnn.hmlstm import HMLSTM
from hmrnn.recurrent import Recurrent


def recurrent(config: ModelConfig, engine: str) -> Recurrent:
    """Builds the recurrent network of a model."""
    size, hidden = config.embedding_size, config.hidden_sizes
    if config.model == "clockwork":
        return ClockworkRNN(size, hidden)
    shared: dict[str, Any] = {
        "layer_norm": config.layer_norm,
        "dropout": config.dropout,
        "weight_drop": config.weight_drop,
        "precision": config.precision,
        "engine": engine,
    }
    if config.model in ("lstm", "hrnn"):
        return (LSTM if config.model == "lstm" else HRNN)(size, hidden, **shared)
    if config.model == "hm-lstm":
        return HMLSTM(
            size,
            hidden,
            boundary=config.boundary,
            copy_boundary=config.copy_boundary,
            boundary_bias=config.boundary_bias,
            slope=config.slope,
            **shared,
        )
    raise ValueError(f"model must be one of hm-lstm, lstm, clockwork, hrnn; got {config.model!r}")
