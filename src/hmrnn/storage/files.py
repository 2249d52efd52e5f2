"""Files that are either whole or not there, in folders that may come from a stranger."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

PARTS = ("best", "tensorboard")  # folders that belong to a run
BY_DESCRIPTOR = os.open in os.supports_dir_fd  # not on Windows
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # for the other end of a pipe
LINK_FOUND = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)  # what systems say where no link may be
BINARY = getattr(os, "O_BINARY", 0)
MOST_JSON = 1 << 24  # bytes: a table of a million symbols has fewer, and in memory it may become twenty times as large


# A run may come from a stranger, and nothing in it may lead out of it. So its files are opened relative to the
# descriptor of their folder, and no link is followed. The folder itself, which the user names, may be a link, but not
# the folders in it.


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """The descriptor of a folder, where the system can name files by it."""
    if not BY_DESCRIPTOR:
        if folder.name in PARTS and folder.is_symlink():
            raise link_refused(folder)
        yield None
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | (NO_LINK if folder.name in PARTS else 0))
    except OSError as error:
        if error.errno not in LINK_FOUND:
            raise
        raise link_refused(folder) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _named_in_full(path: Path, *names: str) -> Iterator[None]:
    """An error in here that names no file, such as that of a full disk, or one of these relative names, names this."""
    try:
        yield
    except OSError as error:
        if error.errno in LINK_FOUND and error.filename in names:
            raise link_refused(path) from None
        if error.errno is not None and error.filename in (None, *names):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def link_refused(path: Path) -> Exception:
    if path.is_symlink():
        return ValueError(f"{path}: this is a link, and nothing in a run may be one")
    return no_folder(path)


def no_folder(path: Path) -> NotADirectoryError:
    return NotADirectoryError(f"{path}: this is a file, and must be a folder")


def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a file that no link leads to. What is no file is refused: a pipe would never answer, a device
    never end."""
    with _opened(path.parent) as folder, _named_in_full(path, path.name):
        name = path.name if folder is not None else str(path)
        if folder is None and path.is_symlink():
            raise link_refused(path)
        opened = os.open(name, flags | NO_LINK | NO_WAITING | BINARY, 0o666, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ValueError(f"{path}: not a regular file")
    return opened


def read_bytes(path: Path, most: int) -> bytes:
    """All of a file, unless it is larger than it can be: a file with holes costs its maker nothing."""
    with named(path), os.fdopen(open_file(path), "rb") as file:
        return file.read(check_size(path, file.fileno(), most))


def check_size(path: Path, opened: int, most: int) -> int:
    """Bytes of an open file. Too many are refused."""
    size = os.fstat(opened).st_size
    if size > most:
        raise ValueError(f"{path}: too large: it has {size:,} bytes, and can have {most:,} at most")
    return size


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    content = read_bytes(path, most)
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: this is not JSON that can be read: {error}") from None


def lines_of(path: Path, longest: int, most: int = 1 << 30) -> Iterator[bytes]:
    """A file line by line, each with its end. One that is too long comes in pieces."""
    with named(path), os.fdopen(open_file(path), "rb") as file:
        check_size(path, file.fileno(), most)
        yield from iter(lambda: file.readline(longest), b"")


def appending(path: Path) -> IO[str]:
    """A file to write on, made if there is none."""
    opened = os.fdopen(open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8")
    if os.fstat(opened.fileno()).st_nlink > 1:
        opened.close()
        raise ValueError(f"{path}: another name leads to this file, and what it holds would change, too")
    return opened


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file that is written beside itself, flushed to disk and renamed: a reader, or a crash, sees the old file or the
    new one."""
    beside = f".{path.name}.{secrets.token_hex(4)}"
    with _opened(path.parent) as folder, _named_in_full(path, path.name, beside):
        name, temporary = (path.name, beside) if folder is not None else (str(path), str(path.parent / beside))
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | BINARY, 0o666, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes a file that is whole or as it was before."""
    with writing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing_out(path: Path) -> Iterator[IO[bytes]]:
    """The same of a file that a user names: links lead where they lead, and what is open already, a device or a pipe,
    as of `>(gzip)`, is written to. Renaming would put a file in its place, also in that of /dev/null."""
    if (opened := descriptor_of(path)) is not None:
        with named(path), os.fdopen(os.dup(opened), "wb") as file:
            yield file
    elif path.exists() and not path.is_file() and not path.is_dir():
        with named(path), path.open("wb") as file:
            yield file
    else:
        if path.is_dir():
            raise IsADirectoryError(f"{path}: this is a folder, and must be a file")
        with writing(Path(os.path.realpath(path))) as file:
            yield file


def descriptor_of(path: Path) -> int | None:
    """What a path such as /dev/stdout or /dev/fd/3 stands for, if it does. Whoever opened it said whether to append,
    which opening it once more by its name would forget."""
    descriptors = os.path.realpath("/dev/fd")
    while path.exists():  # so its links have an end
        folder = os.path.realpath(path.parent)
        if folder == descriptors and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            break
        path = Path(folder, os.readlink(path))
    return None


def remove(path: Path) -> None:
    """Removes a file if it is there; of a link, itself."""
    with suppress(FileNotFoundError), _opened(path.parent) as folder, _named_in_full(path, path.name):
        os.unlink(path.name if folder is not None else path, dir_fd=folder)


def names_in(folder: Path) -> list[str]:
    """What lies in a folder; nothing if there is none."""
    with suppress(FileNotFoundError), _opened(folder) as opened:
        return os.listdir(folder if opened is None else opened)
    return []


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """A folder and those that it lies in, as far as they are not there."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise no_folder(next(place for place in (folder, *folder.parents) if os.path.lexists(place))) from None


def make_folder(folder: Path) -> None:
    """One of a run. No link is taken for it."""
    if not os.path.lexists(folder):
        make_folders(folder)
    names_in(folder)


def named(path: Path) -> AbstractContextManager[None]:
    """An error in here that names no file, such as that of a full disk, names this one."""
    return _named_in_full(path)


def check_regular(path: Path) -> None:
    """Refuses what is not there, and what is no file: a pipe would never answer, a device never end."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    if not path.is_file() or not has_its_size(path):
        raise ValueError(f"{path}: not a regular file")


def has_its_size(path: Path) -> bool:
    """Files below /proc say that they are empty, and are not. Some would never answer either."""
    if path.stat().st_size > 0:
        return True
    opened = os.open(path, os.O_RDONLY | NO_WAITING | BINARY)
    try:
        return os.read(opened, 1) == b""
    except OSError:
        return False
    finally:
        os.close(opened)


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


def finite(value: Any) -> Any:
    """For JSON, which knows neither NaN nor infinity: null in their place."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
