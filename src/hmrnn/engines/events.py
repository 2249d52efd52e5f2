"""The event-driven engine in PyTorch calls: layers are computed only where they UPDATE or FLUSH.

The letters are those of `hmrnn.equations`; y is z_below. Everything here is without a graph: the backward pass is
written out, and `native` is the same in C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from hmrnn.boundary import hard_sigmoid
from hmrnn.engines import event_driven
from hmrnn.engines.event_driven import Gradients, InputGradients, Result
from hmrnn.engines.events_backward import Backward
from hmrnn.engines.types import Rules, Trace
from hmrnn.equations import LAYER_NORM_EPS, LayerWeights
from hmrnn.recurrent import Call


def run(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    return event_driven.run(EventsKernel(), weights, call, rules)


class Events(NamedTuple):
    """The events of a layer at one time step: m rows of the batch."""

    rows: Tensor  # (m,) which batch rows
    number: int  # of the first of them in the layer's tables
    before: Tensor  # (m,) each row's event before
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
    partial: bool  # a step may have events in some of the rows only
    counterfactual: bool  # whether COPY steps have a gradient
    r: Tensor = field(init=False)  # (B, 4H) U h
    v: Tensor | None = field(init=False, default=None)  # (B, 4H_below) V h for the layer below
    values: list[Tensor] = field(default_factory=list)  # h after each event, time step by time step
    counterfactuals: list[Counterfactual] = field(default_factory=list)
    at: list[Events | None] = field(default_factory=list)  # for each time step

    @property
    def size(self) -> int:
        return self.h.shape[1]

    def record(self, rows: Tensor, h: Tensor, c: Tensor, number: int) -> None:
        """Enters events into the tables and makes them current."""
        products = h @ self.stacked.T
        r, v = products[:, : 4 * self.size], products[:, 4 * self.size :]
        whole = len(rows) == len(self.event)
        numbers = torch.arange(number, number + len(rows), device=h.device)
        if whole:
            # copies where later events will write into some of the rows
            self.h, self.c = (h.clone(), c.clone()) if self.partial else (h, c)
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


class EventsKernel:
    def forward(self, weights: list[LayerWeights], call: Call, rules: Rules, training: bool) -> Result:
        x, L = call.x, len(weights)
        T, B, _ = x.shape
        everyone = torch.arange(B, device=x.device)
        layers = []
        for l, w in enumerate(weights):
            V_below = weights[l - 1].V if l else None
            stacked = w.U if V_below is None else torch.cat([w.U, V_below])
            h, c, padded = call.state.h[l], call.state.c[l], call.valid is not None
            layers.append(Layer(w, h, c, everyone, stacked, partial=l > 0 or padded, counterfactual=training and l > 0))
            layers[l].record(everyone, h, c, 0)
        counts = [B] * L
        z = torch.cat([call.state.z, x.new_zeros(B, 1)], dim=1)
        s_z, fires, z_before, out_z = (x.new_zeros(T, B, L - 1) for _ in range(4))
        ys = x.new_ones(T, B, L)
        index = [torch.empty(T, B, dtype=torch.int64, device=x.device) for _ in layers]
        alive = torch.ones(T, B, dtype=torch.bool, device=x.device) if call.valid is None else call.valid
        wx = (x.view(T * B, -1) @ weights[0].W.T).view(T, B, -1)

        for t in range(T):
            y = alive[t].to(x.dtype)
            z_before[t] = z[:, :-1]
            h_below = x[t]
            for l, layer in enumerate(layers):
                above = layers[l + 1] if l + 1 < L else None
                ys[t, :, l] = y
                z_l = z[:, l]
                if above is not None:
                    s_z[t, :, l] = detector(layer, above, h_below, z_l, y)
                    uniform = None if rules.uniforms is None else rules.uniforms[t, :, l]
                    z_tilde = hard_sigmoid(s_z[t, :, l], call.slope)
                    fires[t, :, l] = (z_tilde > 0.5) if uniform is None else (uniform < z_tilde)
                happens = ((z_l + y) > 0) & alive[t]
                rows = everyone if l == 0 and call.valid is None else happens.nonzero().squeeze(1)
                events = None
                if len(rows):
                    events = compute(layer, above, rows, counts[l], z_l, y, h_below, wx[t] if l == 0 else None)
                    h_new, c_new = state_after(layer.w, events)
                    events = events._replace(c_new=c_new)
                    layer.record(rows, h_new, c_new, counts[l])
                    counts[l] += len(rows)
                layer.at.append(events if training else None)
                index[l][t] = layer.event
                h_below = layer.h
                if above is not None:
                    z_new = fires[t, :, l] if call.given is None else call.given[t, :, l]
                    if call.given is None and rules.hold:
                        z_new = z_new * happens
                    z_new = z_new * alive[t]
                    out_z[t, :, l] = z_new
                    z[:, l] = torch.where(alive[t], z_new, z_l)
                    y = z_new

        saved = Saved(layers, call, rules, s_z, fires, z_before, ys, index)
        return Result(
            values=[torch.cat(layer.values) for layer in layers],
            tangents=[torch.cat([c.h for c in layer.counterfactuals]) if layer.counterfactuals else None for layer in layers],
            index=index,
            z=out_z,
            c_last=[layer.c for layer in layers],
            z_last=z[:, :-1].clone(),
            saved=saved if training else None,
        )

    def backward(self, saved: Saved, gradients: Gradients, want_x: bool) -> InputGradients:
        return Backward(saved, gradients).run(want_x)


def detector(layer: Layer, above: Layer, h_below: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """(B,) s_z"""
    w = layer.w
    assert w.U_z is not None and w.V_z is not None and w.W_z is not None and w.b_z is not None
    return layer.h @ w.U_z + z * (above.h @ w.V_z) + y * (h_below @ w.W_z) + w.b_z


def compute(
    layer: Layer, above: Layer | None, rows: Tensor, number: int, z: Tensor, y: Tensor, h_below: Tensor, wx: Tensor | None
) -> Events:
    """The pre-activations of the rows that have an event."""
    z_rows, y_rows = z[rows].unsqueeze(1), y[rows].unsqueeze(1)
    below = h_below[rows]
    s = layer.r[rows] + (y_rows * (below @ layer.w.W.T) if wx is None else wx[rows])
    v = h_above = None
    if above is not None and above.v is not None:
        v, h_above = above.v[rows], above.h[rows]
        s = s + z_rows * v
    h, c = layer.h[rows], layer.c[rows]
    return Events(rows, number, layer.event[rows], z_rows, y_rows, s, h, c, c, below, h_above, v)


def gates(w: LayerWeights, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s = s + w.b if w.gain is None else torch.nn.functional.layer_norm(s, w.b.shape, w.gain, w.b, LAYER_NORM_EPS)
    f, i, o, g = s.chunk(4, dim=-1)
    return f.sigmoid(), i.sigmoid(), o.sigmoid(), g.tanh()


def squash(w: LayerWeights, c: Tensor) -> Tensor:
    if w.gain_c is not None:
        c = torch.nn.functional.layer_norm(c, w.gain_c.shape, w.gain_c, w.bias_c, LAYER_NORM_EPS)
    return c.tanh()


def state_after(w: LayerWeights, events: Events) -> tuple[Tensor, Tensor]:
    f, i, o, g = gates(w, events.s)
    c = (1 - events.z) * (f * events.c) + i * g
    return o * squash(w, c), c


def counterfactual(w: LayerWeights, r: Tensor, h: Tensor, c: Tensor) -> Counterfactual:
    f, i, o, g = gates(w, r)
    flush = i * g - c
    return Counterfactual(o * squash(w, c) - h, flush, flush + f * c)
