"""What the event-driven engine in PyTorch keeps of a layer and its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hmrnn.engines.types import Rules
from hmrnn.equations import LAYER_NORM_EPS, LayerWeights
from hmrnn.recurrent import Call

Rows = Tensor | slice
EVERY_ROW = slice(None)  # as an index, a view and not a copy


class Events(NamedTuple):
    """The events of a layer at one time step: m rows of the batch."""

    rows: Rows  # which batch rows
    number: int  # of the first of them in the layer's tables
    z: Tensor  # (m, 1) z[t-1, l]
    y: Tensor  # (m, 1) z[t, l-1]
    s: Tensor  # (m, 4H) the gates' pre-activation, before layer normalisation and bias
    h: Tensor  # (m, H) h[t-1, l]
    c: Tensor  # (m, H) c[t-1, l]
    c_new: Tensor  # (m, H)
    h_below: Tensor  # (m, H_below) h[t, l-1]
    h_above: Tensor | None  # (m, H_above) h[t-1, l+1]
    v: Tensor | None  # (m, 4H) V h_above


class Counterfactual(NamedTuple):
    """What a COPY step did not do, made once an event."""

    h: Tensor  # o*tanh(c) - h
    flush: Tensor  # i*g - c
    update: Tensor  # f*c + i*g - c


@dataclass
class Layer:
    """The weights of a layer, its current state in each row, and the tables of its events."""

    w: LayerWeights
    h: Tensor  # (B, H)
    c: Tensor  # (B, H)
    event: Tensor  # (B,) the current event of each row
    stacked: Tensor  # U of this layer over V of the layer below
    always: bool  # every step has an event in every row
    counterfactual: bool  # whether COPY steps have a gradient
    r: Tensor = field(init=False)  # (B, 4H) U h
    v: Tensor | None = field(init=False, default=None)  # (B, 4H_below) V h for the layer below
    values: list[Tensor] = field(default_factory=list)  # h after each event, time step by time step
    counterfactuals: list[Counterfactual] = field(default_factory=list)
    at: list[Events | None] = field(default_factory=list)  # for each time step

    @property
    def size(self) -> int:
        return self.h.shape[1]

    def record(self, rows: Rows, h: Tensor, c: Tensor, number: int) -> None:
        """Enters events into the tables and makes them current."""
        products = h @ self.stacked.T
        r, v = products[:, : 4 * self.size], products[:, 4 * self.size :]
        numbers = torch.arange(number, number + len(h), device=h.device)
        if rows is EVERY_ROW:
            # copies where later events will write into some of the rows
            self.h, self.c = (h, c) if self.always else (h.clone(), c.clone())
            self.r, self.v, self.event = r, v, numbers
        else:
            assert self.v is not None
            for current, new in ((self.h, h), (self.c, c), (self.r, r), (self.v, v), (self.event, numbers)):
                current[rows] = new
        self.values.append(h)
        if self.counterfactual:
            self.counterfactuals.append(counterfactual(self.w, r, h, c))


@dataclass
class Saved:
    """What the backward pass needs."""

    layers: list[Layer]
    call: Call
    rules: Rules
    s_z: Tensor  # (T, B, L-1) pre-activation of each detector
    fires: Tensor  # (T, B, L-1) bound(z~), whether or not it was used
    z: Tensor  # (T, B, L-1) z[t-1, l], at each t
    y: Tensor  # (T, B, L) z[t, l-1]
    index: list[Tensor]


def detector_weights(w: LayerWeights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_z, U_z, V_z and b_z of a layer that has a detector."""
    return w.W_z, w.U_z, w.V_z, w.b_z  # type: ignore[return-value]


def gates(w: LayerWeights, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s = s + w.b if w.gain is None else F.layer_norm(s, w.b.shape, w.gain, w.b, LAYER_NORM_EPS)
    f, i, o, g = s.chunk(4, dim=-1)
    return f.sigmoid(), i.sigmoid(), o.sigmoid(), g.tanh()


def squash(w: LayerWeights, c: Tensor) -> Tensor:
    if w.gain_c is not None:
        c = F.layer_norm(c, w.gain_c.shape, w.gain_c, w.bias_c, LAYER_NORM_EPS)
    return c.tanh()


def counterfactual(w: LayerWeights, r: Tensor, h: Tensor, c: Tensor) -> Counterfactual:
    f, i, o, g = gates(w, r)
    flush = i * g - c
    return Counterfactual(o * squash(w, c) - h, flush, flush + f * c)
