"""Runs that are told to stop."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

STOPPED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}  # why a run ended that was told to


@dataclass
class Stop:
    asked: int | None = None  # by which signal


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask for a stop after the update at hand; a second Ctrl-C stops at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals belong to the main thread
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.asked = number
        print("\nstopping after this update; Ctrl-C again stops at once", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in STOPPED}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
