"""The model of series."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from hmrnn.domains.series.config import MOST_COLUMNS, SeriesModelConfig
from hmrnn.domains.series.data.sequences import Values
from hmrnn.domains.series.inline import SeriesSegmentation
from hmrnn.domains.series.mixture import StepDensity, StepHead
from hmrnn.domains.vectors.model import VectorModel, VectorModelOutput
from hmrnn.errors import SettingError
from hmrnn.storage.files import read_json
from hmrnn.structure.operations import Steps
from hmrnn.structure.segments import Segment

SeriesModelOutput: TypeAlias = VectorModelOutput[StepDensity]
FILE = "columns.json"


class SeriesModel(VectorModel[StepDensity]):
    """A model that predicts the next step of a series: a number for each column, NaN where it is missing.

    The density is a mixture of Gaussians. The network reads 0 in place of a missing number, and which numbers are
    missing. A generated sequence begins with a step of which all is missing; so do half of the sequences in training.

    Args:
        columns: Names of the columns.
        config: Sizes and kind of the network.
        engine: Engine of the recurrent network, see `HMLSTM`.
    """

    kind = "series"
    config: SeriesModelConfig

    def __init__(
        self, columns: Sequence[str], config: SeriesModelConfig | None = None, *, engine: str = "auto"
    ) -> None:
        config, width = config or SeriesModelConfig(), len(columns)
        names = {column for column in columns if isinstance(column, str)}
        if not width or len(names) < width:
            raise ValueError(f"columns must be different names, one or more; got {list(columns)!r:.200}")
        super().__init__(config, width, 2 * width, engine)
        self.columns = tuple(columns)
        self.head = StepHead(config.output_size, width, config.components, config.smallest_sigma, config.rank)

    @property
    def start(self) -> Values:
        return np.full((1, len(self.columns)), np.nan, dtype=np.float32)

    def segmentation(self, steps: Steps, layers: tuple[tuple[Segment, ...], ...], points: Values) -> SeriesSegmentation:
        return SeriesSegmentation(steps, layers, points, self.columns)

    def normalise_as(self, lines: Sequence[Values]) -> None:
        """Normalises by the mean and deviation of each column of these sequences, as in training."""
        steps = np.concatenate(lines).astype(np.float64)
        for d, column in enumerate(self.columns):
            present = steps[~np.isnan(steps[:, d]), d]
            deviation = present.std() if len(present) else 0.0
            if not deviation > 0:
                raise SettingError(
                    "column {column!r} never changes in the training part: there is nothing to predict. {0} names the "
                    "columns to read",
                    "columns",
                    column=column,
                )
            self.mean[d], self.deviation[d] = float(present.mean()), float(deviation)

    def embed(self, points: Tensor) -> Tensor:
        """Embeds vectors, (..., D), as the recurrent network reads them: (..., embedding_size)."""
        missing = points.isnan()
        values = self.normalised(points).masked_fill(missing, 0.0)
        return cast(Tensor, self.embedding(torch.cat([values, missing.to(values.dtype)], -1)))

    def files(self) -> Mapping[str, str]:
        return {FILE: json.dumps({"columns": self.columns}) + "\n"}

    @classmethod
    def without_weights(cls, directory: Path, config: SeriesModelConfig, engine: str) -> SeriesModel:
        return cls(read_columns(directory), config, engine=engine)


def read_columns(directory: Path) -> tuple[str, ...]:
    """The names of a model's columns."""
    path = directory / FILE
    try:
        columns = read_json(path)["columns"]
        if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
            raise ValueError("columns must be a list of names")
        if not 1 <= len(columns) <= MOST_COLUMNS:
            raise ValueError(f"there must be 1 to {MOST_COLUMNS:,} columns; got {len(columns):,}")
        "".join(columns).encode()  # JSON can have halves of characters, which no file can
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: not the columns of a model: {error}") from None
    return tuple(columns)
