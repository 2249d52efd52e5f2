"""A run's directory: what training leaves there, and how it goes on from it."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hmrnn.config import (
    ModelConfig,
    RunConfig,
    StrokeDataConfig,
    StrokeModelConfig,
    StrokeRunConfig,
    TextDataConfig,
    TextModelConfig,
    TextRunConfig,
    TrainingConfig,
    from_json,
)
from hmrnn.files import write_atomically
from hmrnn.pretrained import Pretrained, checksum_of, read_config

FORMAT_VERSION = 1
RESUMABLE = "training.pt"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """No other process trains into this directory meanwhile. The lock ends with the process, however that ends."""
    import fcntl  # not on every system that can import this file

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{directory}: another process is training into this run") from None
        yield


@dataclass(frozen=True)
class SavedRun:
    """What config.json says of a run, beside its model."""

    config: RunConfig
    fingerprint: str  # of the data
    data_dir: Path | None  # where a published set was found


def check_new(directory: Path, data: TextDataConfig | StrokeDataConfig) -> None:
    """Refuses a directory that holds something, or that would become part of the text."""
    if data.is_path and Path(data.data).is_dir() and Path(data.data).resolve() in directory.resolve().parents:
        raise ValueError(f"{directory} lies in {data.data}, whose files are the text: choose another --out")
    if (directory / RESUMABLE).exists():
        raise ValueError(f"{directory} holds a run: --resume {directory} goes on with it, or choose another --out")
    # A run that was killed before its first checkpoint was whole may start again: it has left a config at most.
    if (directory / "best").exists() or ((directory / "config.json").exists() and not read_config(directory)[1]):
        raise ValueError(f"{directory} holds a model already: choose another --out")


def save_run(directory: Path, model: Pretrained, run: SavedRun, progress: dict[str, Any]) -> None:
    """Writes a checkpoint. What is resumed from is one file, written last: it is there, whole, or the one before is."""
    save_model(directory, model, run)
    buffer = io.BytesIO()
    torch.save({"format_version": FORMAT_VERSION, **progress, "sha256": checksum_of_all(progress)}, buffer)
    write_atomically(directory / RESUMABLE, buffer.getvalue())


def save_model(directory: Path, model: Pretrained, run: SavedRun) -> None:
    model.save_pretrained(
        directory,
        data=asdict(run.config.data),
        training=asdict(run.config.training),
        fingerprint=run.fingerprint,
        data_dir=None if run.data_dir is None else str(run.data_dir),
    )


def load_run(directory: Path) -> SavedRun:
    """The settings of a run."""
    model, notes = read_config(directory)
    where = directory / "config.json"
    if not {"data", "training", "fingerprint"} <= set(notes):
        raise ValueError(f"{where}: this is a model, not a training run: it does not say how it was trained")
    model = replace(model, slope=ModelConfig.slope)  # the schedule's, not a setting
    training = from_json(TrainingConfig, notes["training"], f"{where}: training")
    run: RunConfig
    if isinstance(model, StrokeModelConfig):
        run = StrokeRunConfig(from_json(StrokeDataConfig, notes["data"], f"{where}: data"), model, training)
    else:
        assert isinstance(model, TextModelConfig)
        run = TextRunConfig(from_json(TextDataConfig, notes["data"], f"{where}: data"), model, training)
    data_dir = notes.get("data_dir")
    return SavedRun(run, str(notes["fingerprint"]), None if data_dir is None else Path(str(data_dir)))


def load_progress(directory: Path) -> dict[str, Any]:
    """What `save_run` was given. Nothing in the file is executed."""
    path = directory / RESUMABLE
    if not path.exists():
        raise ValueError(f"{directory}: there is no {RESUMABLE}, so there is nothing to resume; start a run with --out")
    try:
        progress = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a flipped bit makes torch raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path}: damaged, or not written by hmrnn: {reason}") from None
    if not isinstance(progress, dict) or progress.pop("format_version", None) != FORMAT_VERSION:
        raise ValueError(f"{path}: not a checkpoint of format_version {FORMAT_VERSION}")
    expected = progress.pop("sha256", None)
    if expected is not None and checksum_of_all(progress) != expected:
        raise ValueError(f"{path}: damaged: its checksum does not fit")
    if not isinstance(progress.get("update"), int) or not isinstance(progress.get("machine"), dict):
        raise ValueError(f"{path}: damaged: it does not say how far it is, and where it was made")
    return progress


def checksum_of_all(content: Any) -> str:
    """Of tensors, numbers and texts in dictionaries and lists. torch.load itself does not notice a flipped bit."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(checksum_of({"": value}).encode())
        elif isinstance(value, dict):
            for name, own in value.items():
                digest.update(repr(name).encode())
                add(own)
        elif isinstance(value, (list, tuple)):
            digest.update(str(len(value)).encode())
            for own in value:
                add(own)
        else:
            digest.update(repr(value).encode())

    add(content)
    return digest.hexdigest()


def remove_leftovers(directory: Path) -> None:
    """Files that a killed process was just writing."""
    for folder in (directory, directory / "best"):
        for path in folder.glob(".*.*"):
            if path.name.split(".")[1] in ("training", "model", "config", "symbols", "metrics"):
                path.unlink(missing_ok=True)


def forget_after(path: Path, update: int) -> None:
    """Drops what metrics.jsonl says of updates after this one: they will be made again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a line that a killed process was just writing
        if isinstance(record, dict) and record.get("update", math.inf) <= update:
            kept.append(line + "\n")
    write_atomically(path, "".join(kept))
