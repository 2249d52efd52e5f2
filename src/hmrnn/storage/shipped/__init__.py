"""The model that comes with the package: small, trained on the built-in text (recipes/builtin.sh)."""

from __future__ import annotations

from pathlib import Path

NAME = "builtin"


def located(run: str | Path) -> Path:
    """The directory of a run; that of the shipped model, if its name is given. A folder of that name is ./builtin."""
    # Resolved: some installers link every file of a package, and no file of a model may be a link.
    return Path(__file__).resolve().parent / NAME if run == NAME else Path(run)
