"""What can be made again, and where it is kept.

Nothing is taken from a cache that someone else may have written to: a library from there would be run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hmrnn.storage.files import check_regular, check_seal, make_folders, read_json, sealed, sha256_of, write_atomically

Kept = TypeVar("Kept")
MOST_KEPT = 1 << 28  # bytes of JSON in a file of the cache
SETTLED = 2.0  # seconds after which a changed file has another time of change, on any file system


def data_directory(data_dir: Path | None) -> Path:
    """Where published sets lie: the folder that is given, or HMRNN_DATA, or ~/.cache/hmrnn."""
    return data_dir or Path(os.environ.get("HMRNN_DATA") or "~/.cache/hmrnn").expanduser()


def cache_directory(kind: str) -> Path:
    """Where `kind` is kept: below HMRNN_CACHE, by default ~/.cache/hmrnn."""
    try:
        return Path(os.environ.get("HMRNN_CACHE") or Path.home() / ".cache" / "hmrnn") / kind
    except RuntimeError:  # a user without a home
        raise OSError("there is no home directory to keep it in; set HMRNN_CACHE") from None


def own_cache_directory(kind: str) -> Path:
    """The same, made if need be, and refused if others could put something there."""
    folder = cache_directory(kind)
    try:
        make_folders(folder, mode=0o700)
    except NotADirectoryError as error:
        raise NotADirectoryError(f"{error}; set HMRNN_CACHE to a folder of yours") from None
    check_own(folder)
    return folder


def check_own(folder: Path) -> None:
    """Refuses a folder of the cache, if it is there, into which others could put something."""
    for place in (folder.parent, folder) if folder.exists() else ():
        status = place.stat()
        if not is_own(status):
            raise PermissionError(f"{place}: this cache belongs to another user; set HMRNN_CACHE to a folder of yours")
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{place}: anyone may write to this cache: chmod go-w it, or set HMRNN_CACHE")
        if place == folder and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):  # as a umask of 002 leaves it
            with suppress(OSError):
                place.chmod(stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def is_own(status: os.stat_result) -> bool:
    """This user's, or root's, who can do anything anyway."""
    return not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0)


def can_be_trusted(path: Path) -> bool:
    """Whether a file or a folder in the cache is there, and nobody else can have changed it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return is_own(status) and not stat.S_ISLNK(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def kept(folder: Path, read: Callable[[Path], Kept | None]) -> Kept | None:
    """What `read` finds in a folder of the cache, if that can be trusted."""
    within = folder.iterdir() if can_be_trusted(folder) and folder.is_dir() else ()
    return read(folder) if all(map(can_be_trusted, (folder, *within))) else None


def made_once(folder: Path, read: Callable[[Path], Kept | None], make: Callable[[Path], None]) -> Kept:
    """What `read` finds in a folder of the cache. If that is nothing, `make` fills the folder first.

    Made beside itself and renamed: other processes see all of it or nothing.
    """
    found = kept(folder, read)
    if found is not None:
        return found
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        make(scratch)
        for path in scratch.iterdir():
            path.chmod(0o600)
        found = read(scratch)  # mapped here: what is mapped stays, whatever becomes of the name
        assert found is not None
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        with suppress(OSError):  # another process made the same meanwhile
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return found


# Which content files have


def stamp(path: Path) -> list[Any]:
    """What changes with a file's content. A copy that keeps size and time of the original has another place on disk,
    and the time of the last change to the entry there can't be set."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]


def content_of(files: Sequence[Path]) -> str:
    """The same for the same content of files. They are read only if something about them has changed."""
    stamps = [stamp(path) for path in files]
    name = hashlib.sha256(json.dumps([own[0] for own in stamps]).encode()).hexdigest()[:24]
    known = own_cache_directory("data") / f"{name}.json"
    if can_be_trusted(known):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            noted = read_json(known, MOST_KEPT)
            check_seal(noted, known)
            if noted["stamps"] == stamps:
                return str(noted["content"])
    for path in files:
        check_regular(path)  # a device has no end
    content = hashlib.sha256("".join(sha256_of(path) for path in files).encode()).hexdigest()
    check_unchanged(files, stamps)
    if time.time() - max((own[4] for own in stamps), default=0) / 1e9 > SETTLED:  # else the next change may not be seen
        with suppress(OSError):  # where there is no room, it is read again
            write_atomically(known, json.dumps(sealed({"stamps": stamps, "content": content})))
            known.chmod(0o600)
    return content


def check_unchanged(files: Sequence[Path], stamps: Sequence[list[Any]]) -> None:
    for path, before in zip(files, stamps, strict=True):
        if stamp(path) != before:
            raise ValueError(f"{path}: it was changed while it was read")
