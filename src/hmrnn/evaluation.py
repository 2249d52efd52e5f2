"""How well a model predicts: a text, or lines of handwriting."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from tqdm import tqdm

from hmrnn.config import check_positive, check_size
from hmrnn.data.batches import cut, windows
from hmrnn.data.streams import Streams
from hmrnn.data.strokes import Points
from hmrnn.data.text import Numbers
from hmrnn.dropout import evaluating

if TYPE_CHECKING:
    from hmrnn.models import StrokeModel, TextModel

AT_ONCE = 8192  # symbols in one call: enough to be quick, and little memory
LINES_AT_ONCE = 32


class TextScore(NamedTuple):
    bits: float  # a character
    rates: tuple[float, ...]  # how often each detector fired


class LineScores(NamedTuple):
    nats: npt.NDArray[np.float64]  # (lines,): log-likelihood in nats
    rates: tuple[float, ...]  # how often each detector fired


def bits_per_character(
    model: TextModel, numbers: Numbers, streams: int = 1, window: int | None = None, show: bool = False
) -> float:
    """The mean of -log2 p(next symbol), see `score_text`."""
    return score_text(model, numbers, streams, window, show).bits


@torch.no_grad()
def score_text(
    model: TextModel, numbers: Numbers, streams: int = 1, window: int | None = None, show: bool = False
) -> TextScore:
    """The mean of -log2 p(next symbol), from the second symbol on, with the state carried along, in constant memory.

    With one stream, the text is read from its start to its end: exact. More are quicker, and each but the first starts
    in the middle of the text without a past. `show` draws a progress bar, if there is a terminal.
    """
    check_length(numbers)
    check_size("streams", streams)
    rows = Streams.to_evaluate(numbers, min(streams, len(numbers) - 1))
    window = window or max(1, AT_ONCE // streams)
    check_size("window", window)
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(0)  # for sampled boundaries: the same answer every time
    nats, state, fired = 0.0, None, torch.zeros(model.rnn.state_sizes[2], dtype=torch.float64)
    with (
        evaluating(model),
        tqdm(total=len(numbers) - 1, unit="sym", unit_scale=True, leave=False, disable=not show_bar(show)) as bar,
    ):
        for start in range(0, rows.steps, window):
            end = min(start + window, rows.steps)
            lengths = rows.lengths(start, end)
            given = model.boundaries_of(rows, start, end)
            short = lengths if int(lengths.min()) < end - start else None
            symbols = rows.read(start, end + 1).to(device)
            out, state = model(symbols[:-1], state, short, given, generator=generator)
            losses = F.cross_entropy(out.logits.float().flatten(0, 1), symbols[1:].flatten(), reduction="none")
            counted = torch.arange(end - start).unsqueeze(1) < lengths
            nats += losses.view(end - start, -1).double()[counted.to(device)].sum().item()
            fired += out.rnn.z.sum((0, 1)).cpu()  # 0 at padded steps
            bar.update(int(lengths.sum()))
    steps = len(numbers) - 1
    return TextScore(nats / math.log(2) / steps, tuple((fired / steps).tolist()))


def dynamic_bits_per_character(
    model: TextModel, numbers: Numbers, learning_rate: float, window: int = 100, show: bool = False
) -> float:
    """The same for a model that goes on learning as it reads (dynamic evaluation): each window is predicted first, with
    what was learnt from those before it, and then learnt from, by one step of gradient descent, clipped at norm 1.

    The model itself is left as it is: a copy learns.
    """
    check_length(numbers)
    check_positive("learning_rate", learning_rate, most=1e30)  # float32 ends soon after
    learner = copy.deepcopy(model).eval()
    stream = Streams.to_evaluate(numbers, 1)
    optimizer = torch.optim.SGD([p for p in learner.parameters() if p.requires_grad], lr=learning_rate)
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(0)
    nats, state = 0.0, None
    with tqdm(total=stream.steps, unit="sym", unit_scale=True, leave=False, disable=not show_bar(show)) as bar:
        for start in range(0, stream.steps, window):
            end = min(start + window, stream.steps)
            symbols = stream.read(start, end + 1).to(device)
            given = learner.boundaries_of(stream, start, end)
            out, state = learner(symbols[:-1], state, boundaries=given, generator=generator)
            loss = F.cross_entropy(out.logits.float().flatten(0, 1), symbols[1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            if torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0).isfinite():
                optimizer.step()
                learner.rnn.constrain_detectors()
            state = state.detach()
            nats += loss.item() * (end - start)
            bar.update(end - start)
    return nats / math.log(2) / stream.steps


def log_likelihoods(model: StrokeModel, lines: Sequence[Points], show: bool = False) -> npt.NDArray[np.float64]:
    """(lines,): the log-likelihood in nats of each line, see `score_lines`."""
    return score_lines(model, lines, show).nats


@torch.no_grad()
def score_lines(model: StrokeModel, lines: Sequence[Points], show: bool = False) -> LineScores:
    """The log-likelihood in nats of each line from its second point on, in normalised coordinates.

    Lines of about the same length are read side by side, in constant memory. Which ones changes nothing, but for
    sampled boundaries: there it changes the samples.
    """
    nats = np.zeros(len(lines))
    order = np.argsort([len(line) for line in lines], kind="stable")
    generator = torch.Generator(model.mean.device).manual_seed(0)  # for sampled boundaries
    total, fired = sum(map(len, lines)), torch.zeros(model.rnn.state_sizes[2], dtype=torch.float64)
    with (
        evaluating(model),
        tqdm(total=total, unit="pt", unit_scale=True, leave=False, disable=not show_bar(show)) as bar,
    ):
        for rows in np.split(order, range(LINES_AT_ONCE, len(order), LINES_AT_ONCE)):
            batch, state = [lines[row] for row in rows], None
            for start, end in windows(max(map(len, batch)), AT_ONCE // LINES_AT_ONCE):
                window = cut(batch, start, end)
                points = window.points.to(model.mean.device)
                out, state = model(points[:-1], state, window.lengths, generator=generator)
                own = out.density.log_prob(model.normalised(points[1:])).double().cpu()
                nats[rows] += own.where(window.counted, 0.0).sum(0).numpy()
                fired += out.rnn.z.sum((0, 1)).cpu()  # 0 at padded steps
                bar.update(window.count)
    return LineScores(nats, tuple((fired / max(1, total - len(lines))).tolist()))


def check_length(numbers: Numbers) -> None:
    if len(numbers) < 2:
        raise ValueError(f"text must have at least 2 symbols, one to predict from the other; got {len(numbers)}")


def show_bar(wanted: bool) -> bool:
    return wanted and sys.stderr.isatty()
