"""The flags that commands have whatever the run is on. Each domain adds its own to them.

A command is a dataclass: its docstring is the command's help, its fields are the flags, and it carries itself out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from tyro.conf import OmitArgPrefixes, Positional, arg

from hmrnn.cli.parsing import Dir
from hmrnn.config import (
    LARGEST_SEED,
    STANDARD_INPUT,
    Device,
    EngineName,
    NameOrFile,
    ReadingConfig,
    RunConfig,
    shown_as,
)
from hmrnn.errors import SettingError, UsageError, check_device, check_not_negative, check_positive
from hmrnn.storage.shipped import located

if TYPE_CHECKING:
    from hmrnn.domains import Domain

Run = Annotated[Path, shown_as("RUN", located)]
Runs = Annotated[Positional[tuple[Run, ...]], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")]
Files = Annotated[Positional[tuple[Path, ...]], arg(metavar="[FILE ...]")]
FIGURE_ENDINGS = (".pdf", ".svg", ".png")
Split: TypeAlias = Literal["train", "valid", "test", "all"]
BY_DEFAULT = ReadingConfig()
OTHER_NAMES = {"directory": "--out"}  # flags that are not called like their setting


def in_flags(error: Exception) -> str:
    """What is wrong. The library names settings, a user of the command line knows their flags."""
    if isinstance(error, SettingError):
        return error.in_flags(lambda setting: OTHER_NAMES.get(setting, f"--{setting.replace('_', '-')}"))
    return str(error)


def check_there(path: Path | None, hint: str = "") -> None:
    if path is not None and not os.path.exists(path):
        raise ValueError(f"{path}: there is no such file{hint}")


def check_file(path: Path | None) -> None:
    check_there(path)
    if path is not None and path.is_dir():
        raise ValueError(f"{path}: this is a folder, and must be a file")


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a user asked for."""

    examples: ClassVar[tuple[str, ...]] = ()
    """Command lines without the word hmrnn, which --help ends with."""

    def check(self) -> None:
        """Refuses flags that contradict each other, and values that can't be."""

    def look(self, domain: Domain) -> None:
        """Refuses what is to be read and is not there. Before torch is imported: a slip of the pen is told at once."""

    def carry_out(self) -> None:
        """By the function with the name of this class, in the file commands.py beside its flags.py."""
        folder = type(self).__module__.rpartition(".")[0]
        getattr(import_module(f"{folder}.commands"), type(self).__name__.lower())(self)


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    run: RunConfig
    preset: str | None = None
    """Start from these settings."""
    out: Dir | None = None
    """Directory of the new run. Required, unless --resume names a run."""
    resume: Dir | None = None
    """Continue the run in this directory exactly where it stopped. You may change --epochs, --minutes and
    --checkpoint-minutes. If the data was moved, give its new path with --data."""
    data_dir: Dir | None = None
    """Where published data sets are. By default HMRNN_DATA, or ~/.cache/hmrnn."""
    engine: EngineName = "auto"
    """Engine that computes the network. auto: native on a CPU, or events without it; reference on a GPU."""
    device: Device = "auto"
    """Device: cpu, cuda, cuda:N or mps. auto uses a GPU if CUDA has one. A resumed run keeps its device,
    unless you name another."""
    tensorboard: bool = False
    """Also write TensorBoard logs into the run's folder tensorboard."""
    json: bool = False
    """Print the outcome as one line of JSON."""

    def check(self) -> None:
        check_device(self.device)
        for bound in ("epochs", "minutes"):
            if (value := getattr(self.run.training, bound)) is not None:
                check_positive(bound, value)
        if self.resume is None:  # a run goes on with what it was begun with
            self.run.data.check_used()

    def look(self, domain: Domain) -> None:
        if self.resume is None and self.run.data.data != str(STANDARD_INPUT):
            self.run.data.check_there()

    def carry_out(self) -> None:
        from hmrnn.cli.train import carry_out

        carry_out(self)


@dataclass(frozen=True, kw_only=True)
class OfRun(Command):
    """A command that uses one run."""

    run: Positional[Run]
    """Directory of the run; or builtin or builtin-strokes, the models that come with hmrnn."""
    reading: Annotated[ReadingConfig, OmitArgPrefixes] = BY_DEFAULT


@dataclass(frozen=True, kw_only=True)
class OfData(OfRun):
    """A command that has a run read data."""

    data: NameOrFile | None = None
    """Data set by name, or a path. By default the run's own."""
    split: Split | None = None
    """Part of the data. By default test; all of a file that the run was not trained on."""
    data_dir: Dir | None = None
    """Where published data sets are. By default where the run found its own, or HMRNN_DATA, or ~/.cache/hmrnn."""
    json: bool = False
    """Print the answer as one line of JSON."""

    def look(self, domain: Domain) -> None:
        from hmrnn.storage.config_json import data_of, read_config

        contents = read_config(self.run)
        if self.data is not None:
            domain.data_config(self.data).check_there()
        elif "data" in contents[1]:
            data_of(contents, self.run).check_still_there(self.run)


@dataclass(frozen=True, kw_only=True)
class Score(OfData):
    all: bool = False
    """Print every score and baseline, not only the best F1 of each layer."""


@dataclass(frozen=True, kw_only=True)
class Generate(OfRun):
    max_new: int
    """Number of steps to generate."""
    seed: int | None = None
    """Random seed. By default each call gives another result."""
    json: bool = False
    """Print the result with its boundaries as one line of JSON."""

    def check(self) -> None:
        check_not_negative("--max-new", self.max_new)
        if self.seed is not None:
            check_not_negative("--seed", self.seed, LARGEST_SEED)


@dataclass(frozen=True, kw_only=True)
class Segment(OfRun):
    files: Files = (STANDARD_INPUT,)
    """Files and folders to read; - is standard input."""
    out: Path | None = None
    """File to write. By default standard output."""
    format: str
    vectors: bool = False
    """With --format json: include the vector of each segment, the hidden state of its layer at the boundary."""

    def check(self) -> None:
        if self.vectors and self.format != "json":
            raise UsageError(f"--vectors is for --format json, not for {self.format}")

    def look(self, domain: Domain) -> None:
        for file in self.files:
            if file != STANDARD_INPUT:
                check_there(file)


@dataclass(frozen=True, kw_only=True)
class Figure(Command):
    runs: Runs
    """Directory of the run; or builtin or builtin-strokes, the models that come with hmrnn.
    The training curves of several runs share one picture; --kind all draws the other figures for the first run only."""
    out: Path
    """A folder for all figures as pdf, svg and png, or one file."""
    data_dir: Dir | None = None
    """Where published data sets are. By default where the run found its own, or HMRNN_DATA, or ~/.cache/hmrnn."""
    reading: Annotated[ReadingConfig, OmitArgPrefixes] = BY_DEFAULT


@dataclass(frozen=True, kw_only=True)
class Explore(OfRun):
    """Open a page in the browser on which you type or draw, and watch the layers. It runs on this machine only."""

    compare: Run | None = None
    """Another run of the same kind to show side by side."""
    port: int = 0
    """Port of the server. 0 takes a free one."""
    browser: bool = True
    """Open the page in the browser."""

    def carry_out(self) -> None:
        from hmrnn.explorer import serve

        runs = [self.run] if self.compare is None else [self.run, self.compare]
        serve(runs, port=self.port, open_browser=self.browser, reading=self.reading)
