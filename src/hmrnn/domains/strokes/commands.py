"""What the commands tell of runs on pen strokes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hmrnn.cli.common import (
    check_boundaries,
    draw_figures,
    matplotlib_figures,
    output,
    print_json,
    tell_written,
    write_figure,
)
from hmrnn.config import STANDARD_INPUT
from hmrnn.domains.strokes import flags
from hmrnn.domains.strokes.config import WORDS, StrokeDataConfig
from hmrnn.domains.strokes.data.lines import in_parts, lines_of_file, load_strokes
from hmrnn.domains.strokes.data.points import Points, read_json_lines, to_json, to_strokes
from hmrnn.domains.strokes.data.writing import write_lines
from hmrnn.domains.strokes.density import predicted_density
from hmrnn.domains.strokes.drawing import STYLE, animated_svg, coloured_svg, pieces, svg
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.domains.vectors.commands import (
    MOST_ON_PAGE,
    Source,
    generated,
    segments_line,
    tell_boundaries,
    tell_likelihood,
    title_of,
)
from hmrnn.domains.vectors.structure import LineSegmentation
from hmrnn.domains.vectors.written import write_json
from hmrnn.errors import UsageError
from hmrnn.show.drawings import drawings_page
from hmrnn.storage.files import make_folders, writing_out
from hmrnn.storage.pretrained import load_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = ("training", "segments", "density")
FIGURES_MODULE = "hmrnn.domains.strokes.figures"


SOURCE = Source(
    StrokeDataConfig,
    StrokeDataConfig.elsewhere,
    load_strokes,
    lambda config: lines_of_file(Path(config.data)),
    in_parts,
)


def evaluate(asked: flags.Evaluate) -> None:
    """Tells the average log-likelihood of a line, as the paper does, and of a point."""
    model = load_model(StrokeModel, asked.run, asked.reading)
    read = SOURCE.lines(asked.run, asked.data, asked.split, asked.data_dir)
    tell_likelihood(asked, model, read, WORDS, asked.sigma_floor)


def generate(asked: flags.Generate) -> None:
    """Lets a model write lines: into a drawing, or as JSON lines on standard output."""
    out = asked.out
    if out is not None and out.suffix.lower() == ".png":
        matplotlib_figures(FIGURES_MODULE)  # now, not when all is written
    model = load_model(StrokeModel, asked.run, asked.reading)
    given = None if asked.prime is None else first_line(asked.prime)
    primed = 0 if given is None else len(given)
    made = generated(asked, model, given, asked.lines)
    drawn = [np.array([point.point for point in line], dtype=np.float32) for line in made]
    if out is not None:
        draw(drawn, out, asked.animated, primed)
    if asked.json:
        told = [
            {
                "strokes": [stroke.tolist() for stroke in to_strokes(points)],
                "boundaries": [[int(fires) for fires in p.z] for p in line],
            }
            for points, line in zip(drawn, made, strict=True)
        ]
        print_json({"primed": primed, "lines": told, "out": out})
    elif out is not None:
        tell_written(out)
    else:
        for points in drawn:
            print(to_json(points))


def first_line(path: Path) -> Points:
    with path.open("rb") as file:
        for points in read_json_lines(file, str(path)):
            return points
    raise ValueError(f"{path}: empty: there is no line to go on from")


def draw(lines: Sequence[Points], out: Path, animated: bool, given: int) -> None:
    make_folders(out.parent)
    if out.suffix.lower() == ".svg":
        with writing_out(out) as file:
            file.write((animated_svg(lines, given) if animated else svg(lines, given)).encode())
    else:
        drawn = matplotlib_figures(FIGURES_MODULE).raster_figure(lines, given)
        write_figure(drawn, out)


def segment(asked: flags.Segment) -> None:
    """Writes the segments of each line of files of JSON lines."""
    model = load_model(StrokeModel, asked.run, asked.reading)
    check_boundaries(asked.run, model)
    found = segmented(model, asked.files, asked.vectors)
    with output(asked.out, is_file=asked.format != "text") as out:
        if asked.format == "json":
            write_json((({}, line) for line in found), WORDS, out)
        elif asked.format == "html":
            out.write(segments_page(found, title_of(asked)) + "\n")
        else:
            for number, line in enumerate(found, 1):
                strokes = len(to_strokes(line.points))
                counts = segments_line(line)
                out.write(f"line {number}: points: {len(line.points)}; pen strokes: {strokes}; {counts}\n")


def segmented(model: StrokeModel, files: Sequence[Path], vectors: bool = False) -> Iterator[LineSegmentation]:
    """Each line of the files, - is standard input, as it is read."""
    for file in files:
        given = file == STANDARD_INPUT
        name, number = "standard input" if given else str(file), 0
        with nullcontext(sys.stdin.buffer) if given else file.open("rb") as stream:
            for number, points in enumerate(read_json_lines(stream, name), 1):  # noqa: B007
                yield model.segment(points, vectors=vectors)
        if number == 0:
            raise ValueError(f"{name}: empty: there is nothing to segment")


def segments_page(found: Iterator[LineSegmentation], title: str) -> str:
    """Each line, coloured by its pen strokes and by the segments of each layer."""
    drawings, points = [], 0
    for number, line in enumerate(found, 1):
        points += len(line.points)
        if points > MOST_ON_PAGE:
            raise ValueError(f"a page shows at most {MOST_ON_PAGE:,} points, and these lines have more")
        for name, ends in pieces(line):
            drawings.append((f"line {number}, {name}", coloured_svg(line.points, ends)))
    return drawings_page(title, drawings, STYLE)


def score(asked: flags.Score) -> None:
    """Tells how well the boundaries of each layer fit the strokes of the pen and, where they are known, letters and
    words."""
    model = load_model(StrokeModel, asked.run, asked.reading)
    check_boundaries(asked.run, model)
    read = SOURCE.lines(asked.run, asked.data, asked.split, asked.data_dir)
    known = [{"stroke": line[:, 2] > 0.5} for line in read.lines]
    if read.config.data == "builtin":
        written = write_lines(read.config.writing)
        for own, number in zip(known, read.numbers, strict=True):
            own.update(letter=written[number].letters, word=written[number].words)
    tell_boundaries(asked, model, read, known, WORDS)


def figure(asked: flags.Figure) -> None:
    """Draws a line of the validation part as a run sees it, and how runs were trained."""
    drawing = matplotlib_figures(FIGURES_MODULE)
    kinds: Sequence[str] = (asked.kind,)
    if asked.kind == "all":
        kinds = FIGURES[1:] if asked.strokes else FIGURES

    def own(kinds: Sequence[str]) -> dict[str, Figure]:
        model = load_model(StrokeModel, asked.runs[0], asked.reading)
        lines = SOURCE.lines(asked.runs[0], None, "valid", asked.data_dir).lines
        if not 1 <= asked.line <= len(lines):
            raise UsageError(f"--line must lie between 1 and {len(lines)}, the number of lines to validate")
        points = lines[asked.line - 1]
        made = {}
        if "segments" in kinds:
            made["segments"] = drawing.segments_figure(pieces(model.segment(points)), points)
        if "density" in kinds:
            made["density"] = drawing.density_figure(points, *predicted_density(model, points))
        return made

    draw_figures(asked, kinds, own)
