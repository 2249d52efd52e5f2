"""Settings from JSON, which a stranger may have written, and settings that contradict each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_type_hints

from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from hmrnn.config import BOUNDS, MOST_VALUES, DataConfig, ModelConfig, RunConfig
from hmrnn.domains import DOMAINS
from hmrnn.errors import Contradiction
from hmrnn.storage.files import MOST_JSON, check_seal, read_bytes

Config = TypeVar("Config")


def from_json(kind: type[Config], content: Any, where: str) -> Config:
    """A config from what JSON made of it. `where` names it in an error."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be an object with settings; got {content!r}")
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    types = get_type_hints(kind)
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"{where}: unknown setting {', '.join(unknown)}")
    values = {}
    for name, value in content.items():
        inner = known[name].default_factory
        if inner is not dataclasses.MISSING and dataclasses.is_dataclass(inner):
            values[name] = from_json(inner, value, f"{where}: {name}")
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
            check_setting(f"{where}: {name}", values[name], types[name])
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def check_setting(name: str, value: Any, hint: Any) -> None:
    """Refuses a value of the wrong type, too many of them, and numbers that fit into no machine's."""
    parts = value if isinstance(value, tuple) else (value,)
    fits = len(parts) <= MOST_VALUES and not any(isinstance(part, int) and abs(part) >= 2**63 for part in parts)
    if hint is not bool:  # to Python, True is a number
        fits = fits and not any(isinstance(part, bool) for part in parts)
    try:
        if fits:
            check_type(value, hint, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
    except TypeCheckError:
        fits = False
    if not fits:
        raise ValueError(f"{name} can't be {str(value)[:80]!r}")


def check_same(asked: RunConfig, run: RunConfig, where: Path) -> None:
    """Refuses settings that a run, whose directory is `where`, can't go on with."""
    wrong = [own for f in fields(asked) for own in differing(getattr(asked, f.name), getattr(run, f.name))]
    told: list[str] = []
    values: dict[str, Any] = {}
    for i, (_, a, b) in enumerate(wrong):
        told.append(f"{{{i}}} {{asked{i}}} (it has {{has{i}}})")
        values |= {f"asked{i}": a, f"has{i}": b}
    if wrong:
        message = f"{', '.join(told)} contradicts the run in {{where}}"
        raise Contradiction(message, *(name for name, _, _ in wrong), where=where, **values)


def differing(asked: Any, run: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The settings that must stay and differ, such as planted.seed, with what is asked for and what the run has."""
    for f in fields(asked):
        a, b = getattr(asked, f.name), getattr(run, f.name)
        if dataclasses.is_dataclass(a):
            yield from differing(a, b, f"{prefix}{f.name}.")
        elif a != b and f.compare and f.name not in BOUNDS:
            yield f"{prefix}{f.name}", a, b


FORMAT_VERSION = 1
MOST_CONFIG = 1 << 20  # bytes of config.json

NOTES = ("data", "training", "fingerprint", "data_dir")  # what a training run adds to its model's config.json


Contents: TypeAlias = tuple[ModelConfig, dict[str, Any]]
_known: ContextVar[dict[tuple[Path, bool], Contents] | None] = ContextVar("known", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Within it, each config.json is read once: a command sees one state of a run that may be training meanwhile."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def read_config(directory: Path, *, files: bool = True) -> Contents:
    """The model's config, and the notes beside it. Without `files`, those that belong to it need not be there."""
    known = _known.get()
    if known is None:
        return _read_config(directory, files)
    if (directory, files) not in known:
        known[directory, files] = _read_config(directory, files)
    return known[directory, files]


def _read_config(directory: Path, files: bool) -> Contents:
    path = directory / "config.json"
    try:
        written = read_bytes(path, MOST_CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{directory}: there is no config.json here: this is not a run") from None
    try:
        content: dict[str, Any] = dict(json.loads(written.decode()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not the config of a model: {error}") from None
    if content.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path}: format_version {content.get('format_version')!r} is not {FORMAT_VERSION}, the one that this "
            "hmrnn reads"
        )
    check_seal(content, path)
    del content["format_version"]
    kind, known = content.pop("kind", None), content.pop("files", None)
    if not isinstance(kind, str) or kind not in DOMAINS:
        raise ValueError(f"{path}: this is a model of kind {kind!r}; known are {', '.join(DOMAINS)}")
    for name in known if files and isinstance(known, dict) else ():
        if name not in DOMAINS[kind].files:
            raise ValueError(f"{path}: {name!r} is no file of a model of {kind}")
        if sha256(read_bytes(directory / name, MOST_JSON)).hexdigest() != known[name]:
            raise ValueError(f"{directory / name}: damaged: its checksum does not fit that of {path}")
    notes = {name: content.pop(name) for name in NOTES if name in content}
    return from_json(DOMAINS[kind].model_config, content, str(path)), notes


def data_of(contents: Contents, directory: Path) -> DataConfig:
    """What the run with this config was trained on."""
    model, notes = contents
    kind, data = DOMAINS[kind_of(model)].data_config, notes["data"]
    data = kind.migrated(data) if isinstance(data, dict) else data
    return from_json(kind, data, f"{directory / 'config.json'}: data").taken_along(directory)


def kind_of(config: ModelConfig) -> str:
    return next(name for name, domain in DOMAINS.items() if type(config) is domain.model_config)
