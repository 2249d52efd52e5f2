"""`hmrnn demo`: a small HM-LSTM learns to read the built-in text, and shows where it found segments to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hmrnn.baselines.ngram import NGram
from hmrnn.commands import load_model
from hmrnn.config import TEXT_PRESETS
from hmrnn.data.corpora import load_text
from hmrnn.evaluation import bits_per_character
from hmrnn.generation import generate
from hmrnn.models import TextModel
from hmrnn.structure.marks import legend, mark
from hmrnn.training.checkpoint import RESUMABLE
from hmrnn.training.loop import INTERRUPTED
from hmrnn.training.run import train_text

SHOWN = 400


def demo(out: Path, epochs: float, seed: int) -> None:
    """Trains, scores the test part against a 5-gram model, and prints segments. If it was run before, goes on there."""
    small = TEXT_PRESETS["small"]
    run = replace(small, training=replace(small.training, epochs=epochs, seed=seed))
    if train_text(run, out, resume=(out / RESUMABLE).exists()).ended == INTERRUPTED:
        raise KeyboardInterrupt

    model = load_model(out, "best")
    data = load_text(run.data)
    train, test = (data.symbols.text(data.split(name)) for name in ("train", "test"))
    print(f"{bits_per_character(model, data.split('test')):.3f} bits per character on {len(test):,} that it never saw")
    counted = NGram(train, order=5, alphabet=len(data.symbols)).bits_per_character(test)
    print(f"{counted:.3f} for a 5-gram model that counted the same text")
    print(f"\nWhere it sees segments end: {legend(model.rnn.num_layers - 1)}.\n")
    print(marked(model, test[:SHOWN]))
    print(
        f"""
The run is in {out}. What to try next:
  hmrnn generate {out} --prompt "The value of" --show-boundaries
  hmrnn eval {out} --split valid
  hmrnn train text --data YOUR-FILE.txt --minutes 10 --out runs/mine
  hmrnn train text --data planted --model lstm --out runs/baseline"""
    )


def marked(model: TextModel, text: str) -> str:
    """The text with a mark after each symbol on which a segment ends."""
    read = generate(model, text, max_new=0)
    return "".join(symbol + mark(seen.z) for symbol, seen in zip(text, read, strict=True))
