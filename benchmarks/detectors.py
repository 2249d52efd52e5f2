"""A study of the boundary detectors: which settings keep detectors active and find structure, whatever the seed.

    python benchmarks/detectors.py --out runs/detectors      # everything: hours; it goes on where it stopped
    python benchmarks/detectors.py --out runs/detectors --variants paper recipe --corpora planted --seeds 0 1

Small models, one for each variant, corpus and seed, as many at a time as there are cores. What came of each is a line
of detectors.jsonl beside this file (--results names another), and is not measured again: whoever changes how a variant
is trained, here or in the library, deletes its lines. Models in the making, and table.md and figure.svg of all results
so far, are in --out. A detector is active if it fires on 2 to 90 % of the symbols; a model, if all its detectors do and
each fires less often than the one below.

The recipe was chosen by looking at the corpora of the study. Two more, which are read only if they are named, were not
looked at: `text8`, and `others`, planted hierarchies with other words and phrases for each seed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detector_variants import VARIANTS, Variant
from matplotlib.figure import Figure
from tqdm import tqdm

from hmrnn.config import TrainingConfig
from hmrnn.domains.text.config import (
    PlantedConfig,
    TextDataConfig,
    TextModelConfig,
    TextRunConfig,
)
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.data.planted import planted
from hmrnn.domains.text.data.store import TextData
from hmrnn.domains.text.evaluation import bits_per_character
from hmrnn.domains.text.known import at_separators, from_planted
from hmrnn.domains.text.model import TextModel
from hmrnn.domains.text.reading import PIECE
from hmrnn.domains.text.structure import follow
from hmrnn.show.style import WITH_BLACK as COLOURS
from hmrnn.storage.files import write_atomically
from hmrnn.structure.operations import updates
from hmrnn.structure.scores import scores_of
from hmrnn.training.checkpoint import (
    SavedRun,
    load_progress,
    load_run,
    locked,
    resumable,
)
from hmrnn.training.distributed import Processes
from hmrnn.training.run import carry_out, prepare

ACTIVE = (0.02, 0.90)
SCORED = 50_000  # symbols of the test part
MOST_READ = 500_000  # symbols of the test part, for bits
CORPORA = ("planted", "ptb", "builtin")
HELD_OUT = ("others", "text8")
SYMBOLS = 2_000_000  # read in training
RESULTS = Path(__file__).with_suffix(".jsonl")
Model = tuple[str, str, int]  # corpus, variant, seed


# One model


def settings(variant: Variant, corpus: str, seed: int, symbols: int) -> tuple[TextRunConfig, int]:
    """Of a run, and its updates."""
    data = TextDataConfig(corpus)
    if corpus == "others":
        data = TextDataConfig("planted", planted=PlantedConfig(seed=1 + seed))
    model = TextModelConfig(hidden_sizes=(128,) * 3, output_size=128)
    training = TrainingConfig(
        batch_size=32, learning_rate=0.004, cooldown=0.5, epochs=1e6, patience=99, seed=seed, validate_every=1e6
    )
    updates = symbols // (training.batch_size * training.window)
    run = TextRunConfig(data, replace(model, **variant.model), replace(training, **variant.training))
    return run, updates


def settings_told(model: Model, symbols: int) -> dict[str, Any]:
    """What a result names of how its model was trained: the settings that are other than the library's defaults."""
    corpus, name, seed = model
    run, updates = settings(VARIANTS[name], corpus, seed, symbols)
    told = {"updates": updates}
    for part in (run.model, run.training):
        own = {f.name: getattr(part, f.name) for f in fields(part) if f.name not in ("seed", "epochs")}
        told |= {setting: value for setting, value in own.items() if value != getattr(type(part)(), setting)}
    return dict(json.loads(json.dumps(told)))


def train(model: Model, symbols: int, out: Path, data_dir: Path | None) -> dict[str, Any]:
    """Trains one model, or goes on with it, and tells what came of it."""
    torch.set_num_threads(1)
    corpus, name, seed = model
    variant = VARIANTS[name]
    run, updates = settings(variant, corpus, seed, symbols)
    data = load_text(run.data, data_dir)
    per_epoch = prepare(SavedRun(run, data.fingerprint, None), data, "auto", Processes()).task.epochs.first
    run = replace(run, training=replace(run.training, epochs=updates / per_epoch))
    training = prepare(SavedRun(run, data.fingerprint, data_dir), data, "auto", Processes())
    training.task.valid = training.task.valid[:1000]  # at the end, and nobody looks at it
    if variant.start is not None:
        variant.start(training)
    own = training.task.loss

    def loss(update: int, generator: Any) -> Any:
        if variant.every_update is not None:
            variant.every_update(training, update)
        return own(update, generator) if variant.loss is None else variant.loss(training.task, own, update, generator)

    training.task.loss = loss
    out.mkdir(parents=True, exist_ok=True)
    progress = load_progress(out) if resumable(out) is not None else None
    if progress is not None and load_run(out).config != run:
        sys.exit(f"{out}: this model was begun with other settings; choose another --out")
    outcome = carry_out(training, progress, out, tensorboard=False, asked_for=False)
    if outcome.update < updates:
        sys.exit(f"{out}: {outcome.ended}, after update {outcome.update} of {updates}")
    if variant.every_update is not None:
        variant.every_update(training, updates - 1)  # if there was none to make any more
    return measured(training.task.model, run, data)


def measured(model: TextModel, run: TextRunConfig, data: TextData) -> dict[str, Any]:
    """Bits per character of the test part, firing rates, and the F1 of each layer by the convention that fits best."""
    test = data.split("test")
    answer: dict[str, Any] = {"bits": bits_per_character(model, test[:MOST_READ], 64)}
    if run.model.model != "hm-lstm":
        return answer
    numbers = torch.from_numpy(test[:SCORED].astype(np.int64))
    steps = list(follow(model, numbers.split(PIECE)))
    z = torch.cat([part.z for part in steps]).numpy()
    made = run.data.data == "planted"
    if made:
        start = data.splits["test"][0]
        known = from_planted(planted(run.data.planted), start, start + len(numbers))
    else:
        known = at_separators(model.symbols.text(numbers.tolist()))
    answer["rates"] = z.mean(0).tolist()
    answer["events"] = [n / len(z) for n in updates(torch.cat([part.operations for part in steps])).layers]
    for layer, scored in scores_of(z, known).items():
        # What was planted tells words and phrases apart, one for each detector; other texts tell words.
        unit = "word" if layer == "layer 1" else "phrase"
        kinds = {name: kind for name, kind in scored.items() if not made or name.endswith(unit)}
        best = max(kinds, key=lambda kind: kinds[kind]["found"].f1)
        answer[layer] = {"f1": kinds[best]["found"].f1, "random": kinds[best]["random"].f1, "where": best}
    return answer


def active(rates: list[float]) -> bool:
    falls = all(below > above for below, above in pairwise(rates))
    return falls and all(ACTIVE[0] <= rate <= ACTIVE[1] for rate in rates)


# All of them


class Results:
    """A file with a line for each model. Those that were trained with other settings stay there, and do not count."""

    def __init__(self, path: Path, symbols: int) -> None:
        self.path, self.symbols = path, symbols
        self.models: dict[Model, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            told = json.loads(line)
            model = (told["corpus"], told["variant"], told["seed"])
            if model[1] in VARIANTS and told["settings"] == settings_told(model, symbols):
                self.models[model] = told["result"]

    def add(self, model: Model, result: dict[str, Any]) -> None:
        self.models[model] = result
        corpus, name, seed = model
        told = {"corpus": corpus, "variant": name, "seed": seed, "result": result}
        line = json.dumps({**told, "settings": settings_told(model, self.symbols)})
        write_atomically(self.path, (self.path.read_text() if self.path.exists() else "") + line + "\n")

    def by_variant(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """By corpus and variant, what came of each seed."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for corpus in (*CORPORA, *HELD_OUT):
            for name in VARIANTS:
                own = [result for model, result in self.models.items() if model[:2] == (corpus, name)]
                if own:
                    found[corpus, name] = own
        return found


def table(found: Mapping[tuple[str, str], list[dict[str, Any]]]) -> str:
    lines = [
        "| corpus | variant | seeds | bits | active | rates | events | F1, layer 1 | random | F1, layer 2 | random |",
        "|" + "---|" * 11,
    ]
    mean = statistics.mean
    for (corpus, name), own in found.items():
        bits = f"{mean(r['bits'] for r in own):.3f}"
        if "rates" not in own[0]:
            lines.append(f"| {corpus} | {name} | {len(own)} | {bits} | | | | | | | |")
            continue
        rates, events = (
            " / ".join(f"{mean(values):.2f}" for values in zip(*(r[name] for r in own), strict=True))
            for name in ("rates", "events")
        )
        kept = sum(active(r["rates"]) for r in own)
        first, second = ([r[f"layer {l}"] for r in own] for l in (1, 2))
        scores = [r["f1"] for r in first]
        f1 = f"{mean(scores):.2f} ({min(scores):.2f} to {max(scores):.2f})"
        lines.append(
            f"| {corpus} | {name} | {len(own)} | {bits} | {kept} of {len(own)} | {rates} | {events} | {f1} | "
            f"{mean(r['random'] for r in first):.2f} | {mean(r['f1'] for r in second):.2f} | "
            f"{mean(r['random'] for r in second):.2f} |"
        )
    return "\n".join(lines) + "\n"


def summary(found: Mapping[tuple[str, str], list[dict[str, Any]]]) -> str:
    """A table of all models whose detectors are not guided, corpus by corpus."""
    lines = [
        "| corpus | models, not guided | active | F1, layer 1: mean, best | correlation of its rate with bits |",
        "|" + "---|" * 5,
    ]
    free = [name for name in VARIANTS if VARIANTS[name].training.get("guided_updates") == 0]
    for corpus in dict.fromkeys(corpus for corpus, _ in found):
        own = [r for name in free for r in found.get((corpus, name), [])]
        if len(own) >= 10:  # fewer tell nothing
            kept = sum(active(r["rates"]) for r in own)
            scores = [r["layer 1"]["f1"] for r in own]
            together = statistics.correlation([r["rates"][0] for r in own], [r["bits"] for r in own])
            f1 = f"{statistics.mean(scores):.2f}, {max(scores):.2f}"
            lines.append(f"| {corpus} | {len(own)} | {kept} | {f1} | {together:.2f} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def figure(found: Mapping[tuple[str, str], list[dict[str, Any]]], path: Path) -> None:
    """F1 of the first layer, rates and bits: a row for each variant, a point for each seed."""
    names: dict[str, list[str]] = {}  # of each corpus
    for corpus, name in found:
        names.setdefault(corpus, []).append(name)
    heights = [len(own) + 3 for own in names.values()]
    drawn = Figure(figsize=(12, 0.21 * sum(heights)), layout="constrained")
    grid = drawn.subplots(len(names), 3, sharey="row", squeeze=False, height_ratios=heights)
    for panels, (corpus, rows) in zip(grid, names.items(), strict=True):
        f1, rates, bits = panels
        models = [(y, r) for y, name in enumerate(rows) for r in found[corpus, name]]
        detect = [(y, r) for y, r in models if "rates" in r]
        f1.scatter([r["layer 1"]["random"] for _, r in detect], [y for y, _ in detect], marker="|", color="#888888")
        dots(f1, detect, COLOURS[0], lambda r: r["layer 1"]["f1"])
        dots(rates, detect, COLOURS[1], lambda r: r["rates"][1])
        dots(rates, detect, COLOURS[0], lambda r: r["rates"][0])
        dots(bits, models, "#000000", lambda r: r["bits"])
        f1.set_title(f"{corpus}: F1 of layer 1 (hollow: not active; |: random)", fontsize=9)
        rates.set_title(f"{corpus}: rates of layers 1 (blue) and 2", fontsize=9)
        bits.set_title(f"{corpus}: bits per character", fontsize=9)
        f1.set_yticks(range(len(rows)), rows)
        f1.set_ylim(len(rows) - 0.5, -0.5)  # from the top down, as in the table
        for axes in panels:
            axes.grid(alpha=0.3)
        for axes in (f1, rates):
            axes.set_xlim(-0.03, 1.03)
    drawn.savefig(path)


def dots(axes: Any, models: list[tuple[int, dict[str, Any]]], colour: str, value: Callable[[Any], float]) -> None:
    """A point for each model in its row, hollow where its detectors are not active. One without detectors is filled."""
    faces = [colour if active(r.get("rates", [])) else "none" for _, r in models]
    axes.scatter([value(r) for _, r in models], [y for y, _ in models], 25, facecolors=faces, edgecolors=colour)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--corpora", nargs="+", default=list(CORPORA), choices=(*CORPORA, *HELD_OUT))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--symbols", type=int, default=SYMBOLS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # a model in a process of its own
    asked = parser.parse_args()
    if asked.one:
        (corpus,), (name,), (seed,) = asked.corpora, asked.variants, asked.seeds
        model = (corpus, name, seed)
        print(json.dumps(train(model, asked.symbols, folder(asked.out, model), asked.data_dir)))
        return
    results = Results(asked.results, asked.symbols)
    jobs = [(c, v, s) for v in asked.variants for c in asked.corpora for s in asked.seeds]
    with locked(asked.out):
        failed = run_all([job for job in jobs if job not in results.models], results, asked)
    found = results.by_variant()
    if found:
        told = table(found) + "\n" + summary(found)
        (asked.out / "table.md").write_text(told)
        figure(found, asked.out / "figure.svg")
        print(told)
    sys.exit(f"{failed} models failed" if failed else 0)


def folder(out: Path, model: Model) -> Path:
    """Where it is trained."""
    return out.joinpath(*map(str, model))


def run_all(jobs: list[Model], results: Results, asked: argparse.Namespace) -> int:
    """As many at a time as there are cores: models of this size gain little from more threads. How many failed."""

    def one(job: Model) -> tuple[Model, dict[str, Any] | None]:
        corpus, name, seed = job
        command = [sys.executable, __file__, "--one", "--out", asked.out, "--symbols", asked.symbols]
        command += ["--corpora", corpus, "--variants", name, "--seeds", seed]
        command += [] if asked.data_dir is None else ["--data-dir", asked.data_dir]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            print(f"{job}: {done.stderr[-2000:]}", file=sys.stderr)
            return job, None
        return job, json.loads(done.stdout.splitlines()[-1])

    failed = 0
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        made = as_completed([pool.submit(one, job) for job in jobs])
        for answer in tqdm(made, total=len(jobs), unit="model", disable=not sys.stderr.isatty()):
            job, result = answer.result()
            failed += result is None
            if result is not None:
                results.add(job, result)
                shutil.rmtree(folder(asked.out, job))
    finally:
        pool.shutdown(cancel_futures=True)
    return failed


if __name__ == "__main__":
    main()
