"""A run's directory: what training leaves there, and how it goes on from it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickletools
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hmrnn.config import ModelConfig, RunConfig, TrainingConfig
from hmrnn.domains.strokes.config import StrokeDataConfig, StrokeModelConfig, StrokeRunConfig
from hmrnn.domains.text.config import TextDataConfig, TextModelConfig, TextRunConfig
from hmrnn.guidance.branching import Branching
from hmrnn.storage.config_json import from_json
from hmrnn.storage.files import check_regular, write_atomically
from hmrnn.storage.pretrained import Pretrained, checksum_of, read_config

FORMAT_VERSION = 1
RESUMABLE = "training.pt"
# What a checkpoint is made of besides numbers, texts, lists and dictionaries.
MADE_OF = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2"}
MADE_OF |= {f"torch {kind}Storage" for kind in ("Half", "BFloat16", "Float", "Double", "Byte", "Int", "Long", "Bool")}


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """No other process trains into this directory meanwhile. The lock ends with the process, however that ends."""
    import fcntl  # not on every system that can import this file

    directory.mkdir(parents=True, exist_ok=True)
    # A run may come from a stranger: no link is followed, no pipe waited for, nothing cut off.
    handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    with os.fdopen(handle, "r+b", buffering=0) as file:
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
    teacher: Branching | None = None  # of detectors: not in config.json, but in a file of its own


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


def load_run(directory: Path, *, files: bool = True) -> SavedRun:
    """The settings of a run. Without `files`, those of its model need not be there."""
    model, notes = read_config(directory, files=files)
    where = directory / "config.json"
    if not {"data", "training", "fingerprint"} <= set(notes):
        raise ValueError(f"{where}: this is a model, not a training run: it does not say how it was trained")
    model = replace(model, slope=ModelConfig.slope)  # the schedule's, not a setting
    training = from_json(TrainingConfig, before_guidance(notes["training"]), f"{where}: training")
    run: RunConfig
    if isinstance(model, StrokeModelConfig):
        run = StrokeRunConfig(from_json(StrokeDataConfig, notes["data"], f"{where}: data"), model, training)
    else:
        assert isinstance(model, TextModelConfig)
        run = TextRunConfig(from_json(TextDataConfig, notes["data"], f"{where}: data"), model, training)
    data_dir = notes.get("data_dir")
    return SavedRun(run, str(notes["fingerprint"]), None if data_dir is None else Path(str(data_dir)))


def before_guidance(training: Any) -> Any:
    """Runs that were begun when detectors were left alone say so by what they do not name."""
    if isinstance(training, dict) and training.get("target_rate") is None:
        named = {name: value for name, value in training.items() if name != "target_rate"}
        return {"detector_radius": 1.94, **named, "guided_updates": 0}
    return training


def load_progress(directory: Path) -> dict[str, Any]:
    """What `save_run` was given. Nothing in the file is executed."""
    path = directory / RESUMABLE
    if not path.exists():
        raise ValueError(f"{directory}: there is no {RESUMABLE}, so there is nothing to resume; start a run with --out")
    check_regular(path)
    try:
        check_archive(path)
        progress: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        expected = progress.pop("sha256", None)
        found = checksum_of_all({k: v for k, v in progress.items() if k != "format_version"}, path.stat().st_size)
    except Exception as error:  # a flipped bit makes torch raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path}: damaged, or not written by hmrnn: {reason}") from None
    if progress.pop("format_version", None) != FORMAT_VERSION:
        raise ValueError(f"{path}: not a checkpoint of format_version {FORMAT_VERSION}")
    if expected is not None and found != expected:
        raise ValueError(f"{path}: damaged: its checksum does not fit")
    parts = [progress.get(name) for name in ("machine", "model", "optimizer")]
    if not isinstance(progress.get("update"), int) or not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{path}: damaged: it does not say how far it is, and where it was made")
    return progress


def check_archive(path: Path) -> None:
    """Refuses what torch.load would open though it costs more memory than the file's size. Code it never executes."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is packed")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise ValueError("its parts are larger than the whole")
        for entry in entries:
            if not entry.filename.endswith(".pkl"):
                continue
            for operation, argument, _ in pickletools.genops(archive.read(entry)):
                if operation.name == "GLOBAL" and argument not in MADE_OF:
                    raise ValueError(f"it names {argument}, which no checkpoint is made of")


def checksum_of_all(content: Any, most: float = math.inf) -> str:
    """Of tensors, numbers and texts in dictionaries and lists. torch.load itself does not notice a flipped bit.

    What unfolds to more than `most` bytes is refused: one number expanded to many, or lists that hold each other.
    """
    digest = hashlib.sha256()
    left = most

    def add(value: Any) -> None:
        nonlocal left
        left -= value.nbytes if isinstance(value, torch.Tensor) else 1
        if left < 0:
            raise ValueError("it unfolds to more than its size")
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


def check_alike(found: Any, wanted: Any, name: str) -> None:
    """Refuses a part of a state that is of another kind than `wanted`: other names, types or shapes."""
    if isinstance(wanted, torch.Tensor):
        fits = isinstance(found, torch.Tensor) and (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    elif isinstance(wanted, dict):
        fits = isinstance(found, dict) and found.keys() == wanted.keys()
    elif isinstance(wanted, list):
        fits = isinstance(found, list) and len(found) == len(wanted)
    else:
        fits = type(found) is type(wanted) and (found >= 0 if isinstance(found, int) else not math.isnan(found))
    if not fits:
        raise ValueError(f"{name} is not what it must be")
    if isinstance(wanted, dict | list):
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            check_alike(found[key], wanted[key], f"{name}: {key}")


def remove_leftovers(directory: Path) -> None:
    """Files that a killed process was just writing."""
    for folder in (directory, directory / "best"):
        for path in folder.glob(".*.*"):
            if path.name.split(".")[1] in ("training", "teacher", "model", "config", "symbols", "metrics"):
                path.unlink(missing_ok=True)


def forget_after(path: Path, update: int) -> None:
    """Drops what metrics.jsonl says of updates after this one: they will be made again."""
    if not path.exists():
        return
    check_regular(path)
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line that a killed process was just writing, or that was damaged
        done = record.get("update") if isinstance(record, dict) else None
        if isinstance(done, int) and done <= update:
            kept.append(line + "\n")
    write_atomically(path, "".join(kept))
