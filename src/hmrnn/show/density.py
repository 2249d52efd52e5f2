"""Where a model expected each next point of a line, over the plane."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from hmrnn.data.strokes import Points
from hmrnn.models import StrokeModel

COLUMNS, MOST_ROWS = 700, 400  # of the grid
AT_ONCE = 20_000_000  # numbers
Floats = npt.NDArray[np.float64]


@torch.no_grad()
def predicted_density(model: StrokeModel, points: Points) -> tuple[Floats, Floats, Floats, Floats]:
    """x (columns,), y (rows,), the density (rows, columns) that was predicted for the next point, summed over all
    steps, per unit of area; and the weights (T, K) of the mixture."""
    read = torch.from_numpy(np.array(points, dtype=np.float32)).unsqueeze(1).to(model.mean.device)
    out, _ = model(read, generator=torch.Generator(model.mean.device).manual_seed(0))
    density = out.density[:, 0].to(torch.float64).to("cpu")
    mean, deviation = (values[:2].double().cpu() for values in (model.mean, model.deviation))
    places = torch.from_numpy(np.cumsum(points[:, :2], axis=0, dtype=np.float64))
    x, y = grid(places.numpy())
    plane = torch.stack(
        torch.meshgrid(torch.from_numpy(x), torch.from_numpy(y), indexing="xy"), -1
    )  # (rows, columns, 2)
    total = torch.zeros(plane.shape[:2], dtype=torch.float64)
    step = max(1, AT_ONCE // (total.numel() * model.config.components))
    for start in range(0, len(points), step):
        own = density[start : start + step]
        offsets = (plane - places[start : start + step, None, None] - mean) / deviation
        wide = own[:, None, None]
        log_p = torch.logsumexp(wide.log_pi + wide.component_log_prob(offsets), -1)
        total += log_p.exp().sum(0)
    return x, y, (total / deviation.prod()).numpy(), density.log_pi.exp().numpy()


def grid(places: Floats) -> tuple[Floats, Floats]:
    """Squares over where the line goes, and a little around it."""
    low, high = places.min(0), places.max(0)
    margin = 0.05 * max((high - low).max(), 1.0)
    low, high = low - margin, high + margin
    size = max((high - low)[0] / COLUMNS, (high - low)[1] / MOST_ROWS)
    return np.arange(low[0], high[0], size), np.arange(low[1], high[1], size)
