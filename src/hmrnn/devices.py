"""Devices: which one to use, and what differs from one to the next."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Of what `torch.autocast` has its products computed in on a device now; None if it does not."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)
