"""The native engine's library, loaded once a process."""

from __future__ import annotations

import ctypes
import logging

from hmrnn.engines.native import build
from hmrnn.engines.native.build import Unavailable

logger = logging.getLogger("hmrnn")
_loaded: ctypes.CDLL | None = None
_failure: str | None = None


def library() -> ctypes.CDLL:
    """The library, built if need be. Raises Unavailable, and the same again if asked again."""
    global _loaded, _failure
    if _loaded is None and _failure is None:
        try:
            _loaded = _find_and_load()
        except Unavailable as error:
            _failure = str(error)
            logger.warning("the native engine is not available: %s", error)
    if _loaded is None:
        raise Unavailable(_failure)
    return _loaded


def _find_and_load() -> ctypes.CDLL:
    path = build.find()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} can't be loaded ({error}); delete it to build it anew") from None
