"""Hierarchical multiscale recurrent networks: layers that learn where segments end."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmrnn.baselines import (
        HRNN,
        LSTM,
        ClockworkRNN,
        text_boundaries,
    )
    from hmrnn.boundary import HANDWRITING_SLOPE, PTB_SLOPE, SlopeSchedule
    from hmrnn.collapse import CollapseWarning
    from hmrnn.domains.series.config import SeriesModelConfig
    from hmrnn.domains.series.model import SeriesModel, SeriesModelOutput
    from hmrnn.domains.strokes.config import StrokeModelConfig
    from hmrnn.domains.strokes.mixture import MixtureHead, PointDensity
    from hmrnn.domains.strokes.model import StrokeModel, StrokeModelOutput
    from hmrnn.domains.text.config import TextModelConfig
    from hmrnn.domains.text.data.symbols import Symbols
    from hmrnn.domains.text.model import TextModel, TextModelOutput
    from hmrnn.guidance.branching import Branching
    from hmrnn.guidance.guide import Guide
    from hmrnn.hmlstm import HMLSTM
    from hmrnn.output import OutputEmbedding, SoftmaxHead
    from hmrnn.sequence import (
        COPY,
        FLUSH,
        UPDATE,
        HMLSTMOutput,
        HMLSTMState,
        Operation,
        PackedOutput,
        Piecewise,
    )
    from hmrnn.training.run import train_run

__version__ = "0.1.0"

__all__ = [
    "COPY",
    "FLUSH",
    "HANDWRITING_SLOPE",
    "HMLSTM",
    "HRNN",
    "LSTM",
    "PTB_SLOPE",
    "UPDATE",
    "Branching",
    "ClockworkRNN",
    "CollapseWarning",
    "Guide",
    "HMLSTMOutput",
    "HMLSTMState",
    "MixtureHead",
    "Operation",
    "OutputEmbedding",
    "PackedOutput",
    "Piecewise",
    "PointDensity",
    "SeriesModel",
    "SeriesModelConfig",
    "SeriesModelOutput",
    "SlopeSchedule",
    "SoftmaxHead",
    "StrokeModel",
    "StrokeModelConfig",
    "StrokeModelOutput",
    "Symbols",
    "TextModel",
    "TextModelConfig",
    "TextModelOutput",
    "text_boundaries",
    "train_run",
]

_HOMES = {
    "hmrnn.baselines": ("HRNN", "LSTM", "ClockworkRNN", "text_boundaries"),
    "hmrnn.boundary": ("HANDWRITING_SLOPE", "PTB_SLOPE", "SlopeSchedule"),
    "hmrnn.collapse": ("CollapseWarning",),
    "hmrnn.domains.text.data.symbols": ("Symbols",),
    "hmrnn.guidance.branching": ("Branching",),
    "hmrnn.guidance.guide": ("Guide",),
    "hmrnn.hmlstm": ("HMLSTM",),
    "hmrnn.domains.series.config": ("SeriesModelConfig",),
    "hmrnn.domains.series.model": ("SeriesModel", "SeriesModelOutput"),
    "hmrnn.domains.strokes.config": ("StrokeModelConfig",),
    "hmrnn.domains.text.config": ("TextModelConfig",),
    "hmrnn.domains.strokes.mixture": ("MixtureHead", "PointDensity"),
    "hmrnn.domains.strokes.model": ("StrokeModel", "StrokeModelOutput"),
    "hmrnn.domains.text.model": ("TextModel", "TextModelOutput"),
    "hmrnn.output": ("OutputEmbedding", "SoftmaxHead"),
    "hmrnn.sequence": (
        "COPY",
        "FLUSH",
        "UPDATE",
        "HMLSTMOutput",
        "HMLSTMState",
        "Operation",
        "PackedOutput",
        "Piecewise",
    ),
    "hmrnn.training.run": ("train_run",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Names are looked up when they are first used: `hmrnn --help` must not wait for torch.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
