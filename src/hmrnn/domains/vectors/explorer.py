"""What a run on lines answers in every domain: the segments of a line, as a file too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from io import StringIO
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from hmrnn.domains.vectors.config import Words
from hmrnn.domains.vectors.model import VectorModel
from hmrnn.domains.vectors.reading import read_on
from hmrnn.domains.vectors.structure import LineSegmentation
from hmrnn.domains.vectors.written import write_json
from hmrnn.explorer.requests import Request
from hmrnn.explorer.runs import Answers, Run
from hmrnn.structure.operations import Steps
from hmrnn.structure.reading import Place, Read
from hmrnn.structure.segments import by_layer
from hmrnn.training.batches import Line

Model = TypeVar("Model", bound=VectorModel[Any])


class LineRun(Run[Model]):
    words: ClassVar[Words]

    @abstractmethod
    def line(self, request: Request) -> Line:
        """The line of a request. One without a point is refused."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """What the file of segments tells of the line besides."""
        return {}

    def read_on(self, model: Model, inputs: Tensor, before: Place) -> Read:
        return read_on(model, inputs, before)

    def found(self, request: Request) -> Generator[None, None, LineSegmentation]:
        """The segments of the line. It pauses after each block, so that others have their turn."""
        points, parts = self.line(request), []
        for read in self.read_all(self.asked_model(request), torch.from_numpy(points)):
            parts.append(read.steps)
            yield None
        return LineSegmentation(Steps.joined(parts), by_layer(parts, None), points)

    def segments(self, request: Request) -> Answers:
        """The file that `hmrnn segment --format json` writes."""
        found, file = (yield from self.found(request)), StringIO()
        write_json([(self.notes, found)], self.words, file)
        yield {"file": file.getvalue()}
