"""The event-driven engine in PyTorch calls: layers are computed only where they UPDATE or FLUSH.

The letters are those of `hmrnn.equations`; y is z_below. Everything here is without a graph: the backward pass is
written out, and `native` is the same in C++.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmrnn.boundary import hard_sigmoid
from hmrnn.engines import event_driven
from hmrnn.engines.event_driven import Gradients, InputGradients, Result
from hmrnn.engines.events_backward import Backward
from hmrnn.engines.events_tables import EVERY_ROW, Events, Layer, Rows, Saved, detector_weights, gates, squash
from hmrnn.engines.types import Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call


def run(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    return event_driven.run(EventsKernel(), weights, call, rules)


class EventsKernel:
    def forward(self, weights: list[LayerWeights], call: Call, rules: Rules, training: bool) -> Result:
        x, L = call.x, len(weights)
        T, B, _ = x.shape
        everyone = torch.arange(B, device=x.device)
        layers = []
        for l, w in enumerate(weights):
            V_below = weights[l - 1].V if l else None
            stacked = w.U if V_below is None else torch.cat([w.U, V_below])
            h, c, always = call.state.h[l], call.state.c[l], l == 0 and call.valid is None
            layers.append(Layer(w, h, c, everyone, stacked, always=always, counterfactual=training and l > 0))
            layers[l].record(EVERY_ROW, h, c, 0)
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
                rows: Rows = EVERY_ROW if layer.always else happens.nonzero().squeeze(1)
                events = None
                if isinstance(rows, slice) or len(rows):
                    events = compute(layer, above, rows, counts[l], z_l, y, h_below, wx[t] if l == 0 else None)
                    h_new, c_new = state_after(layer.w, events)
                    events = events._replace(c_new=c_new)
                    layer.record(rows, h_new, c_new, counts[l])
                    counts[l] += len(h_new)
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
            tangents=[
                torch.cat([c.h for c in layer.counterfactuals]) if layer.counterfactuals else None for layer in layers
            ],
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
    W_z, U_z, V_z, b_z = detector_weights(layer.w)
    return layer.h @ U_z + z * (above.h @ V_z) + y * (h_below @ W_z) + b_z


def compute(
    layer: Layer,
    above: Layer | None,
    rows: Rows,
    number: int,
    z: Tensor,
    y: Tensor,
    h_below: Tensor,
    wx: Tensor | None,
) -> Events:
    """The pre-activations of the rows that have an event."""
    z_rows, y_rows = copy_of(z, rows).unsqueeze(1), y[rows].unsqueeze(1)
    below = h_below[rows]
    s = layer.r[rows] + (y_rows * (below @ layer.w.W.T) if wx is None else wx[rows])
    v = h_above = None
    if above is not None and above.v is not None:
        v, h_above = copy_of(above.v, rows), copy_of(above.h, rows)
        s = s + z_rows * v
    h, c = layer.h[rows], layer.c[rows]
    return Events(rows, number, z_rows, y_rows, s, h, c, c, below, h_above, v)


def copy_of(current: Tensor, rows: Rows) -> Tensor:
    """Some rows of what later steps will write into."""
    return current.clone() if isinstance(rows, slice) else current[rows]


def state_after(w: LayerWeights, events: Events) -> tuple[Tensor, Tensor]:
    f, i, o, g = gates(w, events.s)
    c = (1 - events.z) * (f * events.c) + i * g
    return o * squash(w, c), c
