"""`hmrnn demo`: a small HM-LSTM learns to read the built-in text, and shows where it found segments to end."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from hmrnn.config import TextModelConfig
from hmrnn.data.corpora import builtin_text
from hmrnn.data.text import Symbols
from hmrnn.models import TextModel
from hmrnn.sequence import HMLSTMState

BATCH, WINDOW, HELD_OUT, SHOWN = 32, 50, 20_000, 400
MARKS = ("|", "‖")


def demo(out: Path, updates: int, seed: int) -> None:
    """Trains on all but the end of the built-in text, prints bits per character and segments of the rest, and saves."""
    out.mkdir(parents=True, exist_ok=True)  # before the work, not after it, if it can't be done
    torch.manual_seed(seed)
    text = builtin_text()
    training, held_out = text[:-HELD_OUT], text[-HELD_OUT:]
    model = TextModel(Symbols.of(text), TextModelConfig(hidden_sizes=(96, 96, 96), output_size=96))
    print(f"{len(training):,} characters to train on, {len(held_out):,} held out, {len(model.symbols)} symbols")
    train(model, training, updates)
    print(f"bits per character, held out: {model.bits_per_character(held_out):.3f}")
    print(f"without any context:          {unigram_bits(training, held_out):.3f}")
    model.save_pretrained(out)
    print(f"the model is in {out}; segments that it sees end, {MARKS[0]} in layer 1, {MARKS[1]} in layer 2 too:\n")
    print(marked(model, held_out[:SHOWN]))


def train(model: TextModel, text: str, updates: int) -> None:
    """Truncated backpropagation over contiguous streams, one for each batch row, with the state carried along."""
    symbols = model.symbols.encode(text)
    streams = symbols[: len(symbols) // BATCH * BATCH].view(BATCH, -1).T  # (time, batch)
    windows = (len(streams) - 1) // WINDOW
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    state: HMLSTMState | None = None
    progress = tqdm(range(updates), unit="update", disable=not sys.stderr.isatty())
    for update in progress:
        start = update % windows * WINDOW
        state = None if start == 0 or state is None else state.detach()
        out, state = model(streams[start : start + WINDOW], state)
        loss = F.cross_entropy(out.logits.flatten(0, 1), streams[start + 1 : start + WINDOW + 1].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.rnn.constrain_detectors()
        rates = " / ".join(f"{rate:.2f}" for rate in out.rnn.z.detach().mean((0, 1)))
        progress.set_postfix_str(f"{loss.item() / math.log(2):.2f} bits, boundaries {rates}")


def unigram_bits(training: str, held_out: str) -> float:
    """Bits per character of a model that knows only how frequent each symbol is."""
    counts = {symbol: 1 for symbol in {*training, *held_out}}
    for symbol in training:
        counts[symbol] += 1
    total = sum(counts.values())
    return sum(math.log2(total / counts[symbol]) for symbol in held_out) / len(held_out)


@torch.no_grad()
def marked(model: TextModel, text: str) -> str:
    """The text with a mark after each symbol on which a segment ends: that of the highest layer where one does."""
    out, _ = model(model.symbols.encode(text).unsqueeze(1))
    z = out.rnn.z[:, 0]
    ends = (z * torch.arange(1, z.shape[1] + 1)).amax(-1).long().tolist()
    return "".join(symbol + (MARKS[end - 1] if end else "") for symbol, end in zip(text, ends, strict=True))
