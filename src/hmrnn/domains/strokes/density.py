"""Where a model expected each next point of a line, over the plane."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from hmrnn.domains.strokes.data.points import Points
from hmrnn.domains.strokes.mixture import gaussian_log_prob
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.dropout import evaluating

COLUMNS, MOST_ROWS = 700, 400  # of the grid
REACH = 4.0  # deviations around a mean: farther away there is next to nothing
NEGLIGIBLE = 1e-4  # weight of a component
Floats = npt.NDArray[np.float64]


@torch.no_grad()
def predicted_density(model: StrokeModel, points: Points) -> tuple[Floats, Floats, Floats, Floats]:
    """x (columns,), y (rows,), the density (rows, columns) that was predicted for the next point, summed over all
    steps, per unit of area; and the weights (T, K) of the mixture."""
    read = torch.from_numpy(np.array(points, dtype=np.float32)).unsqueeze(1).to(model.mean.device)
    with evaluating(model):
        out, _ = model(read, generator=torch.Generator(model.mean.device).manual_seed(0))
    density = out.density[:, 0].to(torch.float64).to("cpu")
    mean, deviation = (values[:2].double().cpu() for values in (model.mean, model.deviation))
    places = torch.from_numpy(np.cumsum(points[:, :2], axis=0, dtype=np.float64))
    x, y = grid(places.numpy())
    total = torch.zeros(len(y), len(x), dtype=torch.float64)
    sigma, weights = density.log_sigma.exp(), density.log_pi.exp()
    for t, k in (weights > NEGLIGIBLE).nonzero().tolist():
        # A component covers little of a long line: it is computed only there.
        centre, radius = places[t] + mean + density.mu[t, k] * deviation, REACH * sigma[t, k] * deviation
        columns, rows = (
            slice(*np.searchsorted(axis, [float(c - r), float(c + r)]))
            for axis, c, r in zip((x, y), centre, radius, strict=True)
        )
        plane = torch.stack(torch.meshgrid(torch.from_numpy(x[columns]), torch.from_numpy(y[rows]), indexing="xy"), -1)
        offsets = (plane - places[t] - mean) / deviation
        own = gaussian_log_prob(offsets, density.mu[t, k], density.log_sigma[t, k], density.rho[t, k]).exp()
        total[rows, columns] += weights[t, k] * own
    return x, y, (total / deviation.prod()).numpy(), weights.numpy()


def grid(places: Floats) -> tuple[Floats, Floats]:
    """Squares over where the line goes, and a little around it."""
    low, high = places.min(0), places.max(0)
    margin = 0.05 * ((high - low).max() or 1.0)
    low, high = low - margin, high + margin
    size = max((high - low)[0] / COLUMNS, (high - low)[1] / MOST_ROWS)
    return np.arange(low[0], high[0], size), np.arange(low[1], high[1], size)
