"""Files that are either whole or not there, and where those are kept that can be made again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes beside the file, flushes to disk and renames: a reader, or a crash, sees the old file or the new one."""
    if isinstance(content, str):
        content = content.encode()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~current_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def cache_directory(kind: str) -> Path:
    """Where `kind` is kept: below HMRNN_CACHE, by default ~/.cache/hmrnn."""
    try:
        return Path(os.environ.get("HMRNN_CACHE") or Path.home() / ".cache" / "hmrnn") / kind
    except RuntimeError:  # a user without a home
        raise OSError("there is no home directory to keep it in; set HMRNN_CACHE") from None


def finite(value: Any) -> Any:
    """For JSON, which knows neither NaN nor infinity: null in their place."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
