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


@app.command(name="bench")
def bench(
    hidden: int = 512,
    batch: int = 64,
    steps: int = 100,
    rates: tuple[float, float] = (0.21, 0.03),
    layer_norm: bool = False,
    repeats: int = 5,
    plot: Path | None = None,
) -> None:
    """Measure speed on this machine: every engine, torch.nn.LSTM and the layer-norm LSTM, in one run and in turn.

    Three layers, float32. Prints a table, and last one line of JSON.

    Args:
        hidden: Units of each layer.
        batch: Batch rows.
        steps: Time steps of a training step.
        rates: How often the first and the second detector fire. The bias of each is set so that it does.
        layer_norm: With layer normalisation.
        repeats: How often everything is timed. The median counts.
        plot: Also sweep firing rate, steps, batch and units, and write a figure (png, svg or pdf) here.
    """
    from hmrnn import bench

    bench.main(bench.Setting(hidden, batch, steps, rates, layer_norm), repeats, plot)


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
