"""The command line. Every command is a public function elsewhere, imported when it is called: --help must be quick."""

from __future__ import annotations

import sys
from pathlib import Path

from tyro.extras import SubcommandApp

app = SubcommandApp()


@app.command(name="demo")
def demo(out: Path = Path("demo"), updates: int = 300, seed: int = 0) -> None:
    """Train a small model on the built-in text (no download), score it, and print the segments that it found.

    Args:
        out: Directory to save the model in.
        updates: How many training updates to make.
        seed: The same seed gives the same model.
    """
    from hmrnn.demo import demo

    demo(out, updates, seed)


@app.command(name="version")
def version() -> None:
    """Print the version."""
    from hmrnn import __version__

    print(__version__)


def main() -> None:
    """Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    try:
        app.cli(prog="hmrnn", description="Hierarchical multiscale recurrent networks.")
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        print(f"hmrnn: {error}", file=sys.stderr)
        sys.exit(1)
