"""Devices: which one to use, and what differs from one to the next."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hmrnn.errors import check_device


def resolve(name: str, process: int = 0) -> torch.device:
    """The device that `auto`, `cpu`, `cuda`, `cuda:N` or `mps` names on this machine. auto: a GPU if CUDA has one.

    process   the number of this one among those of the machine: each takes a GPU of its own
    """
    check_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{process % max(1, torch.cuda.device_count())}"
    device = torch.device(name)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device mps is not there: torch finds no GPU of that kind on this machine")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise ValueError(f"device {name} is not there: torch finds no CUDA GPU on this machine")
        if device.index >= count:
            raise ValueError(f"device {name} is not there: torch finds {count} on this machine, from cuda:0 on")
    return device


def any_weight(module: nn.Module) -> Tensor:
    """One of a module's weights, for the device and the type of all. The replicas that `DataParallel` makes have
    weights, too, but no `parameters()`."""
    if (weight := first_weight(module)) is None:
        raise ValueError(f"{type(module).__name__} has no weights")
    return weight


def first_weight(module: nn.Module) -> Tensor | None:
    for weight in (module.__dict__.get("_former_parameters") or module._parameters).values():
        if weight is not None:
            return weight
    for part in module._modules.values():
        if part is not None and (found := first_weight(part)) is not None:
            return found
    return None


def description(device: torch.device) -> str:
    """For people, and for the question whether it is still the same kind."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def widest(device: torch.device) -> torch.dtype:
    """The floating-point type with the most digits."""
    return torch.float32 if device.type == "mps" else torch.float64


def fetched(device: torch.device, *values: float | Tensor) -> list[float]:
    """Single numbers of a device, all at once: who asks for one after the other waits for it as often."""
    there = [torch.as_tensor(value, dtype=widest(device), device=device) for value in values]
    return [float(value) for value in torch.stack(there).tolist()]


def on_cpu(value: Any) -> Any:
    """A state with its tensors on the CPU, so that any machine can load it."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: on_cpu(part) for name, part in value.items()}
    return [on_cpu(part) for part in value] if isinstance(value, list) else value


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Of what `torch.autocast` has its products computed in on a device now; None if it does not."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)
