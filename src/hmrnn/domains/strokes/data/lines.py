"""Handwriting by name, IAM-OnDB, built-in lines or anyone's file, as one array of points in three parts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmrnn.domains.strokes.config import StrokeDataConfig
from hmrnn.domains.strokes.data import iam
from hmrnn.domains.strokes.data.points import read_json_lines
from hmrnn.domains.strokes.data.writing import write_lines
from hmrnn.domains.vectors.data import LineData, Lines, joined, shuffled
from hmrnn.errors import SettingError
from hmrnn.printable import NAMED
from hmrnn.storage.cache import (
    MOST_KEPT,
    check_unchanged,
    content_of,
    data_directory,
    made_once,
    own_cache_directory,
    stamp,
)
from hmrnn.storage.files import (
    check_regular,
    check_seal,
    named,
    read_json,
    sealed,
    sha256_of,
    write_atomically,
)

FORMAT_VERSION = 1
SHORTEST = {"iam-ondb": 300}  # points: the paper leaves out what is shorter


@dataclass(frozen=True)
class StrokeData(LineData):
    """Handwriting in three parts."""

    short: int  # lines that were left out since they have too few points
    unlisted: int  # lines that were left out since they are in no list

    def description(self) -> str:
        """What was read, and what was not."""
        parts = ", ".join(f"{len(own):,} {name}" for name, own in self.splits.items())
        left_out = [f"{self.short:,} are too short"] if self.short else []
        left_out += [f"{self.unlisted:,} are in none of the lists"] if self.unlisted else []
        if self.lines.damaged:
            named = [*self.lines.damaged[:NAMED], "…"][: len(self.lines.damaged)]
            left_out.append(f"{len(self.lines.damaged):,} are damaged: {'; '.join(named)}")
        return f"{parts} lines" + (f"; left out: {', '.join(left_out)}" if left_out else "")


def load_strokes(config: StrokeDataConfig, data_dir: Path | None = None) -> StrokeData:
    """The handwriting that `config.data` names."""
    folder = data_directory(data_dir)
    if config.data == "builtin":
        lines = joined((f"line {i + 1}", written.points) for i, written in enumerate(write_lines(config.writing)))
    elif config.data == "iam-ondb":
        path = iam.find(folder)
        folder = path.parent
        lines = iam_lines(path)
    else:
        config.check_there()
        lines = lines_of_file(Path(config.data))
    return in_parts(lines, config, folder)


def in_parts(lines: Lines, config: StrokeDataConfig, folder: Path | None = None) -> StrokeData:
    """Divided, by the lists in a folder if writers are to be told apart."""
    long = lines.lengths >= (config.shortest or SHORTEST.get(config.data, 2))
    if config.division == "by-writer":
        assert folder is not None
        splits = by_list(lines.names, long, {name: iam.forms(folder / file) for name, file in iam.LISTS.items()})
    else:
        splits = shuffled(lines.names, long, config.division_seed)
    empty = [name for name, own in splits.items() if len(own) == 0]
    if empty:
        raise SettingError(
            f"{{data}}: too few lines: {long.sum()} of {len(long)} are long enough, and none is left for "
            f"{' and '.join(empty)}. Give more lines, or a smaller {{0}}",
            "shortest",
            data=config.data,
        )
    taken = sum(map(len, splits.values()))
    return StrokeData(lines, splits, int((~long).sum()), int(long.sum()) - taken)


def lines_of_file(path: Path) -> Lines:
    """The lines of a file of JSON lines, held in memory."""
    check_regular(path)
    with path.open("rb") as file:
        lines = joined((f"line {i + 1}", points) for i, points in enumerate(read_json_lines(file, str(path))))
    if not lines.names:
        raise ValueError(f"{path}: empty: there is nothing to read")
    return lines


# How lines are divided


def by_list(
    names: Sequence[str], usable: npt.NDArray[np.bool_], lists: Mapping[str, set[str]]
) -> dict[str, npt.NDArray[np.int64]]:
    """Lines by the form that they belong to: a01-000u-01 to a01-000u."""
    forms = [name.rpartition("-")[0] for name in names]
    return {
        part: np.array([i for i, form in enumerate(forms) if usable[i] and form in own], dtype=np.int64)
        for part, own in lists.items()
    }


# The cache


def iam_lines(path: Path) -> Lines:
    """All lines of IAM-OnDB, parsed once."""
    everything = sorted(path.rglob("*.xml")) if path.is_dir() else [path]
    names = [str(file.relative_to(path)) for file in everything]
    files = [file for file in everything if file.is_file() and os.access(file, os.R_OK)]  # the others are damaged
    before = [stamp(file) for file in files]
    asked = json.dumps([FORMAT_VERSION, content_of(files), names])
    folder = own_cache_directory("data") / hashlib.sha256(asked.encode()).hexdigest()[:24]

    def make(scratch: Path) -> None:
        lines = joined(iam.read(path))
        if not lines.names:
            raise ValueError(f"{path}: no line of handwriting can be read; the first: {lines.damaged[0]}")
        with named(scratch / "points.bin"):
            lines.points.tofile(scratch / "points.bin")
        meta = {
            "names": lines.names,
            "ends": lines.ends.tolist(),
            "damaged": lines.damaged,
            "fingerprint": lines.fingerprint,
        }
        write_atomically(scratch / "meta.json", json.dumps(sealed(meta)))
        check_unchanged(files, before)

    return made_once(folder, from_cache, make)


def from_cache(folder: Path) -> Lines | None:
    """What was kept, or None if nothing was, or if it is not whole."""
    try:
        meta: dict[str, Any] = read_json(folder / "meta.json", MOST_KEPT)
        check_seal(meta, folder / "meta.json")
        ends = np.array(meta["ends"], dtype=np.int64)
        about = json.dumps([meta["names"], meta["ends"]])
        if sha256_of(folder / "points.bin", about) != meta["fingerprint"]:
            return None
        points = np.memmap(folder / "points.bin", np.float32, "r").reshape(-1, 3)
        names, damaged = (list(map(str, meta[name])) for name in ("names", "damaged"))
        fits = ends[0] == 0 and ends[-1] == len(points) and len(ends) == len(names) + 1
        if not fits or (np.diff(ends) < 0).any() or not np.isfinite(points).all():  # 100 MB of IAM-OnDB
            return None
        return Lines(names, points, ends, damaged, str(meta["fingerprint"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
