"""What can be made again, and where it is kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Kept = TypeVar("Kept")


def cache_directory(kind: str) -> Path:
    """Where `kind` is kept: below HMRNN_CACHE, by default ~/.cache/hmrnn."""
    try:
        return Path(os.environ.get("HMRNN_CACHE") or Path.home() / ".cache" / "hmrnn") / kind
    except RuntimeError:  # a user without a home
        raise OSError("there is no home directory to keep it in; set HMRNN_CACHE") from None


def made_once(folder: Path, read: Callable[[Path], Kept | None], make: Callable[[Path], None]) -> Kept:
    """What `read` finds in a folder of the cache. If that is nothing, `make` fills the folder first.

    Made beside itself and renamed: other processes see all of it or nothing.
    """
    found = read(folder)
    if found is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        make(scratch)
        found = read(scratch)  # mapped here: what is mapped stays, whatever becomes of the name
        assert found is not None
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        with suppress(OSError):  # another process made the same meanwhile
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return found
