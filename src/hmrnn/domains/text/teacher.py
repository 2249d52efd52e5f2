"""What detectors learn from the counts of a text."""

from __future__ import annotations

from hmrnn.domains.text.config import TextRunConfig
from hmrnn.domains.text.data.store import TextData
from hmrnn.guidance.branching import Branching


def is_taught(run: TextRunConfig) -> bool:
    """Whether detectors of such a run are guided by what the text tells."""
    model, training = run.model, run.training
    detects = model.model == "hm-lstm" and model.boundary == "step" and len(model.hidden_sizes) > 1
    return detects and training.guides and (training.target_rate == "auto" or training.uncertainty_weight > 0)


def teacher_of(run: TextRunConfig, data: TextData) -> Branching | None:
    """What the training part tells. A `target_rate` that is a number fixes that of the first layer."""
    if not is_taught(run) or len(data.split("train")) < 2:  # so short a text is refused later, with a reason
        return None
    rate = run.training.target_rate
    table = data.symbols.table
    line_end = table.index("\n") if "\n" in table else None
    return Branching.of(data.split("train"), len(data.symbols), line_end, None if rate == "auto" else rate)
