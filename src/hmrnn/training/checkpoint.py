"""A run's directory: what training leaves there, and how it goes on from it."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from hmrnn.config import KEPT_INPUT, DataConfig, ModelConfig, RunConfig, TrainingConfig
from hmrnn.domains import DOMAINS, Data
from hmrnn.errors import SettingError, without_advice
from hmrnn.guidance.branching import Branching
from hmrnn.storage.config_json import data_of, from_json, kind_of, read_config
from hmrnn.storage.files import lines_of, make_folder, names_in, open_file, remove, writing
from hmrnn.storage.pretrained import Pretrained
from hmrnn.storage.tensors import read_tensors, write_tensors
from hmrnn.training.older import read_training_pt
from hmrnn.training.teachers import TEACHER

FORMAT_VERSION = 1
STATE = "training.safetensors"
OLDER_STATE = "training.pt"
Loaded = TypeVar("Loaded", bound=Data)
LONGEST_LINE = 1 << 16  # bytes of a record in metrics.jsonl


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """No other process trains into this directory meanwhile. The lock ends with the process, however that ends."""
    import fcntl  # not on every system that can import this file

    new = [folder for folder in (directory, *directory.parents) if not os.path.lexists(folder)]
    make_folder(directory)
    with (
        leaving_nothing(new),
        os.fdopen(open_file(directory / ".lock", os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as file,
    ):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{directory}: another process is training into this run") from None
        yield


@contextmanager
def leaving_nothing(new: Sequence[Path]) -> Iterator[None]:
    """If a run is refused before its first checkpoint, the folders that were made for it go again. The first is its
    own."""
    try:
        yield
    except BaseException:
        if new and resumable(new[0]) is None:
            for name in (".lock", TEACHER, KEPT_INPUT):
                remove(new[0] / name)
            with suppress(OSError):  # there is something else in it
                for folder in new:
                    folder.rmdir()
        raise


@dataclass(frozen=True)
class SavedRun:
    """What config.json says of a run, beside its model."""

    config: RunConfig
    fingerprint: str  # of the data
    data_dir: Path | None  # where a published set was found
    teacher: Branching | None = None  # of detectors: not in config.json, but in a file of its own


def load_own(data: DataConfig, fingerprint: str, load: Callable[[], Loaded], otherwise: str) -> Loaded:
    """The data that a run was trained on, which are known by their content. Others are refused with `otherwise`."""
    data.check_there()
    try:
        loaded = load()
    except ValueError as error:  # not even what can be trained on, or with other symbols
        if not data.is_path:
            raise
        # no setting makes it the same
        raise without_advice(error, f"{otherwise}. It can't be read as it was: ") from None
    if loaded.fingerprint != fingerprint:
        raise ValueError(otherwise)
    return loaded


def other_release(data: DataConfig) -> str:
    """Why a set that is known by its name may be another one here."""
    return f"another {data.data} than there is here: it comes with Python and packages, and differs between releases"


def changed(data: DataConfig, directory: Path) -> str:
    if not data.is_path:
        return f"{directory} was trained on {other_release(data)}. --data FILE evaluates another set"
    return (
        f"{data.data} has changed since {directory} was trained on it, and so have its parts. A copy under another "
        "name can be evaluated as a whole"
    )


def check_new(directory: Path, data: DataConfig) -> None:
    """Refuses a directory that holds something, or that would become part of the data."""
    own = directory.resolve()
    if data.is_path and Path(data.data).is_dir() and Path(data.data).resolve() in (own, *own.parents):
        lies = "is" if Path(data.data).resolve() == own else "lies in"
        raise SettingError(
            f"{{new}} {lies} {{data}}, whose files are the data: choose another {{0}}",
            "directory",
            new=directory,
            data=data.data,
        )
    config, trained = os.path.lexists(directory / "config.json"), has_content(directory / "metrics.jsonl")
    if resumable(directory) is not None and (config or trained):
        raise SettingError(
            "{new} holds a run: {0}=True goes on with it, or choose another {1}",
            "resume",
            "directory",
            on_command_line="{new} holds a run: {0} {new} goes on with it, or choose another {1}",
            new=directory,
        )
    # A run that was killed before its first checkpoint was whole may start again: of that, it has left a part.
    if os.path.lexists(directory / "best") or (config and not read_config(directory, files=False)[1]):
        raise SettingError("{new} holds a model already: choose another {0}", "directory", new=directory)


def has_content(path: Path) -> bool:
    return os.path.lexists(path) and path.lstat().st_size > 0


def resumable(directory: Path) -> Path | None:
    """The file from which a run goes on."""
    return next((directory / name for name in (STATE, OLDER_STATE) if os.path.lexists(directory / name)), None)


def save_run(directory: Path, model: Pretrained, run: SavedRun, progress: dict[str, Any]) -> None:
    """Writes a checkpoint. What is resumed from is one file, written last: it is there, whole, or the one before is."""
    save_model(directory, model, run)
    write_state(directory / STATE, {"format_version": FORMAT_VERSION, **progress})
    remove(directory / OLDER_STATE)


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
    run = run_in(directory, files=files)
    if run is None:
        raise no_run(directory)
    return run


def no_run(directory: Path) -> ValueError:
    where = directory / "config.json"
    return ValueError(f"{where}: this is a model, not a training run: it does not say how it was trained")


def run_in(directory: Path, *, files: bool = True) -> SavedRun | None:
    """The same; None for a model that is no run."""
    model, notes = read_config(directory, files=files)
    where = directory / "config.json"
    if not {"data", "training", "fingerprint"} <= set(notes):
        return None
    data = data_of((model, notes), directory)
    model = replace(model, slope=ModelConfig.slope)  # the schedule's, not a setting
    training = from_json(TrainingConfig, before_guidance(notes["training"]), f"{where}: training")
    run = DOMAINS[kind_of(model)].run_config(data, model, training)
    data_dir = notes.get("data_dir")
    return SavedRun(run, str(notes["fingerprint"]), None if data_dir is None else Path(str(data_dir)))


def before_guidance(training: Any) -> Any:
    """Runs that were begun when detectors were left alone, or guided in another way, say so by what they do not
    name."""
    if not isinstance(training, dict):
        return training
    if "steered_updates" in training:  # as guided_updates were called when detectors were steered only
        others = {name: value for name, value in training.items() if name != "steered_updates"}
        steered = {"guided_updates": training["steered_updates"], "uncertainty_weight": 0.0}
        training = {"detector_radius": 1.94, **steered, **others}
    if training.get("target_rate") is None:
        named = {name: value for name, value in training.items() if name != "target_rate"}
        training = {"detector_radius": 1.94, **named, "guided_updates": 0}
    return {"imitates_rate": True, **training}


def check_resumable(directory: Path) -> Path:
    path = resumable(directory)
    if path is None:
        raise ValueError(f"{directory}: there is no {STATE}, so there is nothing to resume")
    return path


def load_progress(directory: Path, most: int = sys.maxsize) -> dict[str, Any]:
    """What `save_run` was given, of at most so many bytes of tensors. Nothing in the file is executed."""
    path = check_resumable(directory)
    progress = read_training_pt(path, most) if path.name == OLDER_STATE else read_state(path, most)
    if progress.pop("format_version", None) != FORMAT_VERSION:
        raise ValueError(f"{path}: not a checkpoint of format_version {FORMAT_VERSION}")
    parts = [progress.get(name) for name in ("machine", "model", "optimizer")]
    fits = type(progress.get("update")) is int and all(isinstance(part, dict) for part in parts)
    if not fits or not all(isinstance(value, str | int) for value in progress["machine"].values()):
        raise ValueError(f"{path}: damaged: it does not say how far it is, and where it was made")
    return progress


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Numbers, texts and tensors in dictionaries and lists, in one file: what is no tensor is kept as JSON, in which
    {"tensor": NAME} stands for each that is."""
    tensors: dict[str, torch.Tensor] = {}
    write_tensors(path, tensors, json.dumps(without_tensors(state, "", tensors)))


def without_tensors(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """What is left of a state once its tensors are taken out."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {key: without_tensors(own, f"{name}/{key}".lstrip("/"), tensors) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_tensors(own, f"{name}/{i}", tensors) for i, own in enumerate(value)]
    return value


def read_state(path: Path, most: int) -> dict[str, Any]:
    tensors, text = read_tensors(path, most)
    try:
        state = json.loads(text, object_hook=lambda own: tensors[own["tensor"]] if own.keys() == {"tensor"} else own)
        return dict(state)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or not written by hmrnn: {error!r}") from None


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
        for name in names_in(folder):
            if re.match(r"\.(training|teacher|model|config|symbols|columns|metrics|data)\.", name):
                remove(folder / name)


def forget_after(path: Path, update: int) -> None:
    """Drops what metrics.jsonl says of updates after this one: they will be made again."""
    if not os.path.lexists(path):
        return
    with writing(path) as kept:
        for line in lines_of(path, LONGEST_LINE):
            try:
                record = json.loads(line.decode())
            except (ValueError, RecursionError):
                continue  # a line that a killed process was just writing, or that was damaged
            done = record.get("update") if isinstance(record, dict) else None
            if isinstance(done, int) and done <= update:
                kept.write(line.rstrip(b"\n") + b"\n")
