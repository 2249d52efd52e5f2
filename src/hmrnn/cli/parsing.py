"""A command line becomes a dataclass by tyro.

What tyro shows is made readable. In --help: N, NUMBER, FILE or DIR for a value, not the names of Python's types; rare
flags last; each text as one paragraph; no "default: None"; examples at the end. And errors of settings, as our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args

import tyro
from tyro.conf import DisallowNone, arg
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from hmrnn.config import shown_as

if TYPE_CHECKING:
    from hmrnn.cli.flags import Command

REGISTRY = ConstructorRegistry()


PLAIN = {int: shown_as("N", int), float: shown_as("NUMBER", float, int), str: shown_as("TEXT", str)}
PLAIN[Path] = shown_as("FILE", Path)


@REGISTRY.primitive_rule
def plain(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    return PLAIN.get(info.type)


MORE = " …"


@REGISTRY.primitive_rule
def several(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """N …, for one value or more, where tyro has [N [N ...]]; and no brackets around what may be left out."""
    if info.type_origin not in (tuple, Union, UnionType) or info.type in _asked:
        return None
    _asked.append(info.type)  # so that tyro's own rule answers
    try:
        spec = ConstructorRegistry.get_primitive_spec(info)
        if not isinstance(spec, PrimitiveConstructorSpec):  # a choice of commands, for instance
            return None
        kinds = [kind for kind in get_args(info.type) if kind not in (NoneType, ...)]
        names = [metavar_of(kind, info) for kind in kinds]
    finally:
        _asked.pop()
    if info.type_origin is tuple:
        return replace(spec, metavar=names[0] + MORE if ... in get_args(info.type) else " ".join(names))
    return replace(spec, metavar="|".join(name for name in names if name + MORE not in names))


def metavar_of(kind: Any, within: PrimitiveTypeInfo) -> str:
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, within.markers))
    assert isinstance(spec, PrimitiveConstructorSpec)
    return spec.metavar


UNSET = arg(help_behavior_hint="(optional)")  # the text says what happens without the flag
RARE = ("vectors", "data_dir", "json")
_asked: list[Any] = []


@REGISTRY.struct_rule
def readable(info: StructTypeInfo) -> StructConstructorSpec | None:
    if not is_dataclass(info.type) or info.type in _asked:
        return None
    _asked.append(info.type)  # so that tyro's own rule answers
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _asked.pop()
    assert isinstance(spec, StructConstructorSpec)
    usual_first = sorted(spec.fields, key=lambda field: field.name in RARE)
    return replace(spec, instantiate=refusing(spec.instantiate), fields=tuple(map(readable_field, usual_first)))


class RefusedSetting(Exception):
    """Takes a ValueError through tyro, which would call it an error of the Python class that raised it."""

    def __init__(self, error: ValueError) -> None:
        self.error = error


def refusing(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*values: Any, **named: Any) -> Any:
        try:
            return make(*values, **named)
        except ValueError as error:
            raise RefusedSetting(error) from None

    made.__doc__ = make.__doc__  # which --help begins with
    return made


def readable_field(field: StructFieldSpec) -> StructFieldSpec:
    def paragraph() -> str | None:
        text = field.helptext() if callable(field.helptext) else field.helptext
        return None if text is None else " ".join(text.split())

    kind = Annotated[field.type, UNSET] if field.default is None else field.type
    return replace(field, type=kind, helptext=paragraph)  # type: ignore[arg-type]


def fields_of(kind: type, default: object) -> tuple[StructFieldSpec, ...]:
    """The fields of a dataclass as tyro sees them."""
    spec = ConstructorRegistry.get_struct_spec(StructTypeInfo.make(kind, default, in_union_context=False))
    assert isinstance(spec, StructConstructorSpec)
    return spec.fields


Dir = Annotated[Path, shown_as("DIR", Path)]


def parsed(flags: type[Command], prog: str, arguments: Sequence[str], **more: Any) -> Command:
    """What was asked for. A flag that may be left out is left out, and not given as None. Help ends with examples."""
    if asks_for_help(arguments):
        arguments = ["--help"]  # tyro's help leaves out what was given before it
    try:
        with ending_in_examples(arguments, flags.examples):
            asked: Command = tyro.cli(
                flags, prog=prog, args=arguments, config=(DisallowNone,), registry=REGISTRY, **more
            )
    except RefusedSetting as refused:
        raise refused.error from None
    return asked


def asks_for_help(arguments: Sequence[str]) -> bool:
    return bool({"-h", "--help"} & set(arguments))


@contextmanager
def ending_in_examples(arguments: Sequence[str], examples: Sequence[str]) -> Iterator[None]:
    """Around tyro, which prints help and exits."""
    try:
        yield
    except SystemExit:
        if asks_for_help(arguments) and examples:
            print("Examples:", *(f"  hmrnn {example}" for example in examples), sep="\n")
        raise
