"""Text, as the rest of hmrnn asks for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from hmrnn.config import Measure, RunConfig
from hmrnn.domains.domain import Domain
from hmrnn.domains.text.config import (
    IN_EXPLORER,
    MEASURE,
    PRESETS,
    TextReadingConfig,
    TextRunConfig,
)

if TYPE_CHECKING:
    from hmrnn.domains.text.data.store import TextData
    from hmrnn.domains.text.explorer import TextRun
    from hmrnn.domains.text.model import TextModel
    from hmrnn.domains.text.task import TextTask
    from hmrnn.explorer.reading import Memory
    from hmrnn.guidance.branching import Branching
    from hmrnn.training.distributed import Processes


class Text(Domain):
    name = "text"
    goal = "the next symbol of a text"
    run_config = TextRunConfig
    presets = PRESETS
    measure = MEASURE
    files = ("symbols.json",)
    aliases = MappingProxyType({"--bytes": ("--symbols", "bytes")})
    in_explorer = IN_EXPLORER

    def preset_for(self, data: str | None) -> str:
        return "small"  # the large models take hours: they are asked for by name

    def measure_of(self, run: TextRunConfig) -> Measure:
        return run.data.measure

    def steps_per_update(self, run: RunConfig) -> int:
        return run.training.batch_size * run.training.window

    def load(self, run: TextRunConfig, data_dir: Path | None) -> TextData:
        from hmrnn.domains.text.data.corpora import load_text

        return load_text(run.data, data_dir)

    def model_class(self) -> type[TextModel]:
        from hmrnn.domains.text.model import TextModel

        return TextModel

    def build(self, run: TextRunConfig, data: TextData, engine: str) -> TextModel:
        return self.model_class()(data.symbols, run.model, engine=engine)

    def task(
        self,
        model: TextModel,
        data: TextData,
        run: TextRunConfig,
        processes: Processes,
        teacher: Branching | None = None,
    ) -> TextTask:
        from hmrnn.domains.text.task import TextTask

        if teacher is None and run.training.target_rate == "auto":
            teacher = self.teacher(run, data)
        return TextTask(model, data, run, processes, teacher)

    def is_taught(self, run: TextRunConfig) -> bool:
        from hmrnn.domains.text.teacher import is_taught

        return is_taught(run)

    def teacher(self, run: TextRunConfig, data: TextData) -> Branching | None:
        from hmrnn.domains.text.teacher import teacher_of

        return teacher_of(run, data)

    def taught(self, run: TextRunConfig, teacher: Branching | None) -> TextRunConfig:
        return replace(run, model=replace(run.model, boundary_delay=teacher.delay if teacher else 0))

    def explored(self, number: int, name: str, model: TextModel, memory: Memory, reading: TextReadingConfig) -> TextRun:
        from hmrnn.domains.text.explorer import TextRun

        return TextRun(number, name, model, memory, reading.on_unknown)
