"""The event-driven engine in PyTorch calls: layers are computed only where they UPDATE or FLUSH.

Batch rows do not depend on each other, so each goes at its own pace. A row that has an event in a layer waits there
until many do: a product of a few rows with a large matrix takes nearly as long as one of many.

The letters are those of `hmrnn.equations`; y is z_below. Everything here is without a graph: the backward pass is
written out. `native` is the same mathematics in C++.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmrnn.boundary import fires, hard_sigmoid
from hmrnn.engines import event_driven
from hmrnn.engines.event_driven import (
    Gradients,
    InputGradients,
    Inputs,
    Result,
)
from hmrnn.engines.events.backward import Backward
from hmrnn.engines.events.tables import (
    Copies,
    Events,
    Layer,
    RowSteps,
    activated,
    detector_weights,
    squash,
)
from hmrnn.engines.types import Engine, Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call


def run(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    return event_driven.run(EventsKernel(), weights, call, rules)


class EventsKernel:
    def forward(self, weights: list[LayerWeights], inputs: Inputs, call: Call, rules: Rules, training: bool) -> Result:
        assert inputs.x is not None
        return Forward(weights, inputs.x, call, rules, training).run()

    def backward(self, saved: Forward, gradients: Gradients, want_x: bool) -> InputGradients:
        f = saved
        return Backward(f.layers, f.done, f.x, f.call, f.rules, f.s_z, f.fires, gradients).run(want_x)


class Forward:
    def __init__(self, weights: list[LayerWeights], x: Tensor, call: Call, rules: Rules, training: bool) -> None:
        self.x, self.call, self.rules, self.training = x, call, rules, training
        L = len(weights)
        T, B, _ = x.shape
        device = x.device
        self.L = L
        self.layers = []
        for l in range(L):
            h, c, copies = call.state.h[l].clone(), call.state.c[l].clone(), training and l > 0
            self.layers.append(Layer(weights[l], h, c, torch.arange(B, device=device), stacked(weights, l), copies))
        self.t = torch.zeros(B, dtype=torch.int64, device=device)  # the step that each row is at
        self.lengths = torch.full((B,), T, device=device) if call.valid is None else call.valid.sum(0)
        self.waits = torch.where(self.lengths > 0, 0, L)  # the layer that each row waits at; L: it is done
        self.z = torch.cat([call.state.z, x.new_zeros(B, 1)], dim=1)  # the newest of each layer
        self.s_z, self.fires, self.out_z = (x.new_zeros(T, B, L - 1) for _ in range(3))
        start = torch.arange(B, device=device).expand(T, B)
        self.index = [start.clone() for _ in range(L)]
        self.done: list[RowSteps] = []
        self.wx = x @ weights[0].W.T  # the only product that need not wait
        self.wx_z = x @ detector_weights(weights[0])[0] if L > 1 else None

    def run(self) -> Result:
        while True:
            waiting = torch.bincount(self.waits, minlength=self.L + 1)[: self.L].tolist()
            if not any(waiting):
                break
            # The first layer has most of the work: it goes on while half of the rows can.
            upper = max(waiting[1:], default=0)
            l = 0 if upper == 0 or 2 * waiting[0] >= len(self.waits) else waiting.index(upper, 1)
            self.event(l, (self.waits == l).nonzero().squeeze(1))
        if self.call.valid is not None:
            self.hold_in_padding()
        return Result(
            values=[torch.cat(layer.values) for layer in self.layers],
            tangents=[torch.cat(layer.not_h) if layer.not_h else None for layer in self.layers],
            index=self.index,
            z=self.out_z.clone(),  # not what this object keeps: torch could never free the two
            c_last=[layer.c.clone() for layer in self.layers],
            z_last=self.z[:, :-1].clone(),
            saved=self if self.training else None,
        )

    def event(self, l: int, rows: Tensor) -> None:
        """An UPDATE or FLUSH of layer l in the rows that wait for it."""
        layer, t = self.layers[l], self.t[rows]
        steps = self.steps(l, rows, t)
        z, y = self.z[rows, l].unsqueeze(1), torch.ones_like(self.z[rows, :1]) if l == 0 else self.z[rows, l - 1 : l]
        v = None if l + 1 == self.L else self.layers[l + 1].v[rows]
        s = layer.r[rows] + (self.wx[t, rows] if l == 0 else y * (self.handed(l - 1, rows) @ layer.w.W.T))
        if v is not None:
            s += z * v
        gates, c = activated(layer.w, s), layer.c[rows]
        f, i, o, g = gates.chunk(4, dim=-1)
        c_new = (1 - z) * (f * c) + i * g
        squashed = squash(layer.w, c_new)
        fires = self.detect(steps, z, y)
        number = layer.count
        self.index[l][t, rows] = layer.record(rows, o * squashed, c_new)
        if self.training:
            kept = Events(
                **vars(steps), number=number, z=z, y=y, s=s, gates=gates, squashed=squashed, c=c, c_new=c_new, v=v
            )
            self.done.append(kept)
        self.decide(l, rows, t, fires)
        self.climb(l + 1, rows, t)

    def handed(self, l: int, rows: Tensor) -> Tensor:
        """What W of the layer above multiplies."""
        h = self.layers[l].h[rows]
        return h * self.rules.masks[l][rows] if self.rules.masks else h

    def climb(self, l: int, rows: Tensor, t: Tensor) -> None:
        """Takes rows up through layers that COPY, to the next event in this step or to the next step."""
        while l < self.L and len(rows):
            happens = (self.z[rows, l] + self.z[rows, l - 1]) > 0
            self.waits[rows[happens]] = l
            rows, t = rows[~happens], t[~happens]
            if len(rows):
                self.copy(l, rows, t)
            l += 1
        self.t[rows] += 1
        self.waits[rows] = torch.where(self.t[rows] < self.lengths[rows], 0, self.L)

    def copy(self, l: int, rows: Tensor, t: Tensor) -> None:
        steps = self.steps(l, rows, t)
        fires = self.detect(steps)
        self.index[l][t, rows] = steps.before
        if self.training:
            self.done.append(Copies(**vars(steps)))
        self.decide(l, rows, t, torch.zeros_like(fires) if self.rules.hold else fires)

    def steps(self, l: int, rows: Tensor, t: Tensor) -> RowSteps:
        above = self.layers[l + 1].event[rows] if l + 1 < self.L else None
        below = self.layers[l - 1].event[rows] if l else None
        return RowSteps(l, rows, t, self.layers[l].event[rows], above, below)

    def detect(self, steps: RowSteps, z: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """(m,) whether the detector fires. Without z and y: in a COPY, where they are zero."""
        l, rows, t = steps.l, steps.rows, steps.t
        if l + 1 == self.L:
            return self.z.new_zeros(len(rows))
        s_z = self.layers[l].dots[rows, 0] + detector_weights(self.layers[l].w)[3]
        if z is not None and y is not None:
            below = self.wx_z[t, rows] if self.wx_z is not None and l == 0 else self.layers[l - 1].dots[rows, 1]
            s_z += z.squeeze(1) * self.layers[l + 1].dots[rows, 2] + y.squeeze(1) * below
        z_tilde = hard_sigmoid(s_z, self.call.slope)
        if self.call.given is None:
            uniforms = None if self.rules.uniforms is None else self.rules.uniforms[t, rows, l]
            fired = fires(z_tilde, self.rules.boundary, uniforms).to(s_z.dtype)
        else:
            fired = torch.zeros_like(s_z)  # nobody asks
        self.s_z[t, rows, l], self.fires[t, rows, l] = s_z, fired
        return fired

    def decide(self, l: int, rows: Tensor, t: Tensor, fires: Tensor) -> None:
        """The boundary of layer l: the detector's, or the one that is given."""
        if l + 1 < self.L:
            boundary = fires if self.call.given is None else self.call.given[t, rows, l]
            self.z[rows, l] = boundary
            self.out_z[t, rows, l] = boundary

    def hold_in_padding(self) -> None:
        late = torch.arange(len(self.out_z), device=self.z.device).unsqueeze(1) >= self.lengths
        for index, layer in zip(self.index, self.layers, strict=True):
            index.copy_(torch.where(late, layer.event, index))


def stacked(weights: list[LayerWeights], l: int) -> Tensor:
    """All that h of layer l is multiplied with, see `Layer`."""
    U = weights[l].U
    none = torch.zeros_like(U[0])
    rows = [
        detector_weights(weights[l])[1] if l + 1 < len(weights) else none,
        detector_weights(weights[l + 1])[0] if l + 2 < len(weights) else none,
        detector_weights(weights[l - 1])[2] if l else none,
    ]
    V_below = weights[l - 1].V if l else None
    return torch.cat([U, *([] if V_below is None else [V_below]), torch.stack(rows)])


ENGINE = Engine(
    "events",
    run,
    boundaries=frozenset({"step", "sample"}),
    devices=frozenset({"cpu"}),
    dtypes=frozenset({torch.float32, torch.float64}),
    fastest="the fastest on a CPU that needs no compiler",
)
