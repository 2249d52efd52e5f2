"""Errors that name settings, and checks of settings that raise them.

No torch here: `hmrnn train text --help` reads this file and must be quick.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable


class UsageError(ValueError):
    """A command was asked for something that it can't do: exit status 2."""


class SettingError(ValueError):
    """An error that names settings: in Python by their names, on the command line by their flags."""

    def __init__(self, message: str, *settings: str, on_command_line: str | None = None, **values: object) -> None:
        """`message` has a place for each setting, {0}, {1}, and for each value, by its name. So has `on_command_line`,
        for when other names are not all that differs: a value is given to a flag in another way than to an argument,
        and there may be a flag where Python has no argument."""
        self.message, self.on_command_line = message, message if on_command_line is None else on_command_line
        self.settings, self.values = settings, values
        super().__init__(message.format(*settings, **values))

    def in_flags(self, flag_of: Callable[[str], str]) -> str:
        return self.on_command_line.format(*map(flag_of, self.settings), **self.values)


class Contradiction(SettingError, UsageError):
    """Settings that are not those of the run which is to go on."""


def located_error(where: object, error: ValueError) -> ValueError:
    """The same error with the name of the file that it is about."""
    if isinstance(error, SettingError):
        message, on_command_line = ("{where}: " + own for own in (error.message, error.on_command_line))
        return SettingError(message, *error.settings, on_command_line=on_command_line, where=where, **error.values)
    return ValueError(f"{where}: {error}")


def without_advice(error: ValueError, before: str) -> ValueError:
    """What is wrong, after `before`; not what to do about it, which is in brackets or in a sentence of its own. It is
    looked for before names of files are filled in: they may have brackets, too."""
    if not isinstance(error, SettingError):
        return ValueError(f"{before}{error}")
    message, on_command_line = (
        "{before}" + re.split(r" \(|\. ", own)[0] for own in (error.message, error.on_command_line)
    )
    return SettingError(message, *error.settings, on_command_line=on_command_line, before=before, **error.values)


class Stopped(KeyboardInterrupt):
    """Training was asked to stop by a signal, and has written a checkpoint: exit status 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


def check_type(name: str, value: object, kinds: type | tuple[type, ...], what: str) -> None:
    """Refuses what a caller in Python gives in place of `what`."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {what}; got {type(value).__name__}")


def check_size(name: str, size: int, most: int | None = None) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{name} must be a whole number from 1; got {size!r}")
    if most is not None and size > most:
        raise ValueError(f"{name} must be at most {most:,}; got {size:,}")


def check_device(device: str) -> None:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", device):
        raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps; got {device!r}")


def check_not_negative(name: str, value: float, most: float = math.inf) -> None:
    if not 0 <= value < math.inf or value > most:
        bound = f", and at most {most:,}" if most < math.inf else "" if isinstance(value, int) else ", and finite"
        raise ValueError(f"{name} must not be negative{bound}; got {value}")


def check_positive(name: str, value: float, most: float = math.inf) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite; got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}; got {value}")


def check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"{name} is a share, from 0 to less than 1; got {share}")


def check_range(name: str, ends: tuple[int, int], most: int) -> None:
    low, high = ends
    if not 1 <= low <= high <= most:
        raise ValueError(f"{name} must be two numbers from 1 to {most:,}, the smaller first; got {low} and {high}")
