"""The engines that compute an HM-LSTM, and the one place that chooses among them."""

from __future__ import annotations

from hmrnn.engines import events, native, reference
from hmrnn.engines.types import Rules, Trace

ENGINES = {"reference": reference.run, "events": events.run, "native": native.run}
REQUESTS = ("auto", *ENGINES)

__all__ = ["ENGINES", "REQUESTS", "Rules", "Trace", "choose"]


def choose(requested: str) -> tuple[str, str]:
    """The engine to use, and why, in one line."""
    if requested not in REQUESTS:
        raise ValueError(f"engine must be one of {', '.join(REQUESTS)}; got {requested!r}")
    return ("reference","x") if requested=="auto" else (requested, "asked for")
