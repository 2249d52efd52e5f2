"""What a run on series answers: how it reads a sequence, how it would go on, and both as files."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from hmrnn.domains.series.config import WORDS, SeriesDataConfig
from hmrnn.domains.series.data.files import LARGEST, read_csv
from hmrnn.domains.series.data.sequences import Values, picked
from hmrnn.domains.series.drawing import series_svg
from hmrnn.domains.series.model import SeriesModel
from hmrnn.domains.vectors.explorer import LineRun
from hmrnn.domains.vectors.generation import generate_on
from hmrnn.explorer.requests import MOST_NEW, MOST_POINTS, Refused, Request, quoted
from hmrnn.explorer.runs import Answer, Answers, answer_of
from hmrnn.storage.files import finite
from hmrnn.structure.reading import Place

LARGEST_BIAS = 10.0


class SeriesRun(LineRun[SeriesModel]):
    words = WORDS

    @property
    def kinds(self) -> Mapping[str, Callable[[Request], Answers]]:
        return {
            "open": self.open,
            "read": self.read,
            "generate": self.generate,
            "segments": self.segments,
            "figure": self.figure,
        }

    def described(self) -> Answer:
        return {**super().described(), "columns": self.model.columns}

    def steps(self, request: Request) -> Values:
        """The steps of a request: a list for each, of a number for each column, or null."""
        rows: Any = request.content.get("steps")
        width = len(self.model.columns)
        if not isinstance(rows, list) or len(rows) > MOST_POINTS:
            raise Refused(f"steps must be a list of at most {MOST_POINTS:,} steps")
        for row in rows:
            if not isinstance(row, list) or len(row) != width:
                raise Refused(f"a step must have a number for each of the {width} columns, or null; got {quoted(row)}")
            if not all(value is None or (type(value) in (int, float) and abs(value) <= LARGEST) for value in row):
                raise Refused(f"a step must have numbers of at most {LARGEST:g}, or null; got {quoted(row)}")
        return np.array(rows, dtype=np.float32).reshape(-1, width)  # None becomes NaN

    def open(self, request: Request) -> Answers:
        """The steps of a CSV file, in the columns that the model knows."""
        content = request.text()  # whose line ends within quotes belong to what is quoted
        config = SeriesDataConfig("the file", columns=self.model.columns)
        try:
            values = picked([read_csv(io.StringIO(content, newline=""), "it", "the file")], config).line(0)
        except ValueError as error:
            raise Refused(str(error)) from None
        yield {"steps": finite(values[:MOST_POINTS].tolist()), "left_out": max(0, len(values) - MOST_POINTS)}

    def read(self, request: Request) -> Answers:
        for read in self.read_all(self.asked_model(request), torch.from_numpy(self.steps(request))):
            yield answer_of(read.steps)

    def generate(self, request: Request) -> Answers:
        """The next steps, one by one."""
        values = self.steps(request)
        bias, new = request.number("bias", 0, LARGEST_BIAS), request.whole("new", 1, MOST_NEW)
        model, room = self.asked_model(request), MOST_POINTS - len(values)
        if room <= 0:
            raise Refused(f"there is no room for more: a sequence has at most {MOST_POINTS:,} steps")
        place, skipped = Place.start(model), 0 if len(values) else 1
        for read in self.read_all(model, torch.from_numpy(values if len(values) else model.start)):
            place = read.after
            yield None
        for made in islice(generate_on(model, place, bias), min(new, room)):
            answer = answer_of(made.steps())
            if not made.inputs.isfinite().all():
                raise Refused("the series has grown beyond all numbers: the model is hardly trained")
            yield {**answer, "start": answer["start"] - skipped, "steps": made.inputs.tolist()}

    def line(self, request: Request) -> Values:
        values = self.steps(request)
        if len(values) == 0:
            raise Refused("there is no series yet")
        return values

    @property
    def notes(self) -> Answer:
        return {"name": self.name}

    def figure(self, request: Request) -> Answers:
        """The curves, and under them the segments of each layer."""
        found = yield from self.found(request)
        yield {"file": series_svg(self.model.columns, found)}
