"""Runs from strangers: a whole run, in which a seed decides what is absent, cut, linked or something else."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmrnn.storage.files import sealed
from hmrnn.storage.tensors import read_tensors, write_tensors
from hmrnn.training.checkpoint import load_progress, write_state
from support import older_runs
from support.faults.runs import flipped, truncated

TABLES = ("symbols.json", "columns.json")  # config.json has their checksums
FILES = (
    "config.json",
    *TABLES,
    "model.safetensors",
    "training.safetensors",
    "teacher.safetensors",
    "metrics.jsonl",
    ".lock",
)
INNER = ("best/config.json", *(f"best/{name}" for name in TABLES), "best/model.safetensors")
FOLDERS = ("best", "tensorboard")
HUGE = 6 << 30
ODD = [None, True, -1, 0.5, 10**30, 2**63, 1e300, math.nan, "x", "", "../x", "\0", [], [1], [None], [[1, 2]], {}]
ODD += [{"a": 1}, {"tensor": "model"}, "\x1b[31m", "\udcff", "[" * 1000]


def paths_in(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything in it."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(found for key, value in inner for found in paths_in(value, (*path, key)))]


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = dict(content) if isinstance(content, dict) else list(content)
    copied[path[0]] = changed(content[path[0]], path[1:], value)
    return copied


def with_odd_field(content: Any, chance: random.Random) -> Any:
    """One field is something else, is gone, or is one more."""
    path = chance.choice(paths_in(content))
    if path and isinstance(content, dict) and chance.random() < 0.2:
        return {key: value for key, value in content.items() if key != path[0]}
    return changed(content, path, chance.choice(ODD))


class Stranger:
    """Spoils copies of a run. `other` is a run of another kind, `outside` a folder that belongs to the user."""

    def __init__(self, run: Path, other: Path, outside: Path, seed: int) -> None:
        self.run, self.other, self.outside, self.chance = run, other, outside, random.Random(seed)

    def spoil(self) -> list[str]:
        """Does one to three things to it, and says which."""
        return [self.spoil_part() for _ in range(self.chance.randint(1, 3))]

    def spoil_part(self) -> str:
        part = self.chance.choice([*FILES, *INNER, *FOLDERS])
        kinds: dict[str, Callable[[Path, str], object]] = {
            "absent": lambda path, _: None,
            "empty": lambda path, _: path.write_bytes(b""),
            "huge": lambda path, _: (path.touch(), os.truncate(path, HUGE)),
            "linked": lambda path, part: path.symlink_to(self.outside / part),
            "linked to nothing": lambda path, _: path.symlink_to(self.outside / "nothing"),
            "linked to a folder": lambda path, _: path.symlink_to(self.outside),
            "a pipe": lambda path, _: os.mkfifo(path),
            "a folder": lambda path, _: path.mkdir(),
            "of another run": self.of_another_run,
        }
        spoilt: dict[str, Callable[[Path, bytes], object]] = {
            "cut": lambda path, whole: path.write_bytes(truncated(whole, self.chance)),
            "flipped": lambda path, whole: path.write_bytes(flipped(whole, self.chance)),
            "longer": lambda path, whole: path.write_bytes(whole + self.chance.randbytes(100)),
            "huge at its end": lambda path, whole: (path.write_bytes(whole), os.truncate(path, HUGE)),
            "of another version": self.of_another_version,
            "with an odd field": self.with_odd_field,
            "as it was kept before": self.as_before,
        }
        path = self.run / part
        can_be_spoilt = path.is_file() and not path.is_symlink() and 0 < path.stat().st_size < HUGE
        how = self.chance.choice([*kinds, *(list(spoilt) * 2 if can_be_spoilt else [])])
        if how in spoilt:
            spoilt[how](path, path.read_bytes())
        elif path.parent.is_dir() and not path.parent.is_symlink():
            remove(path)
            kinds[how](path, part)
        return f"{part}: {how}"

    def of_another_run(self, path: Path, part: str) -> None:
        found = self.other / part
        if found.is_dir():
            shutil.copytree(found, path)
        elif found.exists():
            shutil.copy(found, path)

    def of_another_version(self, path: Path, whole: bytes) -> None:
        version = self.chance.choice([0, 2, 99, "1", None])
        self.rewrite(path, lambda content: {**content, "format_version": version})

    def with_odd_field(self, path: Path, whole: bytes) -> None:
        self.rewrite(path, lambda content: with_odd_field(content, self.chance))

    def as_before(self, path: Path, whole: bytes) -> None:
        """With a training.pt, which is spoilt, too."""
        if (self.run / "training.safetensors") == path and readable(self.run):
            older_runs.keep_as_training_pt(self.run, older_runs.older_state(self.run))
            older = self.run / "training.pt"
            how = self.chance.choice([flipped, truncated, lambda whole, _: whole])
            older.write_bytes(how(older.read_bytes(), self.chance))

    def rewrite(self, path: Path, change: Callable[[Any], Any]) -> None:
        """Changes what JSON a file has. Checksums fit, as an attacker would have them."""
        if path.name == "training.safetensors" and readable(self.run):
            state = change({"format_version": 1, **load_progress(self.run)})
            if isinstance(state, dict):
                write_state(path, state)
        elif path.name == "teacher.safetensors":
            with suppress(ValueError):  # it is spoilt already
                write_tensors(path, self.with_odd_numbers(read_tensors(path, HUGE)[0]))
        elif path.name == "metrics.jsonl":
            lines = path.read_text(errors="replace").splitlines()
            number = self.chance.randrange(len(lines))
            content = loaded(lines[number])
            lines[number] = json.dumps(change(content) if isinstance(content, dict) else content)
            path.write_text("\n".join(lines) + "\n")
        elif path.suffix == ".json":
            content = loaded(path.read_text(errors="replace"))
            if isinstance(content, dict):
                content.pop("checksum", None)
                content = change(content)
                sealable = path.name == "config.json" and isinstance(content, dict)
                path.write_text(json.dumps(sealed(content) if sealable else content))
                self.reseal(path)

    def with_odd_numbers(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """One tensor has another number, type, shape or name, or is one of many more."""
        name = self.chance.choice(sorted(tensors))
        own, place = tensors[name].clone(), self.chance.randrange(max(1, tensors[name].numel()))
        if own.numel():
            reals = [math.nan, math.inf, torch.finfo(own.dtype).max] if own.is_floating_point() else []
            own.view(-1)[place] = self.chance.choice([0, -1, 1, 7, *reals])
        odd = self.chance.choice([own, own, own, own[:0], own.flip(0), own.unsqueeze(0), own.bfloat16(), own.double()])
        more = {f"{which}{i}": own[:0] for which in ("keys", "shares") for i in range(6, 3000)}
        return {**tensors, name: odd, **(more if self.chance.random() < 0.2 else {})}

    def reseal(self, path: Path) -> None:
        """config.json has the checksum of the table beside it."""
        config = loaded((path.parent / "config.json").read_text(errors="replace")) if in_place(path.parent) else None
        if path.name in TABLES and isinstance(config, dict):
            config.pop("checksum", None)
            config["files"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
            (path.parent / "config.json").write_text(json.dumps(sealed(config)))


def in_place(folder: Path) -> bool:
    path = folder / "config.json"
    return path.is_file() and not path.is_symlink() and path.stat().st_size < HUGE


def readable(run: Path) -> bool:
    try:
        return bool(load_progress(run, 1 << 30))
    except (ValueError, OSError):
        return False


def loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
