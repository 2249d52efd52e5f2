"""What a run on text answers: how it reads a text, what it would write, and the segments as a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from io import StringIO
from itertools import islice
from pathlib import Path

from torch import Tensor

from hmrnn.cli.flags import in_flags
from hmrnn.domains.text.config import OnUnknown, TextRunConfig
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.data.symbols import Symbols
from hmrnn.domains.text.generation import Sampling, generate_on
from hmrnn.domains.text.model import TextModel
from hmrnn.domains.text.page import readable
from hmrnn.domains.text.reading import read_on, unseen
from hmrnn.domains.text.written import write_json
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.requests import MOST_NEW, Refused, Request
from hmrnn.explorer.runs import Answer, Answers, Run, answer_of
from hmrnn.printable import NAMED
from hmrnn.structure.operations import Steps
from hmrnn.structure.reading import Place, Read
from hmrnn.structure.written import Counted
from hmrnn.training.checkpoint import load_run

HOTTEST = 5.0
MOST_CHARACTERS = 5_000  # of a text, with what is made of it
SENTENCE = "the cat sat on the mat, and the dog lay by the door."
OPENING = 200  # symbols that the page opens with


class TextRun(Run[TextModel]):
    def __init__(self, number: int, name: str, model: TextModel, memory: Memory, on_unknown: OnUnknown) -> None:
        super().__init__(number, name, model, memory)
        self.on_unknown = possible(on_unknown, model)

    @property
    def kinds(self) -> Mapping[str, Callable[[Request], Answers]]:
        return {"read": self.read, "generate": self.generate, "segments": self.segments}

    def described(self) -> Answer:
        symbols = self.model.symbols
        own = {"unit": symbols.unit, "between": symbols.between, "on_unknown": self.on_unknown, "text": self.opening}
        return {**super().described(), **own, "delay": self.model.delay, "most_characters": MOST_CHARACTERS}

    @cached_property
    def opening(self) -> str:
        """What the page opens with: a text that the model can read."""
        symbols = self.model.symbols
        try:
            text = own_text(self.directory, symbols)
        except (ValueError, OSError):  # a model without a run, or a run whose text is gone
            text = SENTENCE
            if not set(symbols.split(text)) <= set(symbols.table):
                text = self.model.generate("", OPENING // 2, seed=0)
        return text

    def read_on(self, model: TextModel, inputs: Tensor, before: Place) -> Read:
        return read_on(model, inputs, before)

    def numbers(self, text: str) -> Tensor:
        try:
            return self.model.symbols.encode(text, self.on_unknown)
        except ValueError as error:  # only if unknown symbols are errors
            raise Refused(in_flags(error)) from None

    def read(self, request: Request) -> Answers:
        """Every step from the symbol on that the page does not have: `have` counts the characters it has."""
        text, model = text_of(request), self.asked_model(request)
        numbers = self.numbers(text)
        have = len(self.numbers(self.model.symbols.whole(text[: request.whole("have", 0, len(text))])))
        first = {"start": have, "unknown": self.unknown(text)}
        for read in self.read_all(model, numbers):
            if read.after.at <= have:
                yield None
                continue
            yield {**first, **self.shown(read.steps, max(0, have - read.steps.start))}
            first = {}
        if first:
            yield first

    def unknown(self, text: str) -> list[str]:
        """The symbols of a text that the model does not know, by name."""
        symbols = self.model.symbols
        found = set(symbols.split(text)) - set(symbols.table)
        return [symbols.named(symbol) for symbol in sorted(found)[:NAMED]]

    def shown(self, steps: Steps, first: int = 0) -> Answer:
        symbols = [readable(symbol) for symbol in self.model.symbols.listed(steps.inputs[first:])]
        return {**answer_of(steps, first), "symbols": symbols}

    def generate(self, request: Request) -> Answers:
        """What follows the text, symbol by symbol, each with its step."""
        prompt, model = text_of(request), self.asked_model(request)
        sampling = Sampling(request.number("temperature", 0, HOTTEST))
        new, room = request.whole("new", 1, MOST_NEW), MOST_CHARACTERS - len(prompt)
        if room == 0:
            raise Refused(f"there is no room for more: a text has at most {MOST_CHARACTERS:,} characters")
        place = Place.start(model)
        for read in self.read_all(model, self.numbers(prompt)):
            place = read.after
            yield None
        decoder = model.symbols.decoder(begun=place.at > 0)
        for made in islice(generate_on(model, place if place.at else unseen(model), sampling), min(new, room)):
            yield {**self.shown(made.steps()), "text": decoder(int(made.inputs))}

    def segments(self, request: Request) -> Answers:
        """The file that `hmrnn segment --format json` writes."""
        text, model, parts = text_of(request), self.asked_model(request), []
        for read in self.read_all(model, self.numbers(text)):
            parts.append(read.steps)
            yield None
        file = StringIO()
        write_json(model, Counted(parts), file)
        yield {"file": file.getvalue()}


def text_of(request: Request) -> str:
    text = request.text()
    if len(text) > MOST_CHARACTERS:
        raise Refused(f"a text of {len(text):,} characters is too long: {MOST_CHARACTERS:,} are read")
    # Half of a pair of surrogates is no character. It is shown as what it is: unreadable.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def own_text(directory: Path | None, symbols: Symbols) -> str:
    """The start of the validation part of a run's text, from the start of a line on if one is near."""
    if directory is None:
        raise ValueError("this is no run")
    run = load_run(directory)
    assert isinstance(run.config, TextRunConfig)
    numbers = load_text(run.config.data, run.data_dir, symbols, "skip").split("valid")[: 2 * OPENING].tolist()
    before = symbols.listed(numbers[:OPENING])
    start = before.index("\n") + 1 if "\n" in before else 0
    return symbols.decode(numbers[start : start + OPENING])


def possible(on_unknown: OnUnknown, model: TextModel) -> OnUnknown:
    """Unknown symbols are skipped if the model has nothing to put in their place."""
    return "skip" if on_unknown == "replace" and model.symbols.usual_replacement is None else on_unknown
