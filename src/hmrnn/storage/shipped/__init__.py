"""The models that come with the package: small, trained on the built-in text and on the built-in handwriting
(recipes/builtin.sh, recipes/builtin-strokes.sh)."""

from __future__ import annotations

from pathlib import Path

NAMES = ("builtin", "builtin-strokes")


def located(run: str | Path) -> Path:
    """The directory of a run; that of a shipped model, if its name is given. A folder of that name is ./builtin."""
    # Resolved: some installers link every file of a package, and no file of a model may be a link.
    return Path(__file__).resolve().parent / run if run in NAMES else Path(run)
