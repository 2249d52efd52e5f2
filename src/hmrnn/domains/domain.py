"""What a kind of sequence says of itself. Commands, training, checkpoints and the explorer ask a `Domain`, and know no
kind of sequence by its name.

Nothing here imports torch: `hmrnn --help` asks domains, too. What is heavy is imported by the methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, get_type_hints

from hmrnn.config import (
    DataConfig,
    Measure,
    ModelConfig,
    ReadingConfig,
    RunConfig,
)

if TYPE_CHECKING:
    from hmrnn.cli.flags import Command
    from hmrnn.explorer.reading import Memory
    from hmrnn.explorer.runs import Run
    from hmrnn.guidance.branching import Branching
    from hmrnn.storage.pretrained import Pretrained
    from hmrnn.training.distributed import Processes
    from hmrnn.training.task import Task


# By the class in which a domain says what each takes.
COMMANDS = {
    "train": "Train",
    "eval": "Evaluate",
    "generate": "Generate",
    "segment": "Segment",
    "score": "Score",
    "figure": "Figure",
    "explore": "Explore",
}


class Data(Protocol):
    """What a domain loads."""

    @property
    def fingerprint(self) -> str:
        """The same for the same data."""


class Domain(ABC):
    """A kind of sequence.

    Its folder has the same files as that of every other: config (settings and presets), data/ (loading, splitting),
    model, task (what training asks), figures, explorer, and flags and commands (what each command takes and does). How
    a sequence is evaluated, generated and followed is in evaluation, generation, reading and structure: in the folder
    of the domain, or in vectors/.
    """

    name: ClassVar[str]  # in config.json and on the command line
    goal: ClassVar[str]  # what a model of it predicts
    run_config: ClassVar[type[RunConfig]]
    presets: ClassVar[Mapping[str, RunConfig]]  # by name; one of them is "small"
    measure: ClassVar[Measure]
    files: ClassVar[tuple[str, ...]] = ()  # what may belong to a model besides config and weights
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # flags of `train` that stand for others
    in_explorer: ClassVar[ReadingConfig] = ReadingConfig()  # how the explorer reads, unless it is told

    @property
    def model_config(self) -> type[ModelConfig]:
        return get_type_hints(self.run_config)["model"]  # type: ignore[no-any-return]

    @property
    def data_config(self) -> type[DataConfig]:
        return get_type_hints(self.run_config)["data"]  # type: ignore[no-any-return]

    def preset_for(self, data: str | None) -> str:
        """The preset of a run on these data, if none is named."""
        return data if data is not None and data in self.presets else "small"

    def measure_of(self, run: Any) -> Measure:
        """In what the losses of a run are told."""
        return self.measure

    def steps_per_update(self, run: RunConfig) -> int | None:
        """How many steps a process reads in each update; None if that differs from update to update."""
        return None

    def flags(self) -> Mapping[str, type[Command]]:
        """What the commands take: the classes of its file flags.py."""
        module = import_module(f"hmrnn.domains.{self.name}.flags")
        return {command: getattr(module, name) for command, name in COMMANDS.items()}

    @abstractmethod
    def load(self, run: Any, data_dir: Path | None) -> Data:
        """The data of a run."""

    @abstractmethod
    def model_class(self) -> type[Pretrained]: ...

    @abstractmethod
    def build(self, run: Any, data: Any, engine: str) -> Pretrained:
        """A model that has learnt nothing yet."""

    @abstractmethod
    def task(self, model: Any, data: Any, run: Any, processes: Processes, teacher: Branching | None = None) -> Task:
        """What the training loop asks."""

    def is_taught(self, run: Any) -> bool:
        """Whether the detectors of such a run learn from what the data tells where segments end."""
        return False

    def teacher(self, run: Any, data: Any) -> Branching | None:
        """What the data tells of it. It is read once, before the first update."""
        return None

    def taught(self, run: Any, teacher: Branching | None) -> RunConfig:
        """The settings with what the teacher decides of them."""
        return run  # type: ignore[no-any-return]

    def page(self, ending: str) -> bytes:
        """Its part of the explorer's page: explorer.html, the templates, or explorer.js, the script that fills them."""
        return (Path(__file__).parent / self.name / f"explorer.{ending}").read_bytes()

    @abstractmethod
    def explored(self, number: int, name: str, model: Any, memory: Memory, reading: Any) -> Run[Any]:
        """A run that the explorer's page can ask."""
