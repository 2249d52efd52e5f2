"""The event-driven engine in C++. Until that arrives, the library is found and loaded, and `events` computes."""

from __future__ import annotations

from hmrnn.engines.events import run
from hmrnn.engines.native.build import Unavailable
from hmrnn.engines.native.library import library

__all__ = ["Clock", "Unavailable", "library", "run"]


class Clock:
    """Seconds that this engine has taken so far, and those of them that its matrix products took."""

    total = 0.0
    products = 0.0
