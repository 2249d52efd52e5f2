"""What stands for a value in --help: N, NUMBER, FILE, DIR, in place of the names of Python's types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import DisallowNone
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from hmrnn.config import shown_as

if TYPE_CHECKING:
    from hmrnn.cli.flags import Command

REGISTRY = ConstructorRegistry()


PLAIN = {int: shown_as("N", int), float: shown_as("NUMBER", float, int), str: shown_as("TEXT", str)}
PLAIN[Path] = shown_as("FILE", Path)


@REGISTRY.primitive_rule
def plain(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    return PLAIN.get(info.type)


Dir = Annotated[Path, shown_as("DIR", Path)]


def parsed(flags: type[Command], prog: str, arguments: Sequence[str], **more: Any) -> Command:
    """What was asked for. A flag that may be left out is left out, and not given as None. Help ends with examples."""
    helps = bool({"-h", "--help"} & set(arguments))
    if helps:
        arguments = ["--help"]  # tyro's help leaves out what was given before it
    try:
        asked: Command = tyro.cli(flags, prog=prog, args=arguments, config=(DisallowNone,), registry=REGISTRY, **more)
    except SystemExit:
        if helps and flags.examples:
            print("Examples:", *(f"  hmrnn {example}" for example in flags.examples), sep="\n")
        raise
    return asked
