"""A study of the boundary detectors: which settings make detectors that live, and find structure, whatever the seed.

    python benchmarks/detectors.py --out runs/detectors      # everything: hours; it goes on where it stopped
    python benchmarks/detectors.py --out runs/detectors --variants paper recipe --corpora planted --seeds 0 1

Small models, one for each variant, corpus and seed, as many at a time as there are cores. A folder is for one version
of the library: models of another are not told apart. Writes table.md and figure.svg into --out, from all results that
are there. A detector is alive if it fires on 2 to 90 % of the symbols; a model, if all its detectors do, and each fires
less often than the one below.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

ALIVE = (0.02, 0.90)
SCORED = 50_000  # symbols of the test part
CORPORA = ("planted", "ptb", "builtin")
SYMBOLS = 2_000_000  # read in training
NOTE, RESULT = "settings.json", "result.json"  # of each model


@dataclass(frozen=True)
class Variant:
    """What is other than the library's defaults."""

    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    start: Callable[[Any], None] | None = None  # changes a model before its first update
    every_update: Callable[[Any, int], None] | None = None  # before an update: the training, and its number
    loss: Callable[..., Any] | None = None  # in place of the task's: the task, its own loss, the update, the generator


# What the library has no setting for


def forget_bias(training: Any) -> None:
    """The biases of the gates lie one after the other: forget first."""
    for layer, size in zip(training.task.model.rnn.layers, training.task.model.rnn.hidden_sizes, strict=True):
        layer.b.data[:size] = 1.0


def orthogonal(training: Any) -> None:
    import torch

    for layer in training.task.model.rnn.layers:
        for block in layer.U.data.chunk(4, dim=0 if layer.U.shape[0] > layer.U.shape[1] else 1):
            block.copy_(torch.nn.init.orthogonal_(torch.empty_like(block)))


def bias_in_ball(radius: float) -> Callable[[Any], None]:
    """The norm ball, with the detector's bias in it."""

    def start(training: Any) -> None:
        import torch

        rnn = training.task.model.rnn

        @torch.no_grad()
        def constrain(_: float | None) -> None:
            for layer in rnn.weights():
                if layer.W_z is not None:
                    blocks = [layer.W_z, layer.U_z, layer.V_z, layer.b_z.view(1)]
                    norm = torch.cat(blocks).norm()
                    for block in blocks:
                        block.mul_((radius / norm.clamp_min(1e-12)).clamp_max(1.0))

        rnn.constrain_detectors = constrain

    return start


def sampled_until(update_limit: int) -> Callable[[Any, int], None]:
    def every_update(training: Any, update: int) -> None:
        training.task.model.rnn.boundary = "sample" if update < update_limit else "step"

    return every_update


def noise_until(update_limit: int) -> Callable[[Any, int], None]:
    """Noise on s_z that fades, of deviation .5 at first: added to the bias, another for each update."""

    def noise(update: int, detectors: int) -> Any:
        import torch

        fading = max(0.0, 1 - update / update_limit) if update >= 0 else 0.0
        return 0.5 * fading * torch.randn(detectors, generator=torch.Generator().manual_seed(update + 1))

    def every_update(training: Any, update: int) -> None:
        rnn = training.task.model.rnn
        detectors = rnn.num_layers - 1
        rnn.shift_detectors((noise(update, detectors) - noise(update - 1, detectors)).tolist())

    return every_update


def slope(value: float) -> Callable[[Any, int], None]:
    """A constant slope: below 1 the window of the straight-through gradient is wider. For detectors left alone only."""

    def every_update(training: Any, update: int) -> None:
        training.task.model.rnn.slope = value  # after the schedule has set it

    return every_update


def rate_prior(weight: float, until: int) -> Callable[..., Any]:
    """A loss on the firing rates, which fades."""

    def loss(task: Any, own: Callable[..., Any], update: int, generator: Any) -> Any:
        import torch

        from hmrnn.training.guidance import targets

        fading = max(0.0, 1 - update / until)
        if fading == 0:
            return own(update, generator)
        seen: list[Any] = []
        handle = task.model.rnn.register_forward_hook(lambda rnn, given, made: seen.append(made[0].z))
        answer = own(update, generator)
        handle.remove()
        rates = seen[0].mean((0, 1))
        wanted = torch.tensor(targets(0.18, len(rates)))
        return replace(answer, mean=answer.mean + weight * fading * (rates - wanted).square().sum())

    return loss


UNTIL = 200  # updates of 625 in which detectors get help, if not throughout: the learning rate falls from 312 on
PAPER = {"guided_updates": 0}
STEERED = {"uncertainty_weight": 0.0}
RECOMPUTE = {"copy_boundary": "recompute"}
VARIANTS: Mapping[str, Variant] = {
    "lstm": Variant({"model": "lstm"}),
    # The recipe: the library's defaults, and what each part of it does
    "recipe": Variant(),
    "recipe, let go": Variant(training={"guided_updates": UNTIL}),
    "recipe, recompute": Variant(RECOMPUTE),
    "steered": Variant(training=STEERED),
    "steered, let go": Variant(training={**STEERED, "guided_updates": UNTIL}),
    # The paper's training, without guidance, and what else could help it
    "paper": Variant(training=PAPER),
    "recompute": Variant(RECOMPUTE, PAPER),
    "no ball": Variant(training={**PAPER, "detector_radius": 1e9}),
    "ball 1.94": Variant(training={**PAPER, "detector_radius": 1.94}),
    "ball 0.6": Variant(training={**PAPER, "detector_radius": 0.6}),
    "ball with bias": Variant(training=PAPER, start=bias_in_ball(1.0)),
    "bias -1": Variant({"boundary_bias": -1.0}, PAPER),
    "bias +1": Variant({"boundary_bias": 1.0}, PAPER),
    "forget 1": Variant(training=PAPER, start=forget_bias),
    "orthogonal": Variant(training=PAPER, start=orthogonal),
    "sampled": Variant({"boundary": "sample"}, PAPER),
    "sampled first": Variant(training=PAPER, every_update=sampled_until(UNTIL)),
    "noise": Variant(training=PAPER, every_update=noise_until(UNTIL)),
    "wide window": Variant(training=PAPER, every_update=slope(0.5)),
    "steep": Variant(training={**PAPER, "slope_per_epoch": 1.0}),
    "rate prior": Variant(training=PAPER, loss=rate_prior(10.0, UNTIL)),
    # Adam does not see the scale of a loss, the clipping does: summed over 100 steps and clipped at 1 is this.
    "summed loss": Variant(training={**PAPER, "gradient_clip": 0.01}),
}


# One model


def settings(variant: Variant, corpus: str, seed: int, symbols: int) -> tuple[Any, int]:
    """Of a run, and its updates."""
    from hmrnn.config import PlantedConfig, TextDataConfig, TextModelConfig, TextRunConfig, TrainingConfig

    data = TextDataConfig(corpus, planted=PlantedConfig(symbols=1_000_000))
    model = TextModelConfig(hidden_sizes=(128,) * 3, output_size=128)
    training = TrainingConfig(
        batch_size=32, learning_rate=0.004, cooldown=0.5, epochs=1e6, patience=99, seed=seed, validate_every=1e6
    )
    updates = symbols // (training.batch_size * training.window)
    run = TextRunConfig(data, replace(model, **variant.model), replace(training, **variant.training))
    return run, updates


def train(name: str, corpus: str, seed: int, symbols: int, out: Path, data_dir: Path | None) -> None:
    """Trains one model, or goes on with it, and writes what came of it."""
    import torch

    from hmrnn.data.corpora import load_text
    from hmrnn.training.checkpoint import RESUMABLE, SavedRun, load_progress
    from hmrnn.training.distributed import Processes
    from hmrnn.training.run import carry_out, prepare

    torch.set_num_threads(1)
    variant = VARIANTS[name]
    run, updates = settings(variant, corpus, seed, symbols)
    data = load_text(run.data, data_dir)
    per_epoch = prepare(SavedRun(run, data.fingerprint, None), data, "auto", Processes()).task.updates_per_epoch
    run = replace(run, training=replace(run.training, epochs=updates / per_epoch))
    training = prepare(SavedRun(run, data.fingerprint, data_dir), data, "auto", Processes())
    if variant.start is not None:
        variant.start(training)
    own = training.task.loss

    def loss(update: int, generator: Any) -> Any:
        if variant.every_update is not None:
            variant.every_update(training, update)
        return own(update, generator) if variant.loss is None else variant.loss(training.task, own, update, generator)

    training.task.loss = loss
    out.mkdir(parents=True, exist_ok=True)
    (out / NOTE).write_text(noted(name, corpus, seed, symbols))
    progress = load_progress(out) if (out / RESUMABLE).exists() else None
    outcome = carry_out(training, progress, out, tensorboard=False)
    if outcome.update < updates:
        sys.exit(f"{out}: {outcome.ended}, after update {outcome.update} of {updates}")
    (out / RESULT).write_text(json.dumps(measured(training.task.model, run, data, corpus)))


def measured(model: Any, run: Any, data: Any, corpus: str) -> dict[str, Any]:
    """Bits per character of the test part, firing rates, and the F1 of each layer by the convention that fits best."""
    import numpy as np
    import torch

    from hmrnn.data.planted import planted
    from hmrnn.evaluation import bits_per_character
    from hmrnn.reading import AT_ONCE
    from hmrnn.structure.operations import follow, updates
    from hmrnn.structure.scores import at_separators, from_planted, scores_of

    test = data.split("test")
    answer: dict[str, Any] = {"bits": bits_per_character(model, test, 64)}
    if run.model.model != "hm-lstm":
        return answer
    numbers = torch.from_numpy(test[:SCORED].astype(np.int64))
    steps = list(follow(model, numbers.split(AT_ONCE)))
    z = torch.cat([part.z for part in steps]).numpy()
    if corpus == "planted":
        start = data.splits["test"][0]
        known = from_planted(planted(run.data.planted), start, start + len(numbers))
    else:
        known = at_separators(model.symbols.text(numbers.tolist()))
    answer["rates"] = z.mean(0).tolist()
    answer["events"] = [n / len(z) for n in updates(torch.cat([part.operations for part in steps])).layers]
    for layer, scored in scores_of(z, known).items():
        # What was planted tells words and phrases apart, one for each detector; other texts tell words.
        unit = "word" if layer == "layer 1" else "phrase"
        kinds = {name: kind for name, kind in scored.items() if corpus != "planted" or name.endswith(unit)}
        best = max(kinds, key=lambda kind: kinds[kind]["found"].f1)
        answer[layer] = {"f1": kinds[best]["found"].f1, "random": kinds[best]["random"].f1, "where": best}
    return answer


def alive(rates: list[float]) -> bool:
    falls = all(below > above for below, above in pairwise(rates))
    return falls and all(ALIVE[0] <= rate <= ALIVE[1] for rate in rates)


# All of them


def noted(name: str, corpus: str, seed: int, symbols: int) -> str:
    """What is written beside a model: what it is trained with."""
    run, updates = settings(VARIANTS[name], corpus, seed, symbols)
    return json.dumps({"updates": updates, **asdict(run)}, indent=1)


def check_trained(out: Path, symbols: int) -> None:
    """Refuses a folder with a model that was trained with other settings than it would be now."""
    for model in out.glob("*/*/*/model.safetensors"):
        folder = model.parent
        corpus, name, seed = folder.parts[-3:]
        note = folder / NOTE
        known = corpus in CORPORA and name in VARIANTS
        if not known or not note.exists() or note.read_text() != noted(name, corpus, int(seed), symbols):
            sys.exit(f"{folder}: this model was trained with other settings; choose another --out")


def results(out: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By corpus and variant, what came of each seed."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for corpus in CORPORA:
        for name in VARIANTS:
            paths = sorted((out / corpus / name).glob(f"*/{RESULT}"))
            if paths:
                found[corpus, name] = [json.loads(path.read_text()) for path in paths]
    return found


def table(found: Mapping[tuple[str, str], list[dict[str, Any]]]) -> str:
    lines = [
        "| corpus | variant | seeds | bits | alive | rates | events | F1, layer 1 | random | F1, layer 2 | random |",
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
        living = sum(alive(r["rates"]) for r in own)
        first, second = ([r[f"layer {l}"] for r in own] for l in (1, 2))
        scores = [r["f1"] for r in first]
        f1 = f"{mean(scores):.2f} ({min(scores):.2f} to {max(scores):.2f})"
        lines.append(
            f"| {corpus} | {name} | {len(own)} | {bits} | {living} of {len(own)} | {rates} | {events} | {f1} | "
            f"{mean(r['random'] for r in first):.2f} | {mean(r['f1'] for r in second):.2f} | "
            f"{mean(r['random'] for r in second):.2f} |"
        )
    return "\n".join(lines) + "\n"


def figure(found: Mapping[tuple[str, str], list[dict[str, Any]]], path: Path) -> None:
    """F1 of the first layer, a row for each variant and a point for each seed; hollow where a detector is dead."""
    from matplotlib.figure import Figure

    from hmrnn.show.figures import COLOURS

    names = [name for name in VARIANTS if any(key[1] == name and "rates" in own[0] for key, own in found.items())]
    drawn = Figure(figsize=(4.5 * len(CORPORA), 0.3 * len(names) + 1.6), layout="constrained")
    for axes, corpus in zip(drawn.subplots(1, len(CORPORA), sharey=True), CORPORA, strict=True):
        for y, name in enumerate(names):
            for r in found.get((corpus, name), []):
                colour = COLOURS[0] if alive(r["rates"]) else "none"
                axes.plot(r["layer 1"]["f1"], y, marker="o", color=COLOURS[0], markerfacecolor=colour)
                axes.plot(r["layer 1"]["random"], y, marker="|", color="#888888")
        axes.set_title(f"{corpus}: F1 of layer 1 (filled: alive; |: random)", fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlim(0, 1)
        axes.grid(alpha=0.3)
    drawn.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--corpora", nargs="+", default=list(CORPORA), choices=CORPORA)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--symbols", type=int, default=SYMBOLS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # a model in a process of its own
    asked = parser.parse_args()
    if asked.one:
        (corpus,), (name,), (seed,) = asked.corpora, asked.variants, asked.seeds
        train(name, corpus, seed, asked.symbols, asked.out / corpus / name / str(seed), asked.data_dir)
        return
    jobs = [(c, v, s) for v in asked.variants for c in asked.corpora for s in asked.seeds]
    check_trained(asked.out, asked.symbols)
    waiting = [(c, v, s) for c, v, s in jobs if not (asked.out / c / v / str(s) / RESULT).exists()]
    failed = run_all(waiting, asked)
    found = results(asked.out)
    (asked.out / "table.md").write_text(table(found))
    figure(found, asked.out / "figure.svg")
    print(table(found))
    sys.exit(f"{failed} models failed" if failed else 0)


def run_all(jobs: list[tuple[str, str, int]], asked: argparse.Namespace) -> int:
    """As many at a time as there are cores: models of this size gain little from more threads. How many failed."""
    from concurrent.futures import ThreadPoolExecutor

    from tqdm import tqdm

    def one(job: tuple[str, str, int]) -> bool:
        corpus, name, seed = job
        command = [sys.executable, __file__, "--one", "--out", asked.out, "--symbols", asked.symbols]
        command += ["--corpora", corpus, "--variants", name, "--seeds", seed]
        command += [] if asked.data_dir is None else ["--data-dir", asked.data_dir]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            print(f"{job}: {done.stderr[-2000:]}", file=sys.stderr)
        return done.returncode != 0

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return sum(tqdm(pool.map(one, jobs), total=len(jobs), unit="model", disable=not sys.stderr.isatty()))


if __name__ == "__main__":
    main()
