"""What a page asks for, checked: nothing of it is taken on trust, and a refusal tells what was wrong."""

from __future__ import annotations

import json
from typing import Any

SLOPES = (0.1, 20.0)
MOST_NEW = 1_000  # symbols or points that are made in one request
MOST_POINTS = 3_000  # of a drawing as the model reads it, with what is made of it


class Refused(ValueError):
    """A request that is not answered. The message is for the one who asked."""


class Request:
    """A JSON object, read field by field."""

    def __init__(self, message: str) -> None:
        try:
            content = json.loads(message)
        except (ValueError, RecursionError):
            raise Refused("a request must be JSON") from None
        if not isinstance(content, dict):
            raise Refused("a request must be a JSON object")
        self.content: dict[str, Any] = content

    def whole(self, name: str, low: int, high: int) -> int:
        value = self.content.get(name)
        if type(value) is not int or not low <= value <= high:
            raise Refused(f"{name} must be a whole number from {low:,} to {high:,}; got {quoted(value)}")
        return value

    def number(self, name: str, low: float, high: float, by_default: float | None = None) -> float:
        value: Any = self.content.get(name, by_default)
        if type(value) not in (int, float) or not low <= value <= high:
            raise Refused(f"{name} must be a number from {low:g} to {high:g}; got {quoted(value)}")
        return float(value)

    def kind(self) -> str:
        return str(self.content.get("kind"))

    def slope(self, by_default: float) -> float:
        return round(self.number("slope", *SLOPES, by_default), 2)

    def text(self) -> str:
        value = self.content.get("text")
        if not isinstance(value, str):
            raise Refused(f"text must be a string; got {quoted(value)}")
        return value


def quoted(value: Any) -> str:
    """A value for a message: not the whole of a long one."""
    return json.dumps(value)[:40]
