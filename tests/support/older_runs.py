"""Runs as versions before 0.2 left them, with a training.pt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hmrnn.training.checkpoint import load_progress
from hmrnn.training.older import checksum_of_all


def older_state(run: Path) -> dict[str, Any]:
    """What those versions kept of a run."""
    state = load_progress(run)
    moments = {int(i): kept for i, kept in state["optimizer"].items()}
    return {**state, "optimizer": {"state": moments, "param_groups": [{"lr": 0.1, "params": list(moments)}]}}


def keep_as_training_pt(run: Path, state: dict[str, Any]) -> None:
    """In place of the training state of today, with a checksum that fits."""
    sha256 = checksum_of_all(state, 2**60)
    torch.save({"format_version": 1, **state, "sha256": sha256}, run / "training.pt")
    (run / "training.safetensors").unlink(missing_ok=True)
