"""The engines that compute an HM-LSTM, and the one place that chooses among them."""

from __future__ import annotations

import torch

from hmrnn.engines import events, native, reference, triton
from hmrnn.engines.types import Engine, Rules, Trace

__all__ = ["ASKED_FOR", "ENGINES", "REQUESTS", "Engine", "Rules", "Trace", "check_request", "choose"]

# In the order in which they are tried: one that can't do a thing leaves it to the next.
ENGINES: dict[str, Engine] = {module.ENGINE.name: module.ENGINE for module in (triton, native, events, reference)}
REQUESTS = ("auto", *ENGINES)
ASKED_FOR = "asked for"


def check_request(requested: str) -> None:
    if requested not in REQUESTS:
        raise ValueError(f"engine must be one of {', '.join(REQUESTS)}; got {requested!r}")


def choose(requested: str, boundary: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """The engine to use, and why, in one line: the requested one, or the first after it that can do it.

    One that was requested for a device which it never runs on is a mistake.
    """
    engines = list(ENGINES.values())
    if requested != "auto" and (elsewhere := ENGINES[requested].elsewhere(device)):
        raise ValueError(f"{elsewhere}: move them, or use engine='auto'")
    tried = [e for e in engines if not e.opt_in] if requested == "auto" else engines[list(ENGINES).index(requested) :]
    reason = ""
    for engine in tried:
        obstacle = engine.obstacle(boundary, device, dtype)
        if not obstacle:
            taken = ASKED_FOR if requested != "auto" else engine.fastest
            return engine.name, (reason or taken) + others(requested, engine, boundary, device, dtype)
        reason = reason or obstacle
    raise ValueError(f"no engine can compute this: {reason}")


def others(requested: str, taken: Engine, boundary: str, device: torch.device, dtype: torch.dtype) -> str:
    """Where `auto` found no fast engine: those that could be asked for."""
    if requested != "auto" or taken.fastest:
        return ""
    fitting = [e for e in ENGINES.values() if e.opt_in and not e.unsupported(boundary, device, dtype)]
    return "".join(f"; engine={e.name!r} can be asked for, {e.opt_in}" for e in fitting)
