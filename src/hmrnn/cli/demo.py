"""`hmrnn demo`: a small HM-LSTM learns to read the built-in text, and shows where it found segments to end."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from hmrnn.cli.ngram import NGram
from hmrnn.domains.text.config import PRESETS, TextReadingConfig, TextRunConfig
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.evaluation import bits_per_character
from hmrnn.domains.text.marks import legend
from hmrnn.domains.text.model import TextModel
from hmrnn.domains.text.page import page
from hmrnn.domains.text.structure import follow
from hmrnn.domains.text.written import write_marked
from hmrnn.errors import Stopped, UsageError
from hmrnn.storage.files import write_atomically
from hmrnn.storage.pretrained import load_model
from hmrnn.structure.written import Counted
from hmrnn.training.checkpoint import load_run, resumable
from hmrnn.training.run import train_run

SHOWN, PAGE = 400, 5000  # symbols in the terminal, and on the page


def demo(out: Path, epochs: float, seed: int | None) -> None:
    """Trains, scores the test part against a 5-gram model, and prints segments. If it was run before, goes on there."""
    begun = resumable(out) is not None
    run = settings_of(out) if begun else PRESETS["small"]
    training = replace(run.training, epochs=epochs, seed=run.training.seed if seed is None else seed)
    run = replace(run, training=training)
    outcome = train_run(run, out, resume=begun)
    if outcome.stopped_by:
        raise Stopped(outcome.stopped_by)

    model = load_model(TextModel, out, TextReadingConfig())
    data = load_text(run.data)
    train, test = (data.symbols.text(data.split(name)) for name in ("train", "test"))
    print(f"{bits_per_character(model, data.split('test')):.3f} bits per character on {len(test):,} that it never saw")
    counted = NGram(train, order=5, alphabet=len(data.symbols)).bits_per_character(test)
    print(f"{counted:.3f} for a 5-gram model that counted the same text")
    start = most_words(test)
    print(f"\nWhere it sees segments end: {legend(model.rnn.num_layers - 1)}.\n")
    print(marked(model, test[start : start + SHOWN]))
    write_atomically(out / "page.html", page(model.segment(test[start : start + PAGE]), "the demo's test text"))
    print(
        f"""
The run is in {out}. Open {out / "page.html"} in a browser to see every step. What to try next:
  hmrnn generate {out} --prompt "The value of" --show-boundaries
  hmrnn figure {out} --out {out / "figures"}
  hmrnn score {out}
  hmrnn train text --data YOUR-FILE.txt --minutes 10 --out runs/mine"""
    )


def settings_of(out: Path) -> TextRunConfig:
    """Those of the run that is there. It goes on as it was begun, by this version or another."""
    run = load_run(out, files=False).config
    if not isinstance(run, TextRunConfig) or (run.data.data, run.data.symbols) != ("builtin", "characters"):
        raise UsageError(f"{out} is not a run on the characters of the built-in text: choose another --out")
    if run.model.model == "lstm" or len(run.model.hidden_sizes) == 1:
        raise UsageError(f"{out} is a run without boundaries: choose another --out")
    return run


def most_words(text: str) -> int:
    """Where a stretch of SHOWN symbols begins that has more letters than others: tables are dull to look at."""
    return max(range(0, len(text) - SHOWN, 100), key=lambda i: sum(map(str.isalpha, text[i : i + SHOWN])))


def marked(model: TextModel, text: str) -> str:
    """The text with a mark after each symbol on which a segment ends."""
    out = io.StringIO()
    write_marked(model, Counted(follow(model, [model.symbols.encode(text)])), out)
    return out.getvalue()
