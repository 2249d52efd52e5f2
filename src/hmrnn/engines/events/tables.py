"""What the event-driven engine in PyTorch keeps of a layer, its events and its COPY steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hmrnn.equations import LayerWeights, layer_norm


@dataclass
class RowSteps:
    """What a layer did in some batch rows, each at its own time step: m rows."""

    l: int
    rows: Tensor  # (m,)
    t: Tensor  # (m,)
    before: Tensor  # (m,) the event of this layer that was current when the step began
    above: Tensor | None  # (m,) that of the layer above, if there is one
    below: Tensor | None  # (m,) that of the layer below after its own step; None in the first layer


@dataclass
class Copies(RowSteps):
    """COPY."""


@dataclass
class Events(RowSteps):
    """UPDATE or FLUSH."""

    number: int  # of the first of these events in the layer's tables
    z: Tensor  # (m, 1) z[t-1, l]
    y: Tensor  # (m, 1) z[t, l-1]
    s: Tensor  # (m, 4H) the gates' pre-activation, before layer normalisation and bias
    gates: Tensor  # (m, 4H) f, i, o, g
    squashed: Tensor  # (m, H) tanh(c), or tanh(LN(c))
    c: Tensor  # (m, H) c[t-1, l]
    c_new: Tensor  # (m, H)
    v: Tensor | None  # (m, 4H) V h_above


@dataclass
class Layer:
    """The weights of a layer, its current state in each row, and the tables of its events."""

    w: LayerWeights
    h: Tensor  # (B, H)
    c: Tensor  # (B, H)
    event: Tensor  # (B,) the current event
    stacked: Tensor  # all that h is multiplied with: U, V of the layer below, and three rows for `dots`
    counterfactual: bool  # whether its COPY steps have a gradient
    r: Tensor = field(init=False)  # (B, 4H) U h
    v: Tensor = field(init=False)  # (B, 4H_below) V h for the layer below
    dots: Tensor = field(init=False)  # (B, 3) U_z h; W_z h for the layer above; V_z h for the layer below
    count: int = field(init=False)  # of its events
    # One part for each entry, to be joined in the end.
    values: list[Tensor] = field(default_factory=list)  # h
    # What a COPY step after the event does not do:
    not_h: list[Tensor] = field(default_factory=list)  # o*tanh(c) - h
    not_flush: list[Tensor] = field(default_factory=list)  # i*g - c
    not_update: list[Tensor] = field(default_factory=list)  # f*c + i*g - c

    def __post_init__(self) -> None:
        self.count = len(self.h)
        self.r, self.v, self.dots = self._enter(self.h.clone(), self.c)

    def record(self, rows: Tensor, h: Tensor, c: Tensor) -> Tensor:
        """Enters events into the tables and makes them current. Returns their numbers."""
        numbers = torch.arange(self.count, self.count + len(rows), device=h.device)
        self.count += len(rows)
        r, v, dots = self._enter(h, c)
        news = {"h": h, "c": c, "r": r, "v": v, "dots": dots, "event": numbers}
        for name, new in news.items():
            getattr(self, name)[rows] = new
        return numbers

    def _enter(self, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        products = h @ self.stacked.T
        r, v, dots = products[:, : 4 * h.shape[1]], products[:, 4 * h.shape[1] : -3], products[:, -3:]
        self.values.append(h)
        if self.counterfactual:
            f, i, o, g = activated(self.w, r).chunk(4, dim=-1)
            not_flush = i * g - c
            self.not_h.append(o * squash(self.w, c) - h)
            self.not_flush.append(not_flush)
            self.not_update.append(not_flush + f * c)
        return r, v, dots


def detector_weights(w: LayerWeights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_z, U_z, V_z and b_z of a layer that has a detector."""
    return w.W_z, w.U_z, w.V_z, w.b_z  # type: ignore[return-value]


def activated(w: LayerWeights, s: Tensor) -> Tensor:
    """(m, 4H): f, i, o, g of a pre-activation."""
    s = s + w.b if w.gain is None else layer_norm(s, w.gain, w.b)
    size = s.shape[1] // 4
    s[:, : 3 * size].sigmoid_()
    s[:, 3 * size :].tanh_()
    return s


def squash(w: LayerWeights, c: Tensor) -> Tensor:
    if w.gain_c is not None and w.bias_c is not None:
        c = layer_norm(c, w.gain_c, w.bias_c)
    return c.tanh()
