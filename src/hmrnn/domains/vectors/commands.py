"""What the commands tell of runs on lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from hmrnn.cli.common import print_json, tell_own, tell_scores
from hmrnn.cli.flags import OfData, Score, Segment, Split
from hmrnn.config import DataConfig
from hmrnn.domains.vectors.config import Words
from hmrnn.domains.vectors.data import LineData, Lines, can_be_predicted
from hmrnn.domains.vectors.evaluation import log_likelihoods
from hmrnn.domains.vectors.flags import Generate
from hmrnn.domains.vectors.generation import GeneratedPoint, generate_points
from hmrnn.domains.vectors.model import VectorModel
from hmrnn.domains.vectors.structure import LineSegmentation, follow
from hmrnn.errors import UsageError
from hmrnn.printable import printable
from hmrnn.show.progress import show_bar
from hmrnn.structure.scores import Ends, check_to_find, from_lines, scores_of
from hmrnn.training.batches import Line
from hmrnn.training.checkpoint import SavedRun, changed, load_own, no_run, run_in

Config = TypeVar("Config", bound=DataConfig)
MOST_ON_PAGE = 100_000  # points on a page


@dataclass(frozen=True)
class ToRead(Generic[Config]):
    """Lines to read."""

    config: Config  # the set
    split: Split  # the part of it
    data: LineData | Lines  # the set, or an undivided file
    numbers: npt.NDArray[np.int64]  # of the lines, in the set
    lines: Sequence[Line]


@dataclass(frozen=True)
class Source(Generic[Config]):
    """Where a domain's lines come from."""

    config: type[Config]
    other: Callable[[Config, str], Config]  # a run's settings for other data
    load: Callable[[Config, Path | None], LineData]
    whole: Callable[[Config], Lines]  # a file, not divided
    in_parts: Callable[[Any, Config], LineData]  # the same, divided

    def lines(self, directory: Path, data: str | None, split: Split | None, data_dir: Path | None) -> ToRead[Config]:
        """The lines that `data` names, or else the run's own."""
        run = run_in(directory)
        if run is None:
            if data is None:
                raise no_run(directory)
            config = self.config(data)
        else:
            assert isinstance(run.config.data, self.config)
            config = run.config.data if data is None else self.other(run.config.data, data)
            data_dir = data_dir or run.data_dir
        config, part = config.at_home(), split or "test"
        if run is not None and config == run.config.data:
            loaded = load_own(config, run.fingerprint, lambda: self.load(config, data_dir), changed(config, directory))
        elif config.is_path:
            lines = self.whole(config)
            moved = None if run is None else self.moved(lines, config, run)
            if moved is None:
                return undivided(config, split, lines)
            loaded = moved
            tell_own(config, part, directory)
        else:
            loaded = self.load(config, data_dir)
        if loaded.lines.damaged:
            print(printable(loaded.description()), file=sys.stderr)
        return ToRead(config, part, loaded, loaded.numbers(part), loaded.split(part))

    def moved(self, lines: Lines, config: Config, run: SavedRun) -> LineData | None:
        """A file's lines in the parts that the run knows, if they are what it was trained on."""
        try:
            loaded = self.in_parts(lines, config)
        except ValueError:  # nothing can be trained on such lines
            return None
        return loaded if loaded.fingerprint == run.fingerprint else None


def undivided(config: Config, split: Split | None, lines: Lines) -> ToRead[Config]:
    """All of a file that the run was not trained on."""
    if split not in (None, "all"):
        raise UsageError(f"{config.data} is not divided: --split {split} is for the sets that runs are trained on")
    every = range(len(lines.names))
    return ToRead(config, "all", lines, np.array(every), [lines.line(number) for number in every])


def tell_likelihood(
    asked: OfData, model: VectorModel[Any], read: ToRead[Any], words: Words, sigma_floor: float = 0.0
) -> None:
    """The average log-likelihood of a line, as the paper does, and of a point."""
    name, split, lines = read.config.data, read.split, read.lines
    line, point = words.line, words.point
    start = time.perf_counter()
    nats = log_likelihoods(model, lines, show=True, sigma_floor=sigma_floor)
    seconds = time.perf_counter() - start
    predicted = sum(len(line) - 1 for line in lines)
    if not can_be_predicted(lines):
        raise ValueError(f"{name}: no {line} has a second {point} to predict, or all its numbers are missing")
    answer: dict[str, Any] = {
        "run": str(asked.run),
        "checkpoint": asked.reading.checkpoint,
        "data": name,
        "split": split,
        f"{line}s": len(lines),
        f"{point}s": predicted,
        "log_likelihood": float(nats.mean()),
        f"log_likelihood_per_{point}": float(nats.sum()) / predicted,
        "seconds": seconds,
    }
    if sigma_floor > 0:
        answer["sigma_floor"] = sigma_floor
    if asked.json:
        print_json(answer)
        return
    floor = f", with a sigma floor of {sigma_floor:g}" if sigma_floor > 0 else ""
    print(
        f"{nats.mean():.1f} nats: average log-likelihood of a {line}, in normalised coordinates{floor}; of a {point} "
        f"{nats.sum() / predicted:.4f} nats: {printable(name)}, {split}, {len(lines):,} {line}s, {predicted:,} "
        f"{point}s predicted ({predicted / seconds:,.0f} {point}s/s)"
    )


def generated(
    asked: Generate, model: VectorModel[Any], given: Line | None, lines: int = 1
) -> list[list[GeneratedPoint]]:
    """Lines that a model makes, each with the next seed."""
    made = []
    with tqdm(total=lines * asked.max_new, unit="pt", leave=False, disable=not show_bar(True)) as bar:
        for i in range(lines):
            line = []
            seed = None if asked.seed is None else asked.seed + i
            for point in generate_points(model, given, asked.max_new, asked.bias, seed):
                line.append(point)
                bar.update(point.new)
            made.append(line)
    return made


def title_of(asked: Segment) -> str:
    """Of a page: what was read, and by which run."""
    names = ", ".join(file.name for file in asked.files)
    return printable(f"{names}, read by {asked.run.name}")


def segments_line(line: LineSegmentation) -> str:
    """How many a layer found, and what was computed for it."""
    layers = "".join(f"segments of layer {l + 1}: {len(own)}; " for l, own in enumerate(line.layers))
    return f"{layers}{line.updates.description()}"


def tell_boundaries(
    asked: Score,
    model: VectorModel[Any],
    read: ToRead[Any],
    known: Sequence[Mapping[str, Ends]],
    words: Words,
    margin: int = 0,
) -> None:
    """How well the boundaries of each layer fit the known ones of each line."""
    gold, what = from_lines(known), f"{read.config.data}, {read.split}"
    check_to_find(gold, what)
    lines = tqdm(read.lines, leave=False, unit=words.line, disable=not show_bar(True))
    z = torch.cat([read.z.cpu() for line in lines for read in follow(model, line)]).numpy()
    what += f", within {margin} {words.point}s" if margin else ""
    tell_scores(asked, what, len(z), f"{words.point}s", scores_of(z, gold, margin))
