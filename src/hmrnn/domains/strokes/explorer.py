"""What a run on pen strokes answers: how it reads a drawing, how it would go on, and both as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hmrnn.domains.strokes.config import WORDS
from hmrnn.domains.strokes.data.points import LARGEST, Points, checked_strokes, to_json
from hmrnn.domains.strokes.drawing import coloured_svg
from hmrnn.domains.strokes.hand import LETTER, Hand
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.domains.vectors.explorer import LineRun
from hmrnn.domains.vectors.generation import generate_on
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.requests import MOST_NEW, MOST_POINTS, Refused, Request, quoted
from hmrnn.explorer.runs import Answer, Answers, answer_of
from hmrnn.structure.operations import Steps
from hmrnn.structure.reading import Place

NEATEST = 10.0
BEGINNING = (LETTER / 2, 1.65 * LETTER)  # where a line begins that the model writes from nothing: letters begin on top


class StrokeRun(LineRun[StrokeModel]):
    words = WORDS

    def __init__(self, number: int, name: str, model: StrokeModel, memory: Memory) -> None:
        super().__init__(number, name, model, memory)
        self.hand = Hand.of(model)

    @property
    def kinds(self) -> Mapping[str, Callable[[Request], Answers]]:
        return {
            "read": self.read,
            "generate": self.generate,
            "segments": self.segments,
            "figure": self.figure,
            "drawing": self.drawing,
        }

    def described(self) -> Answer:
        return {**super().described(), "letter": LETTER}

    def points(self, request: Request) -> tuple[Points, Any]:
        """The points that the model reads, and where on the screen the first one is."""
        strokes = strokes_of(request)
        points = self.hand.points(strokes, made_of(request, len(strokes)))
        return points, strokes[0][0] if strokes else BEGINNING

    def line(self, request: Request) -> Points:
        points, _ = self.points(request)
        if len(points) == 0:
            raise Refused("there is nothing drawn yet")
        return points

    def read(self, request: Request) -> Answers:
        points, origin = self.points(request)
        places = self.hand.pixels(points, origin)
        for read in self.read_all(self.asked_model(request), torch.from_numpy(points)):
            yield shown(read.steps, places[read.steps.start : read.after.at])

    def generate(self, request: Request) -> Answers:
        """The next points, one by one, each with its step. A line from nothing begins with its first point."""
        points, at = self.points(request)
        bias, new = request.number("bias", 0, NEATEST), request.whole("new", 1, MOST_NEW)
        room = MOST_POINTS - max(1, len(points))
        if room <= 0:
            raise Refused(f"there is no room for more: a drawing has at most {MOST_POINTS:,} points")
        model = self.asked_model(request)
        fresh = len(points) == 0
        points, place = model.start if fresh else points, Place.start(model)
        for read in self.read_all(model, torch.from_numpy(points)):
            place = read.after
            yield shown(read.steps, self.hand.pixels(points, at)) if fresh else None
        at = self.hand.pixels(points, at)[-1]
        for made in islice(generate_on(model, place, bias), min(new, room)):
            at = at + made.inputs[0, :2].double().numpy() / self.hand.unit
            if not np.abs(at).max() <= LARGEST:
                raise Refused("the line has left every screen: it is hardly trained")
            yield shown(made.steps(), at[None])

    def figure(self, request: Request) -> Answers:
        """The drawing, coloured by the segments of a layer; of layer 0, by the strokes of the pen."""
        layer = request.whole("layer", 0, self.detectors)
        found = yield from self.found(request)
        ends = found.points[:, 2] > 0.5 if layer == 0 else found.steps.z[:, layer - 1].numpy()
        yield {"file": coloured_svg(found.points, ends)}

    def drawing(self, request: Request) -> Answers:
        """The points as the model reads them, in the plain format: `hmrnn segment` and `--prime` take it."""
        yield {"file": to_json(self.line(request)) + "\n"}


def shown(steps: Steps, places: npt.NDArray[np.float64]) -> Answer:
    x, y = np.round(places, 2).T.tolist()
    return {**answer_of(steps), "x": x, "y": y, "pen": steps.inputs[:, 2].int().tolist()}


def strokes_of(request: Request) -> list[list[list[float]]]:
    """Strokes of a drawing that have a point; there may be none."""
    try:
        return [stroke for stroke in checked_strokes(request.content.get("strokes")) if stroke]
    except ValueError as error:
        raise Refused(f"strokes: {error}") from None


def made_of(request: Request, strokes: int) -> list[bool]:
    """For each of so many strokes, whether the run made it."""
    value = request.content.get("made")
    if not isinstance(value, list) or len(value) != strokes or not all(isinstance(made, bool) for made in value):
        raise Refused(f"made must be true or false for each of the {strokes:,} strokes; got {quoted(value)}")
    return value
