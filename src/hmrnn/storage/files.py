"""Files that are either whole or not there, and where those are kept that can be made again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

Kept = TypeVar("Kept")


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes beside the file, flushes to disk and renames: a reader, or a crash, sees the old file or the new one."""
    if isinstance(content, str):
        content = content.encode()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with named(path), os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~current_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An error in here that names no file, such as that of a full disk, names this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def check_regular(path: Path) -> None:
    """Refuses what is not there, and what is no file: a pipe would never answer, a device never end."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    if not path.is_file():
        raise ValueError(f"{path}: not a regular file")


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


def sha256_of(path: Path, *before: str) -> str:
    """Of the texts before, and then of the file, read bit by bit."""
    digest = hashlib.sha256("".join(before).encode())
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With a checksum of itself."""
    return {**content, "checksum": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def check_seal(content: dict[str, Any], path: Path) -> None:
    """Takes the checksum out again, if it fits. What never had one is taken as it is."""
    found = content.pop("checksum", None)
    if found is not None and sealed(content)["checksum"] != found:
        raise ValueError(f"{path}: damaged, or changed by hand: its checksum does not fit")


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


def finite(value: Any) -> Any:
    """For JSON, which knows neither NaN nor infinity: null in their place."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
