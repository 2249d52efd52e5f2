"""The headings of `hmrnn train --help`, and the order of the flags below each.

tyro gives each dataclass a heading of its own, and its name as a prefix of its flags. A reader looks for settings by
topic, and a topic may need fields of several dataclasses. So the fields are regrouped here, without prefixes.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, arg
from tyro.constructors import MISSING_NONPROP, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from hmrnn.cli.flags import Train
from hmrnn.cli.parsing import REGISTRY, fields_of, refusing

MOST_USED = ("data", "out", "resume", "preset", "minutes", "epochs", "seed")
# Each with what it is about, and the flags that come first below it.
HEADINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "data": ("How the data is read and split.", ("data_dir",)),
    "model": ("Size of the network, and dropout.", ("model", "hidden_sizes")),
    "boundaries": (
        "How boundary detectors are trained: how often they fire, and where.",
        (
            *("target_rate", "uncertainty_weight", "guided_updates", "detector_radius"),
            *("slope_per_epoch", "slope_limit", "boundary", "copy_boundary", "boundary_bias"),
        ),
    ),
    "optimisation": ("Batches, learning rate and regularisation.", ()),
    "output": (
        "What is reported and stored, and how often.",
        ("json", "validate_every", "checkpoint_minutes", "tensorboard"),
    ),
    "machine": ("Where and how the network is computed.", ("device", "engine", "precision")),
}
REST = {"data": "data", "model": "model", "training": "optimisation"}  # where the other fields of each dataclass go


class Part:
    """The flags below one heading. They are parsed into a dictionary."""

    fields: tuple[StructFieldSpec, ...]


@REGISTRY.struct_rule
def part(info: StructTypeInfo) -> StructConstructorSpec | None:
    if not (isinstance(info.type, type) and issubclass(info.type, Part)):
        return None
    return StructConstructorSpec(instantiate=dict, fields=info.type.fields)


@REGISTRY.struct_rule
def under_headings(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The flags of `hmrnn train`. Its default holds the settings to start from."""
    default = info.default
    if not isinstance(default, Train):
        return None
    fields = {field.name: field for field in fields_of(info.type, MISSING_NONPROP) if field.name != "run"}
    below = {heading: list(first) for heading, (_, first) in HEADINGS.items()}
    settings: dict[str, list[str]] = {}  # by dataclass
    for name, heading in REST.items():
        own = fields_of(type(getattr(default.run, name)), getattr(default.run, name))
        settings[name] = [field.name for field in own]
        fields |= {field.name: field for field in own}
        placed = {*MOST_USED, *(flag for flags in below.values() for flag in flags)}
        below[heading] += [field.name for field in own if field.name not in placed and not nested(field)]

    def made(**values: Any) -> Train:
        for heading in HEADINGS:
            values |= values.pop(part_of(heading))
        parts = {
            name: replace(getattr(default.run, name), **{setting: values.pop(setting) for setting in own})
            for name, own in settings.items()
        }
        return info.type(run=replace(default.run, **parts), **values)  # type: ignore[no-any-return]

    made.__doc__ = info.type.__doc__  # which --help begins with
    shown = [fields[name] for name in MOST_USED]
    for heading, flags in below.items():
        kind: Any = type(heading, (Part,), {"fields": tuple(fields[name] for name in flags)})
        about, _ = HEADINGS[heading]
        marked = Annotated[kind, OmitArgPrefixes, arg(name=heading)]
        shown.append(StructFieldSpec(part_of(heading), marked, MISSING_NONPROP, about))
    shown += [field for field in fields.values() if nested(field)]
    return StructConstructorSpec(instantiate=refusing(made), fields=tuple(shown))


def part_of(heading: str) -> str:
    """A heading may be called like a flag."""
    return f"{heading}_flags"


def nested(field: StructFieldSpec) -> bool:
    """Whether the field has flags of its own, such as --planted.words. They get a heading of their own, at the end."""
    return is_dataclass(field.default)
