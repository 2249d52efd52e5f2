"""The commands that use a run. Their flags are those of the run's domain, so the run is looked at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from hmrnn.cli.flags import in_flags
from hmrnn.cli.parsing import asks_for_help, parsed
from hmrnn.domains import DOMAINS, Domain
from hmrnn.errors import UsageError
from hmrnn.storage.shipped import located

COMMANDS: Mapping[str, str] = {
    "eval": "Measure how well a run predicts.",
    "generate": "Generate a sequence with a run: text, handwriting or numbers.",
    "segment": "Show the segments that a run finds in a sequence.",
    "score": "Score the boundaries of each layer against known ones, and compare with random boundaries.",
    "figure": "Draw figures of what a run found, and of its training.",
    "explore": "Open a page in the browser on which you type or draw, and watch the layers.",
}


def command(name: str, arguments: Sequence[str]) -> None:
    """`hmrnn NAME RUN …`."""
    from hmrnn.storage.config_json import read_once

    with read_once():
        ask(name, arguments)


def ask(name: str, arguments: Sequence[str]) -> None:
    domain = domain_of(arguments)
    prog = f"hmrnn {name}"
    whose = f"{prog} RUN"  # whose help tells of the flags
    if domain is None and not asks_for_help(arguments):
        words = [word for word in arguments if not is_flag(word)]
        not_there = f"; there is none in {words[-1]}" if words else ""
        raise UsageError(
            f"no run is named: {whose} …, where RUN is its directory, or builtin or builtin-strokes{not_there} "
            f"(see {prog} --help)"
        )
    if domain is None:
        domain = next(iter(DOMAINS.values()))
        others = " and ".join(other for other in DOMAINS if other != domain.name)
        print(f"These are the flags for runs on {domain.name}. Runs on {others} have their own: {whose} --help\n")
    with bad_usage(whose):
        asked = parsed(domain.flags()[name], prog if asks_for_help(arguments) else whose, arguments)
        asked.check()
    asked.look(domain)
    asked.carry_out()


def domain_of(arguments: Sequence[str]) -> Domain | None:
    """That of the first run among the arguments. The value of a flag is one if nothing else is, as in `--json RUN`.
    None if there is nothing that could be one."""
    from hmrnn.storage.config_json import kind_of, read_config

    words = [(before, located(word)) for before, word in pairwise(["", *arguments]) if not is_flag(word)]
    alone = [place for before, place in words if not is_flag(before)]
    places = [*alone, *(place for _, place in words)]
    run = next(filter(is_run, places), alone[0] if alone else None)
    if run is None or (not is_run(run) and asks_for_help(arguments)):
        return None
    return DOMAINS[kind_of(read_config(run)[0])]


def is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-"


def is_run(place: Path) -> bool:
    try:
        return (place / "config.json").is_file()
    except (OSError, ValueError):  # no name of a file: a prompt, for instance
        return False


@contextmanager
def bad_usage(command: str) -> Iterator[None]:
    """A setting that is refused here came from a flag of the command, whose help explains it."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{in_flags(error)} (see {command} --help)") from None
