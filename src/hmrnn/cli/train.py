"""`hmrnn train`. Where its flags start from depends on some of them, which are looked at first."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmrnn.cli import headings as headings  # registers how tyro groups the flags
from hmrnn.cli.parsing import asks_for_help, parsed
from hmrnn.cli.read import bad_usage
from hmrnn.config import NEVER, RunConfig
from hmrnn.domains import Domain
from hmrnn.errors import Stopped, UsageError
from hmrnn.printable import printable

if TYPE_CHECKING:
    from hmrnn.cli.flags import Train
    from hmrnn.training.run import Outcome


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # as malloc.h numbers them
NO_BOUND: Mapping[str, float | None] = {"epochs": NEVER, "minutes": None}  # what stands for none


def train(domain: Domain, arguments: Sequence[str]) -> None:
    """`hmrnn train DOMAIN …`."""
    arguments = [word for asked in arguments for word in domain.aliases.get(asked, (asked,))]
    first_look = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first_look.add_argument("--resume", type=Path, nargs="?")  # without a value: the parser of all flags reports it
    for flag in ("preset", "data", *NO_BOUND):
        first_look.add_argument(f"--{flag}", nargs="?")
    seen, _ = first_look.parse_known_args(arguments)
    presets = domain.presets
    start = presets.get(seen.preset or domain.preset_for(seen.data), presets["small"])
    if seen.resume is not None:
        start = settings_of(seen.resume, domain)
        if asks_for_help(arguments):  # which shows it
            start = replace(start, data=replace(start.data, data=printable(start.data.data)))
    start = replace(start, training=replace(start.training, **lifted(seen)))
    flags = domain.flags()["train"]
    prog = f"hmrnn train {domain.name}"
    with bad_usage(prog):
        default = flags(run=start)  # type: ignore[call-arg]
        asked = parsed(flags, prog, arguments, default=default, description=about(domain))
        asked.check()
    if seen.resume is not None and seen.preset is not None:
        raise UsageError("--preset can't be combined with --resume: the run has its settings")
    asked.look(domain)
    asked.carry_out()


def about(domain: Domain) -> str:
    return (
        f"Train a model to predict {domain.goal}. The result is a directory, called a run.\n\n"
        "Defaults shown are those of --preset, or of the run that is resumed."
    )


def lifted(seen: argparse.Namespace) -> dict[str, Any]:
    """The bounds of a preset, or of the run so far, that do not hold: those that are not given while the other is."""
    given = [bound for bound in NO_BOUND if getattr(seen, bound) is not None]
    return {bound: none for bound, none in NO_BOUND.items() if given and bound not in given}


def settings_of(directory: Path, domain: Domain) -> RunConfig:
    """The settings of a run that is to be resumed."""
    from hmrnn.training.checkpoint import load_run

    run = load_run(directory, files=False).config
    if run.kind != domain.name:
        raise UsageError(f"that is a run on {run.kind}: hmrnn train {run.kind} --resume goes on with it")
    return run


def keep_freed_memory() -> None:
    """Has glibc keep what is freed. Each update frees large buffers and takes them again, and pages that the kernel
    clears anew cost up to 9 % of its time."""
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def carry_out(asked: Train) -> None:
    """Trains, and tells how it ended."""
    directory = asked.resume or asked.out
    if directory is None or (asked.out and asked.resume):
        raise UsageError("say where the run goes, with --out DIRECTORY; or which one goes on, with --resume DIRECTORY")
    from hmrnn.training.run import train_run

    keep_freed_memory()
    outcome = train_run(
        asked.run,
        directory,
        resume=asked.resume is not None,
        data_dir=asked.data_dir,
        engine=asked.engine,
        device=asked.device,
        tensorboard=asked.tensorboard,
    )
    if outcome.processes.first:
        tell(outcome, asked)
    if outcome.stopped_by:
        raise Stopped(outcome.stopped_by)


def tell(outcome: Outcome, asked: Train) -> None:
    from hmrnn.cli.common import print_json
    from hmrnn.training.loop import CONVERGED

    measure, directory = outcome.measure, outcome.directory
    if asked.json:
        told = {name: value for name, value in asdict(outcome).items() if name not in ("processes", "measure", "best")}
        print_json({**told, f"best_{measure.name}": outcome.best})
    elif outcome.stopped_by:
        world = outcome.processes.world
        hmrnn = "hmrnn" if world == 1 else f"torchrun --nproc-per-node {world} -m hmrnn"
        on = f"{hmrnn} train {asked.run.kind} --resume {directory}"
        print(printable(f"{outcome.ended} after update {outcome.update}; go on with: {on}"))
    elif asked.resume is not None and outcome.made == 0:
        on = "To go on, give more: --epochs N or --minutes N"
        if outcome.ended == CONVERGED:
            on = "Such a run does not go on: begin a new one, with a larger --patience"
        print(f"nothing was done: {outcome.ended} ({outcome.epoch:.4g} epochs, {outcome.minutes:.3g} min). {on}")
    else:
        print(
            f"{outcome.ended}: {outcome.update} updates, {outcome.epoch:.2f} epochs, {outcome.minutes:.1f} min; "
            f"best validation {outcome.best:.4f} {measure.text}; {outcome.skipped} updates not applied\n"
            f"next: hmrnn eval {printable(directory)}"
        )
