"""The commands that use a run. Their flags are those of the run's domain, so the run is looked at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hmrnn.cli.flags import in_flags
from hmrnn.cli.parsing import asks_for_help, parsed
from hmrnn.config import UsageError
from hmrnn.domains import DOMAINS, Domain
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
    if domain is None:
        domain = next(iter(DOMAINS.values()))
        if asks_for_help(arguments):
            others = " and ".join(other for other in DOMAINS if other != domain.name)
            print(
                f"These are the flags for runs on {domain.name}. Runs on {others} have their own: {prog} RUN --help\n"
            )
    with bad_usage(f"{prog} RUN"):
        asked = parsed(domain.flags()[name], prog, arguments)
        asked.check()
    asked.look(domain)
    asked.carry_out()


def domain_of(arguments: Sequence[str]) -> Domain | None:
    """That of the first run among the arguments. None if there is nothing that could be one."""
    from hmrnn.storage.config_json import kind_of, read_config

    named = [located(word) for word in arguments if not word.startswith("-") or word == "-"]
    if not named:
        return None
    run = next((place for place in named if is_run(place)), named[0])
    if not is_run(run) and asks_for_help(arguments):
        return None
    return DOMAINS[kind_of(read_config(run)[0])]


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
