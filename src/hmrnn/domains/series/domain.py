"""Series, as the rest of hmrnn asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hmrnn.config import ReadingConfig
from hmrnn.domains.domain import Domain
from hmrnn.domains.series.config import MEASURE, PRESETS, SeriesRunConfig

if TYPE_CHECKING:
    from hmrnn.domains.series.data.sequences import SeriesData
    from hmrnn.domains.series.explorer import SeriesRun
    from hmrnn.domains.series.model import SeriesModel
    from hmrnn.domains.series.task import SeriesTask
    from hmrnn.explorer.reading import Memory
    from hmrnn.guidance.branching import Branching
    from hmrnn.training.distributed import Processes


class Series(Domain):
    name = "series"
    goal = "the next step of a series of numbers"
    run_config = SeriesRunConfig
    presets = PRESETS
    measure = MEASURE
    files = ("columns.json",)

    def load(self, run: SeriesRunConfig, data_dir: Path | None) -> SeriesData:
        from hmrnn.domains.series.data.sequences import load_series

        return load_series(run.data, data_dir)

    def model_class(self) -> type[SeriesModel]:
        from hmrnn.domains.series.model import SeriesModel

        return SeriesModel

    def build(self, run: SeriesRunConfig, data: SeriesData, engine: str) -> SeriesModel:
        return self.model_class()(data.lines.columns, run.model, engine=engine)

    def task(
        self,
        model: SeriesModel,
        data: SeriesData,
        run: SeriesRunConfig,
        processes: Processes,
        teacher: Branching | None = None,
    ) -> SeriesTask:
        from hmrnn.domains.series.task import SeriesTask

        model.normalise_as(data.split("train"))
        return SeriesTask(model, data, run, processes)

    def explored(self, number: int, name: str, model: SeriesModel, memory: Memory, reading: ReadingConfig) -> SeriesRun:
        from hmrnn.domains.series.explorer import SeriesRun

        return SeriesRun(number, name, model, memory)
