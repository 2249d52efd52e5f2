"""The engines that compute an HM-LSTM, and the one place that chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hmrnn.engines import events, native, reference
from hmrnn.engines.types import Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call

__all__ = ["ENGINES", "REQUESTS", "Rules", "Trace", "check_request", "choose"]

# The fastest first. One that can't do a thing leaves it to the next.
ENGINES: dict[str, Callable[[Sequence[LayerWeights], Call, Rules], Trace]] = {
    "native": native.run,
    "events": events.run,
    "reference": reference.run,
}
REQUESTS = ("auto", *ENGINES)


def check_request(requested: str) -> None:
    if requested not in REQUESTS:
        raise ValueError(f"engine must be one of {', '.join(REQUESTS)}; got {requested!r}")


def choose(requested: str, boundary: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """The engine to use, and why, in one line."""
    if requested == "reference":
        return "reference", "asked for"
    if boundary == "soft":
        return "reference", "soft boundaries leave no step without an event"
    if device.type != "cpu":
        return "reference", f"the event-driven engines run on the CPU, and the weights are on {device.type}"
    if dtype not in (torch.float32, torch.float64):
        return "reference", f"the event-driven engines compute in float32 and float64, and the weights are {dtype}"
    if torch.compiler.is_compiling():
        return "reference", "torch.compile traces the dense equations"
    if requested == "events":
        return "events", "asked for"
    try:
        native.library()
    except native.Unavailable as error:
        return "events", f"the native engine is not available: {error}"
    return "native", "asked for" if requested == "native" else "the fastest on a CPU"
