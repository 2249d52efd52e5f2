"""What the commands of all domains share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

from hmrnn.cli import flags
from hmrnn.config import DataConfig, RunConfig
from hmrnn.domains import DOMAINS
from hmrnn.errors import UsageError
from hmrnn.printable import for_stream, printable
from hmrnn.storage.files import descriptor_of, finite, make_folders, writing_out
from hmrnn.structure.scores import Scores, score_summary, score_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hmrnn.storage.pretrained import Pretrained

STANDARD_OUTPUT = 1  # its descriptor


def matplotlib_figures(module: str) -> Any:
    """A module that draws, if what it needs is there."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"figures need the package matplotlib: pip install 'hmrnn[show]' ({error})") from None


def draw_figures(
    asked: flags.Figure, kinds: Sequence[str], own: Callable[[Sequence[str]], Mapping[str, Figure]]
) -> None:
    """Draws figures of these kinds: how runs were trained, and those of `own`, which takes the other kinds."""
    as_file = one_file(asked.out, kinds)
    if len(asked.runs) > 1 and "training" not in kinds:
        raise UsageError(
            f"{' and '.join(kinds)} can be drawn of one run, and these are {len(asked.runs)}: --kind training draws "
            "several"
        )
    others = [kind for kind in kinds if kind != "training"]
    made: dict[str, Figure] = {}
    runs = list(asked.runs) if "training" in kinds else []
    for run in asked.runs if runs and others else ():
        if not os.path.lexists(run / "metrics.jsonl"):
            print(f"{printable(run)}: no figure of its training, since metrics.jsonl is missing", file=sys.stderr)
            runs.remove(run)
    if runs:
        made["training"] = draw_training(runs)
    save_figures({**made, **(own(others) if others else {})}, asked.out, as_file)


def draw_training(directories: Sequence[Path]) -> Figure:
    """How runs were trained."""
    from hmrnn.training.checkpoint import load_run
    from hmrnn.training.history import read_metrics

    figures = matplotlib_figures("hmrnn.show.training")
    runs = {directory: load_run(directory, files=False).config for directory in directories}
    check_comparable(runs)
    records = {str(directory): read_metrics(directory) for directory in directories}
    run = next(iter(runs.values()))
    return figures.training_figure(records, DOMAINS[run.kind].measure_of(run))  # type: ignore[no-any-return]


def check_comparable(runs: Mapping[Path, RunConfig]) -> None:
    """Refuses runs whose losses are of different things."""
    kinds = {f"{run.kind} ({DOMAINS[run.kind].measure_of(run).text})": directory for directory, run in runs.items()}
    if len(kinds) > 1:
        told = " and ".join(f"{directory} is a run on {kind}" for kind, directory in kinds.items())
        raise UsageError(f"{told}: their losses do not compare")


def one_file(out: Path, kinds: Sequence[str]) -> bool:
    """Whether a figure's --out is a file, and not a folder."""
    ending = out.suffix.lower()
    is_file = not out.is_dir() and (out.exists() or ending[1:2].isalpha())  # figures-0.5 is a folder
    if is_file and ending not in flags.FIGURE_ENDINGS:
        raise UsageError(f"--out {out} is no folder, and its name does not end in {', '.join(flags.FIGURE_ENDINGS)}")
    if is_file and len(kinds) > 1:
        raise UsageError(f"--out {out} is one file: say with --kind which figure; or name a folder for all of them")
    return is_file


def save_figures(figures: Mapping[str, Figure], out: Path, as_file: bool) -> None:
    """Into the one file, or each as pdf, svg and png into the folder."""
    make_folders(out.parent if as_file else out)
    for name, drawn in figures.items():
        for path in [out] if as_file else [out / f"{name}{ending}" for ending in flags.FIGURE_ENDINGS]:
            write_figure(drawn, path)
            tell_written(path)


def write_figure(drawn: Figure, path: Path) -> None:
    """In the format that its ending names."""
    content = BytesIO()
    drawn.savefig(content, format=path.suffix[1:].lower(), dpi=200)
    with writing_out(path) as file:
        file.write(content.getvalue())


def check_boundaries(run: Path, model: Pretrained) -> None:
    """Refuses a model that finds no segments."""
    if model.rnn.state_sizes[2] == 0:
        layers = "" if model.config.model == "lstm" else " of one layer"
        raise ValueError(f"{run}: this {model.config.model}{layers} has no boundaries")


def tell_own(data: DataConfig, split: str, run: Path) -> None:
    """That the data of a run was found at another place."""
    part = "all of it" if split == "all" else f"its {split} part"
    print(printable(f"{data.data} is what {run} was trained on: {part} is read"), file=sys.stderr)


def tell_scores(asked: flags.Score, what: str, count: int, unit: str, scores: Scores) -> None:
    """Of `count` symbols or points: a line for each layer, and with --all the whole table."""
    if not asked.json:
        table = f"\n{score_table(scores)}" if asked.all else "\n--all shows every score and baseline"
        print(f"{printable(what)}: {count:,} {unit}\n{score_summary(scores)}{table}")
        return
    plain = {
        layer: {name: {how: asdict(one) for how, one in rows.items()} for name, rows in conventions.items()}
        for layer, conventions in scores.items()
    }
    print_json({"run": str(asked.run), "data": what, unit: count, "scores": plain})


@contextmanager
def output(out: Path | None, is_file: bool = True) -> Iterator[TextIO]:
    """Where an answer is written: standard output, or a file that is there once it is whole. A file is UTF-8, whatever
    the terminal's encoding is."""
    if out is None:
        if is_file and isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    make_folders(out.parent)
    with writing_out(out) as file:
        text = TextIOWrapper(cast(BinaryIO, file), encoding="utf-8", errors="replace", newline="")
        yield text
        text.detach()  # flushes
    tell_written(out)


def tell_written(out: Path) -> None:
    """The name of what was written, unless it was written to where the name would go."""
    if descriptor_of(out) != STANDARD_OUTPUT:
        print(for_stream(str(out)))


def print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(finite(answer), default=str))
