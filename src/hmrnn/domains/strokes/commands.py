"""What the commands tell of runs on pen strokes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from hmrnn.cli.common import (
    draw_training,
    load_model,
    matplotlib_figures,
    one_file,
    print_json,
    save_figures,
    tell_scores,
    write_figure,
)
from hmrnn.cli.flags import Split
from hmrnn.config import UsageError
from hmrnn.domains.strokes import flags
from hmrnn.domains.strokes.config import StrokeDataConfig, StrokeRunConfig
from hmrnn.domains.strokes.data.lines import StrokeData, lines_of_file, load_strokes
from hmrnn.domains.strokes.data.points import (
    Points,
    read_json_lines,
    to_json,
    to_strokes,
)
from hmrnn.domains.strokes.data.writing import write as write_lines
from hmrnn.domains.strokes.density import predicted_density
from hmrnn.domains.strokes.drawing import (
    animated_svg,
    coloured_svg,
    strokes_page,
    svg,
)
from hmrnn.domains.strokes.evaluation import log_likelihoods
from hmrnn.domains.strokes.generation import generate_points
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.domains.strokes.structure import StrokeSegmentation
from hmrnn.domains.text.evaluation import show_bar
from hmrnn.printable import printable
from hmrnn.storage.config_json import read_config
from hmrnn.storage.files import finite, write_atomically
from hmrnn.structure.scores import from_lines, scores_of
from hmrnn.structure.written import line_as_json
from hmrnn.training.checkpoint import load_run

FORMAT_VERSION = 1
MOST_ON_PAGE = 100_000  # points on a page
FIGURES = ("training", "segments", "density")


@dataclass(frozen=True)
class Chosen:
    """Lines to read."""

    config: StrokeDataConfig  # the set
    split: Split  # the part of it
    numbers: npt.NDArray[np.int64]  # of the lines, in the set
    lines: Sequence[Points]


def lines_to_evaluate(directory: Path, data: str | None, split: Split | None, data_dir: Path | None) -> Chosen:
    """The lines that `data` names, or else the run's own."""
    if data is not None and not read_config(directory)[1]:  # a model that is no run
        config, loaded = StrokeDataConfig(data), None
    else:
        run = load_run(directory)
        assert isinstance(run.config, StrokeRunConfig)
        config, loaded = run.config.data, run
        if data is not None:
            config = replace(config, data=data, division=config.division if data == "iam-ondb" else "shuffled")
        data_dir = data_dir or run.data_dir
    config = config.at_home()
    own = loaded is not None and config == loaded.config.data
    if not own and config.is_path:  # a file that the run was not trained on: all of it
        own_lines = lines_of_file(Path(config.data))
        if split not in (None, "all"):
            raise UsageError(f"{config.data} is not divided: --split {split} is for the sets that runs are trained on")
        every = range(len(own_lines.names))
        return Chosen(config, "all", np.array(every), [own_lines.line(number) for number in every])
    strokes: StrokeData = load_strokes(config, data_dir)
    if strokes.lines.damaged:
        print(printable(strokes.told()), file=sys.stderr)
    if own and loaded is not None and strokes.fingerprint != loaded.fingerprint:
        raise ValueError(f"{config.data} has changed since {directory} was trained on it, and so have its parts")
    part = split or "test"
    return Chosen(config, part, strokes.numbers(part), strokes.split(part))


def evaluate(asked: flags.Evaluate) -> None:
    """Tells the average log-likelihood of a line, as the paper does, and of a point."""
    directory, reading = asked.run, asked.reading
    model = load_model(StrokeModel, directory, reading)
    read = lines_to_evaluate(directory, asked.data, asked.split, asked.data_dir)
    name, split, lines = read.config.data, read.split, read.lines
    start = time.perf_counter()
    nats = log_likelihoods(model, lines, show=True)
    seconds = time.perf_counter() - start
    predicted = sum(len(line) - 1 for line in lines)
    if predicted == 0:
        raise ValueError(f"{name}: no line has a second point to predict")
    answer: dict[str, Any] = {
        "run": str(directory),
        "checkpoint": reading.checkpoint,
        "data": name,
        "split": split,
        "lines": len(lines),
        "points": predicted,
        "log_likelihood": float(nats.mean()),
        "log_likelihood_per_point": float(nats.sum()) / predicted,
        "seconds": seconds,
    }
    if asked.json:
        print_json(answer)
        return
    print(
        f"{answer['log_likelihood']:.1f} nats: average log-likelihood of a line, in normalised coordinates; of a point "
        f"{answer['log_likelihood_per_point']:.4f} nats: {printable(name)}, {split}, {len(lines):,} lines, "
        f"{predicted:,} points predicted ({predicted / seconds:,.0f} points/s)"
    )


def generate(asked: flags.Generate) -> None:
    """Lets a model write lines: into a drawing, or as JSON lines on standard output."""
    prime, out, max_new, seed = asked.prime, asked.out, asked.max_new, asked.seed
    if out is not None and out.suffix == ".png":
        matplotlib_figures("hmrnn.domains.strokes.figures")  # now, not when all is written
    model = load_model(StrokeModel, asked.run, asked.reading)
    given = None if prime is None else first_line(prime)
    made = []
    with tqdm(total=asked.lines * max_new, unit="pt", leave=False, disable=not show_bar(True)) as bar:
        for i in range(asked.lines):
            line = []
            for point in generate_points(model, given, max_new, asked.bias, None if seed is None else seed + i):
                line.append(point)
                bar.update(point.new)
            made.append(line)
    drawn = [np.array([point.point for point in line], dtype=np.float32) for line in made]
    if out is not None:
        draw(drawn, out, asked.animated)
    if asked.json:
        told = [
            {
                "strokes": [stroke.tolist() for stroke in to_strokes(points)],
                "boundaries": [[int(fires) for fires in p.z] for p in line],
            }
            for points, line in zip(drawn, made, strict=True)
        ]
        print_json({"primed": 0 if given is None else len(given), "lines": told, "out": out})
    elif out is not None:
        print(out)
    else:
        for points in drawn:
            print(to_json(points))


def first_line(path: Path) -> Points:
    with path.open("rb") as file:
        for points in read_json_lines(file, str(path)):
            return points
    raise ValueError(f"{path}: empty: there is no line to go on from")


def draw(lines: Sequence[Points], out: Path, animated: bool) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".svg":
        write_atomically(out, animated_svg(lines) if animated else svg(lines))
    else:
        drawn = matplotlib_figures("hmrnn.domains.strokes.figures").raster_figure(lines)
        write_figure(drawn, out)


def segment(asked: flags.Segment) -> None:
    """Prints the segments of each line of a file of JSON lines."""
    directory, file, form, reading = asked.run, asked.file, asked.format, asked.reading
    model = load_model(StrokeModel, directory, reading)
    if form != "text" and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's is: these are files
    found = segmented(model, file, asked.vectors)
    if form == "json":
        write_json(found)
        return
    if form == "html":
        print(segments_page(found, printable(f"{Path(file).name}, read by {directory.name}")))
        return
    for number, line in enumerate(found, 1):
        layers = "".join(f"segments of layer {l + 1}: {len(own)}; " for l, own in enumerate(line.layers))
        strokes, done = len(to_strokes(line.points)), line.updates
        print(
            f"line {number}: points: {len(line.points)}; pen strokes: {strokes}; {layers}"
            f"{' / '.join(map(str, done.layers))} updates of {done.all:,} ({done.saved:.0%} saved)"
        )


def segmented(model: StrokeModel, file: str, vectors: bool = False) -> Iterator[StrokeSegmentation]:
    """Each line of a file, - is standard input, as it is read."""
    with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as stream:
        number = 0
        for number, points in enumerate(read_json_lines(stream, "standard input" if file == "-" else file), 1):  # noqa: B007
            yield model.segment(points, vectors=vectors)
    if number == 0:
        raise ValueError(f"{file}: empty: there is nothing to segment")


def write_json(found: Iterator[StrokeSegmentation]) -> None:
    """One JSON object, a line of handwriting a line, written as they are read. docs/strokes.md tells its fields."""
    found = chain([next(found)], found)  # where there is nothing, nothing is written
    sys.stdout.write(f'{{"format_version": {FORMAT_VERSION}, "unit": "point", "lines": [')
    separator = "\n"
    for line in found:
        content = line_as_json(len(line.points), line.layers, line.updates)
        sys.stdout.write(separator + json.dumps(finite(content)))
        sys.stdout.flush()
        separator = ",\n"
    sys.stdout.write("\n]}\n")


def segments_page(found: Iterator[StrokeSegmentation], title: str) -> str:
    """Each line, coloured by its pen strokes and by the segments of each layer."""
    drawings, points = [], 0
    for number, line in enumerate(found, 1):
        points += len(line.points)
        if points > MOST_ON_PAGE:
            raise ValueError(f"a page shows at most {MOST_ON_PAGE:,} points, and these lines have more")
        for name, ends in pieces(line):
            drawings.append((f"line {number}, {name}", coloured_svg(line.points, ends)))
    return strokes_page(title, drawings)


def pieces(line: StrokeSegmentation) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """By what a line can be coloured: a name, and where a piece ends."""
    layers = [(f"segments of layer {l + 1} (z{l + 1})", z) for l, z in enumerate(line.steps.z.numpy().T)]
    return [("pen strokes", line.points[:, 2] > 0.5), *layers[::-1]]


def score(asked: flags.Score) -> None:
    """Tells how well the boundaries of each layer fit the strokes of the pen and, where they are known, letters and
    words."""
    directory = asked.run
    model = load_model(StrokeModel, directory, asked.reading)
    read = lines_to_evaluate(directory, asked.data, asked.split, asked.data_dir)
    known = [{"stroke": line[:, 2] > 0.5} for line in read.lines]
    if read.config.data == "builtin":
        written = write_lines(read.config.writing)
        for own, number in zip(known, read.numbers, strict=True):
            own.update(letter=written[number].letters, word=written[number].words)
    lines = tqdm(read.lines, leave=False, unit="line", disable=not show_bar(True))
    z = np.concatenate([model.segment(line).steps.z.numpy() for line in lines])
    if z.shape[1] == 0:
        raise ValueError(f"{directory}: a {model.config.model} has no boundaries")
    what = f"{read.config.data}, {read.split}"
    tell_scores(directory, what, len(z), "points", scores_of(z, from_lines(known)), asked.json, asked.all)


def figure(asked: flags.Figure) -> None:
    """Draws a line of the validation part as a run sees it, and how runs were trained."""
    directories, out, line = asked.runs, asked.out, asked.line
    drawing = matplotlib_figures("hmrnn.domains.strokes.figures")
    kinds: Sequence[str] = (asked.kind,)
    if asked.kind == "all":
        kinds = FIGURES[1:] if asked.strokes else FIGURES
    as_file = one_file(out, kinds)
    made = {}
    if "training" in kinds:
        made["training"] = draw_training(directories)
    if "segments" in kinds or "density" in kinds:
        model = load_model(StrokeModel, directories[0], asked.reading)
        lines = lines_to_evaluate(directories[0], None, "valid", asked.data_dir).lines
        if not 1 <= line <= len(lines):
            raise UsageError(f"--line must lie between 1 and {len(lines)}, the number of lines to validate")
        points = lines[line - 1]
        if "segments" in kinds:
            made["segments"] = drawing.segments_figure(pieces(model.segment(points)), points)
        if "density" in kinds:
            made["density"] = drawing.density_figure(points, *predicted_density(model, points))
    save_figures(made, out, as_file)
