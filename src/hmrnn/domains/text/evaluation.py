"""How well a model predicts a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from hmrnn.domains.text.data.streams import Streams
from hmrnn.domains.text.data.symbols import Numbers
from hmrnn.dropout import evaluating
from hmrnn.errors import check_size
from hmrnn.show.progress import show_bar

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel

SYMBOLS_AT_ONCE = 8192  # symbols in one call: enough to be quick, and little memory
TEMPERATURES = tuple(1.01**k for k in range(-50, 51))  # to choose from: 0.61 to 1.64, and 1 itself


class TextScore(NamedTuple):
    bits: float  # a character
    rates: tuple[float, ...]  # how often each detector fired


class Predicted(NamedTuple):
    """Of some steps of a text."""

    logits: Tensor  # (N, symbols)
    targets: Tensor  # (N,): what came
    fired: Tensor  # (L-1,): how many times each detector fired


def bits_per_character(
    model: TextModel, numbers: Numbers, streams: int = 1, window: int | None = None, show: bool = False
) -> float:
    """The mean of -log2 p(next symbol), see `score_text`."""
    return score_text(model, numbers, streams, window, show).bits


def score_text(
    model: TextModel, numbers: Numbers, streams: int = 1, window: int | None = None, show: bool = False
) -> TextScore:
    """The mean of -log2 p(next symbol), from the second symbol on, with the state carried along, in constant memory.

    With one stream, the text is read from its start to its end: exact. More are quicker, and each but the first starts
    in the middle of the text without a past. `show` draws a progress bar, if there is a terminal.
    """
    nats, fired = 0.0, torch.zeros(model.rnn.state_sizes[2], dtype=torch.float64)
    for part in predictions(model, numbers, streams, window, show):
        nats += nats_at((1.0,), part.logits, part.targets).item()
        fired += part.fired
    steps = len(numbers) - 1
    return TextScore(nats / math.log(2) / steps, tuple((fired / steps).tolist()))


def bits_at(
    temperatures: Sequence[float], model: TextModel, numbers: Numbers, streams: int = 1, show: bool = False
) -> list[float]:
    """The same at each of these temperatures, by which logits are divided."""
    nats = torch.zeros(len(temperatures), dtype=torch.float64)
    for part in predictions(model, numbers, streams, show=show):
        nats += nats_at(temperatures, part.logits, part.targets)
    return (nats / math.log(2) / (len(numbers) - 1)).tolist()


def nats_at(temperatures: Sequence[float], logits: Tensor, targets: Tensor) -> Tensor:
    """(temperatures,) float64: the sum of -log p(target). logits: (N, symbols), targets: (N,)."""
    losses = [F.cross_entropy(logits.float() / t, targets, reduction="none").double().sum() for t in temperatures]
    return torch.stack(losses).cpu()


def best_temperature(bits: Sequence[float]) -> float:
    """Of TEMPERATURES, by the bits at each."""
    return TEMPERATURES[int(np.argmin(bits))]


@torch.no_grad()
def predictions(
    model: TextModel, numbers: Numbers, streams: int = 1, window: int | None = None, show: bool = False
) -> Iterator[Predicted]:
    """What the model predicts of each symbol but the first, window by window. See `score_text`."""
    check_length(numbers)
    check_size("streams", streams)
    rows = Streams.to_evaluate(numbers, min(streams, len(numbers) - 1))
    window = window or max(1, SYMBOLS_AT_ONCE // streams)
    check_size("window", window)
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(0)  # for sampled boundaries: the same answer every time
    state = None
    with evaluating(model), progress(len(numbers) - 1, show) as bar:
        for start in range(0, rows.steps, window):
            end = min(start + window, rows.steps)
            lengths = rows.lengths(start, end)
            given = model.boundaries_of(rows, start, end)
            short = lengths if int(lengths.min()) < end - start else None
            symbols = rows.read(start, end + 1).to(device)
            out, state = model(symbols[:-1], state, short, given, generator=generator)
            counted = (torch.arange(end - start).unsqueeze(1) < lengths).to(device)
            fired = out.rnn.z.sum((0, 1)).cpu()  # 0 at padded steps
            yield Predicted(out.logits[counted], symbols[1:][counted], fired)
            bar.update(int(lengths.sum()))


def check_length(numbers: Numbers) -> None:
    if len(numbers) < 2:
        raise ValueError(f"text must have at least 2 symbols, one to predict from the other; got {len(numbers)}")


def progress(symbols: int, show: bool) -> tqdm[NoReturn]:
    """A bar of so many symbols, if it is wanted and there is a terminal."""
    return tqdm(total=symbols, unit="sym", unit_scale=True, leave=False, disable=not show_bar(show))
