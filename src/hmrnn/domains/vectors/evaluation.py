"""How well a model predicts lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from hmrnn.dropout import evaluating
from hmrnn.show.progress import show_bar
from hmrnn.training.batches import Line, cut, windows

if TYPE_CHECKING:
    from hmrnn.domains.vectors.model import VectorModel

LINES_AT_ONCE, POINTS_AT_ONCE = 32, 256  # in one call, side by side: enough to be quick, and little memory


class LineScores(NamedTuple):
    nats: npt.NDArray[np.float64]  # (lines,): log-likelihood in nats
    rates: tuple[float, ...]  # how often each detector fired


def log_likelihoods(
    model: VectorModel[Any], lines: Sequence[Line], show: bool = False, sigma_floor: float = 0.0
) -> npt.NDArray[np.float64]:
    """(lines,): the log-likelihood in nats of each line, see `score_lines`."""
    return score_lines(model, lines, show, sigma_floor).nats


@torch.no_grad()
def score_lines(
    model: VectorModel[Any], lines: Sequence[Line], show: bool = False, sigma_floor: float = 0.0
) -> LineScores:
    """The log-likelihood in nats of each line from its second point on, in normalised coordinates.

    Deviations of the predicted density are raised to `sigma_floor`, so that models with different floors compare.

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
            for start, end in windows(max(map(len, batch)), POINTS_AT_ONCE):
                window = cut(batch, start, end)
                points = window.points.to(model.mean.device)
                out, state = model(points[:-1], state, window.lengths, generator=generator)
                density = out.density.floored(sigma_floor) if sigma_floor > 0 else out.density
                own = density.log_prob(model.normalised(points[1:])).double().cpu()
                nats[rows] += own.where(window.counted, 0.0).sum(0).numpy()
                fired += out.rnn.z.sum((0, 1)).cpu()  # 0 at padded steps
                bar.update(window.count)
    return LineScores(nats, tuple((fired / max(1, total - len(lines))).tolist()))
