"""Pen strokes, as the rest of hmrnn asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hmrnn.config import ReadingConfig
from hmrnn.domains.domain import Domain
from hmrnn.domains.strokes.config import MEASURE, PRESETS, StrokeRunConfig

if TYPE_CHECKING:
    from hmrnn.domains.strokes.data.lines import StrokeData
    from hmrnn.domains.strokes.explorer import StrokeRun
    from hmrnn.domains.strokes.model import StrokeModel
    from hmrnn.domains.strokes.task import StrokeTask
    from hmrnn.explorer.reading import Memory
    from hmrnn.guidance.branching import Branching
    from hmrnn.training.distributed import Processes


class Strokes(Domain):
    name = "strokes"
    goal = "the next point of a pen"
    run_config = StrokeRunConfig
    presets = PRESETS
    measure = MEASURE

    def load(self, run: StrokeRunConfig, data_dir: Path | None) -> StrokeData:
        from hmrnn.domains.strokes.data.lines import load_strokes

        return load_strokes(run.data, data_dir)

    def model_class(self) -> type[StrokeModel]:
        from hmrnn.domains.strokes.model import StrokeModel

        return StrokeModel

    def build(self, run: StrokeRunConfig, data: StrokeData, engine: str) -> StrokeModel:
        return self.model_class()(run.model, engine=engine)

    def task(
        self,
        model: StrokeModel,
        data: StrokeData,
        run: StrokeRunConfig,
        processes: Processes,
        teacher: Branching | None = None,
    ) -> StrokeTask:
        from hmrnn.domains.strokes.task import StrokeTask

        model.normalise_as(data.split("train"))
        return StrokeTask(model, data, run, processes)

    def explored(self, number: int, name: str, model: StrokeModel, memory: Memory, reading: ReadingConfig) -> StrokeRun:
        from hmrnn.domains.strokes.explorer import StrokeRun

        return StrokeRun(number, name, model, memory)
