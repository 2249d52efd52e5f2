"""One self-contained HTML page that shows what a model found in a text. It asks the network for nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hmrnn.storage.files import finite

if TYPE_CHECKING:
    from hmrnn.domains.text.structure import Segmentation

MOST_ON_PAGE = 100_000  # symbols: more would make a page that a browser takes long to lay out
TEMPLATE = Path(__file__).with_name("page.html")


def page(found: Segmentation, title: str) -> str:
    """The page. Numbers are rounded to three places."""
    steps = found.steps
    data = {
        "title": title,
        "symbols": [readable(symbol) for symbol in found.symbols],
        "between": found.table.between,
        "operations": steps.operations.T.tolist(),
        "ends": found.ends,
        "z_tilde": [[round(value, 3) for value in column] for column in steps.z_tilde.T.tolist()],
        "norms": [[round(value, 3) for value in column] for column in steps.norms.T.tolist()],
        "surprisal": [round(bits, 3) for bits in steps.surprisal.tolist()],
        "updates": found.updates.layers,
    }
    # `<` is written as an escape: no text can end the script element that holds it.
    content = json.dumps(finite(data), separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("/*DATA*/", content)


def readable(symbol: str) -> str:
    """A byte that is no character of its own is shown in hexadecimal."""
    return f"{ord(symbol) & 0xFF:02x}" if "\ud800" <= symbol <= "\udfff" else symbol
