"""IAM-OnDB, the handwriting of the paper's section 4.2, as its publisher ships it."""

from __future__ import annotations

import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tqdm import tqdm

from hmrnn.domains.strokes.data.points import Points, from_strokes
from hmrnn.errors import SettingError
from hmrnn.storage.files import sha256_of

ARCHIVE, FOLDER = "lineStrokes-all.tar.gz", "lineStrokes"
SHA256 = "70a832409b236f50b76139e542aad3523d23c9b936deb7e5c5f72a2e2ea8734d"
SOURCE = "https://fki.tic.heia-fr.ch/databases/iam-on-line-handwriting-database (data/lineStrokes-all.tar.gz)"
LISTS = {"train": "trainset.txt", "valid": "testset_v.txt", "test": "testset_f.txt"}
"""The task t1, in which no writer is in two parts. testset_t.txt, a second validation set, is left out."""
LINES = 12_195
LARGEST_FILE = 1 << 24  # bytes: the largest line published has a hundredth of it


def find(data_dir: Path) -> Path:
    """The archive, or else the unpacked folder."""
    places = (data_dir, data_dir / "iam_ondb", data_dir / "iam-ondb")
    for place in places:
        if (place / ARCHIVE).is_file():
            return place / ARCHIVE
    for place in places:
        if (place / FOLDER).is_dir():
            return place / FOLDER
    raise SettingError(
        f"iam-ondb: there is no {ARCHIVE} and no folder {FOLDER} in {{folder}}. Get it from {SOURCE} (after "
        "registering there) and put it there, or name its folder with {0} or HMRNN_DATA",
        "data_dir",
        folder=data_dir,
    )


def read(path: Path) -> Iterator[tuple[str, Points | str]]:
    """The name and the points of each line, such as a01-000u-01; or what is wrong with its file."""
    files: Iterator[tuple[str, bytes | OSError]] = _in_folder(path) if path.is_dir() else _in_archive(path)
    bar = tqdm(files, "reading lines", LINES, leave=False, unit="line", disable=not sys.stderr.isatty())
    for file, content in bar:
        name = Path(file).stem
        try:
            if isinstance(content, OSError):
                raise content
            yield name, points_of(content)
        except (ElementTree.ParseError, ValueError, LookupError, OSError) as error:  # LookupError: no such encoding
            yield name, f"{file}: {error}"


def points_of(content: bytes) -> Points:
    """The points of a line's XML."""
    if len(content) > LARGEST_FILE:
        raise ValueError(f"it has {len(content):,} bytes, more than a line of handwriting can have")
    root = ElementTree.fromstring(content)
    return from_strokes(
        [[coordinate(point, "x"), coordinate(point, "y")] for point in stroke.iter("Point")]
        for stroke in root.iter("Stroke")
    )


def coordinate(point: ElementTree.Element, name: str) -> float:
    value = point.get(name)
    if value is None:
        raise ValueError(f"a point has no {name}")
    return float(value)


def _in_folder(folder: Path) -> Iterator[tuple[str, bytes | OSError]]:
    files = sorted(folder.rglob("*.xml"))
    if not files:
        raise ValueError(f"{folder}: there is no line of handwriting (*.xml) below it")
    for file in files:
        try:
            with file.open("rb") as stream:
                content: bytes | OSError = stream.read(LARGEST_FILE + 1)
        except OSError as error:
            content = error
        yield str(file.relative_to(folder.parent)), content


def _in_archive(path: Path) -> Iterator[tuple[str, bytes | OSError]]:
    """The XML files, read one after the other: nothing is unpacked to disk."""
    check(path)
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".xml") else None
                if file is not None:
                    yield member.name, file.read(LARGEST_FILE + 1)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged: {error}; get it again") from None


def check(path: Path) -> None:
    found = sha256_of(path)
    if found != SHA256:
        raise ValueError(
            f"{path}: this is not the published file: its sha256 is {found}, not {SHA256}; get it again. "
            f"If you trust it, unpack it beside itself and move it away: the folder {FOLDER} is read as it is"
        )


def forms(path: Path) -> set[str]:
    """The forms of a list, such as a01-000u."""
    if not path.is_file():
        raise ValueError(f"iam-ondb: there is no {path}: the division by writer needs {', '.join(LISTS.values())}")
    return set(path.read_text(encoding="ascii", errors="replace").split())
