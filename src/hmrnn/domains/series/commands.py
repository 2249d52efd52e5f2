"""What the commands tell of runs on series."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from hmrnn.domains.series import flags
from hmrnn.domains.series.config import SERIES_SETS, WORDS, SeriesDataConfig
from hmrnn.domains.series.data.sequences import (
    Known,
    SeriesData,
    SeriesLines,
    Values,
    in_parts,
    lines_of,
    load_series,
)
from hmrnn.domains.series.drawing import STYLE, series_svg
from hmrnn.domains.series.model import SeriesModel
from hmrnn.domains.vectors.commands import (
    MOST_ON_PAGE,
    Source,
    ToRead,
    generated,
    segments_line,
    tell_boundaries,
    tell_likelihood,
    title_of,
)
from hmrnn.domains.vectors.data import LineData
from hmrnn.domains.vectors.structure import LineSegmentation
from hmrnn.domains.vectors.written import write_json
from hmrnn.errors import SettingError, UsageError
from hmrnn.printable import for_stream, printable
from hmrnn.show.drawings import drawings_page
from hmrnn.storage.files import make_folders, writing_out
from hmrnn.storage.pretrained import load_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = ("training", "segments")
FIGURES_MODULE = "hmrnn.domains.series.figures"
SHOWN = 200  # steps of a figure


def to_read(model: SeriesModel, asked: flags.OfSeries | flags.Figure, **which: Any) -> ToRead[SeriesDataConfig]:
    """The sequences that a command names, with the columns of the model."""

    def other(config: SeriesDataConfig, data: str) -> SeriesDataConfig:
        ends = getattr(asked, "ends", None)
        return replace(config.elsewhere(data), ends=ends or config.ends)

    def needed(config: SeriesDataConfig) -> SeriesDataConfig:
        return replace(config, ends=None) if isinstance(asked, flags.Evaluate) else config  # it has no use for them

    def load(config: SeriesDataConfig, data_dir: Path | None) -> SeriesData:
        return load_series(replace(needed(config), columns=model.columns), data_dir)

    def whole(config: SeriesDataConfig) -> SeriesLines:
        return undivided(model, needed(config))

    source = Source(SeriesDataConfig, other, load, whole, in_parts)
    return source.lines(data_dir=asked.data_dir, **which)


def undivided(model: SeriesModel, config: SeriesDataConfig) -> SeriesLines:
    """All of a file, in the columns that the model knows."""
    return lines_of(replace(config, columns=model.columns))


def in_file(model: SeriesModel, path: Path) -> SeriesLines:
    """The same of a path, which may be called like a set that is known by its name."""
    name = str(path)
    return undivided(model, SeriesDataConfig(f"./{name}" if name in SERIES_SETS else name))


def known_in(read: ToRead[SeriesDataConfig]) -> list[Known]:
    """The ends that are known in each sequence."""
    lines = read.data.lines if isinstance(read.data, LineData) else read.data
    assert isinstance(lines, SeriesLines)
    return [lines.known_of(number) for number in read.numbers]


def evaluate(asked: flags.Evaluate) -> None:
    """Tells the average log-likelihood of a sequence, and of a step."""
    model = load_model(SeriesModel, asked.run, asked.reading)
    read = to_read(model, asked, directory=asked.run, data=asked.data, split=asked.split)
    tell_likelihood(asked, model, read, WORDS)


def generate(asked: flags.Generate) -> None:
    """Lets a model make a sequence: as CSV, or as a picture."""
    out = asked.out
    drawing = matplotlib_figures(FIGURES_MODULE) if out is not None and out.suffix.lower() != ".csv" else None
    model = load_model(SeriesModel, asked.run, asked.reading)
    given = None if asked.prime is None else in_file(model, asked.prime).line(0)
    primed = 0 if given is None else len(given)
    [made] = generated(asked, model, given)
    if given is None:
        made = made[1:]  # the step of which all is missing
    values = np.array([step.point for step in made], dtype=np.float32).reshape(-1, len(model.columns))
    z = np.array([step.z for step in made], dtype=bool).reshape(len(made), model.rnn.state_sizes[2])
    if out is not None:
        make_folders(out.parent)
        if drawing is None:
            with writing_out(out) as file:
                file.write(as_csv(model.columns, values).encode())
        else:
            write_figure(drawing.series_figure(model.columns, values, z, primed), out)
    if asked.json:
        boundaries = z.astype(int).tolist()
        steps = {"columns": model.columns, "steps": values.tolist(), "boundaries": boundaries}
        print_json({"primed": primed, **steps, "out": out})
    elif out is not None:
        tell_written(out)
    else:
        sys.stdout.write(for_stream(as_csv(model.columns, values)))


def as_csv(columns: Sequence[str], values: Values) -> str:
    """With a header; a missing number is an empty field."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(columns)
    rows.writerows([["" if np.isnan(value) else f"{value:.7g}" for value in step] for step in values.tolist()])
    return written.getvalue()


def segment(asked: flags.Segment) -> None:
    """Prints the segments of each sequence of a file."""
    model = load_model(SeriesModel, asked.run, asked.reading)
    check_boundaries(asked.run, model)
    read = [in_file(model, file) for file in asked.files]
    found = segmented(model, read, asked.vectors)
    with output(asked.out, is_file=asked.format != "text") as out:
        if asked.format == "json":
            write_json((({"name": name}, line) for name, line in found), WORDS, out)
        elif asked.format == "html":
            if sum(len(lines.points) for lines in read) > MOST_ON_PAGE:
                raise ValueError(f"a page shows at most {MOST_ON_PAGE:,} steps, and these sequences have more")
            drawings = [(printable(name), series_svg(model.columns, line)) for name, line in found]
            out.write(drawings_page(title_of(asked), drawings, STYLE) + "\n")
        elif asked.format == "csv":
            rows = csv.writer(out, lineterminator="\n")
            rows.writerow(["sequence", "layer", "start", "end", "closed"])
            for name, line in found:
                for own in line.layers:
                    rows.writerows([[printable(name), s.layer, s.start, s.end, int(s.closed)] for s in own])
        else:
            for name, line in found:
                out.write(f"{printable(name)}: steps: {len(line.points)}; {segments_line(line)}\n")


def segmented(
    model: SeriesModel, read: Sequence[SeriesLines], vectors: bool = False
) -> Iterator[tuple[str, LineSegmentation]]:
    for lines in read:
        for number, name in enumerate(lines.names):
            yield name, model.segment(lines.line(number), vectors=vectors)


def score(asked: flags.Score) -> None:
    """Tells how well the boundaries of each layer fit the known ends."""
    model = load_model(SeriesModel, asked.run, asked.reading)
    check_boundaries(asked.run, model)
    read = to_read(model, asked, directory=asked.run, data=asked.data, split=asked.split)
    known = known_in(read)
    if not known[0]:
        raise SettingError(
            "{data}: it is not known where segments end: {0} names the column that is 1 where one does",
            "ends",
            data=read.config.data,
        )
    tell_boundaries(asked, model, read, known, WORDS, asked.margin)


def figure(asked: flags.Figure) -> None:
    """Draws a sequence of the validation part as a run sees it, and how runs were trained."""
    drawing = matplotlib_figures(FIGURES_MODULE)
    kinds = FIGURES if asked.kind == "all" else (asked.kind,)
    draw_figures(asked, kinds, lambda _: {"segments": segments_figure(asked, drawing)})


def segments_figure(asked: flags.Figure, drawing: Any) -> Figure:
    model = load_model(SeriesModel, asked.runs[0], asked.reading)
    read = to_read(model, asked, directory=asked.runs[0], data=None, split="valid")
    if not 1 <= asked.sequence <= len(read.lines):
        raise UsageError(f"--sequence must lie between 1 and {len(read.lines)}, those to validate")
    values = read.lines[asked.sequence - 1]
    shown = slice(*(asked.steps or (0, SHOWN)))
    if shown.start >= len(values):
        raise UsageError(f"--steps must begin below {len(values)}, the number of steps of the sequence")
    steps = model.segment(values).steps
    known = {name: ends[shown] for name, ends in known_in(read)[asked.sequence - 1].items()}
    drawn: Figure = drawing.series_figure(
        model.columns,
        values[shown],
        steps.z.numpy()[shown],
        first=shown.start,
        surprisal=steps.surprisal.numpy()[shown],
        known=known,
    )
    return drawn
