"""The backward pass of the event-driven engine, written out: what was done last is gone back over first.

dF, dU and dC are the gradients by the coefficients flush, update and copy of `hmrnn.equations`, and
flush = z, update = (1-z)*y, copy = (1-z)*(1-y), where z = z[t-1,l] and y = z[t,l-1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hmrnn.engines.event_driven import Gradients, InputGradients
from hmrnn.engines.events.tables import (
    Events,
    Layer,
    RowSteps,
    detector_weights,
)
from hmrnn.engines.types import Rules
from hmrnn.equations import LAYER_NORM_EPS, LayerWeights
from hmrnn.recurrent import Call


class LayerBackward:
    """A layer on the way back."""

    def __init__(self, layer: Layer, dc: Tensor) -> None:
        B = len(layer.h)
        self.w = layer.w
        self.values = torch.cat(layer.values)
        self.not_copied = [torch.cat(part) for part in (layer.not_h, layer.not_flush, layer.not_update) if part]
        self.dh = torch.zeros_like(layer.h)  # (B, H) by h, from uses inside the network
        self.dc = dc.clone()  # (B, H)
        self.repeats = self.dh.new_zeros(B)  # by the decisions to COPY since then
        self.ds = self.dh.new_empty(layer.count, 4 * layer.h.shape[1])  # of each event but the initial states
        # by the dot product of each event's h with the detector of this layer, of the one below, of the one above
        self.du_z, self.dv_z, self.dw_z = self.dh.new_zeros(3, layer.count)
        self.sums = layer.w.map(torch.zeros_like)


@dataclass
class Choice:
    """Gradients by the boundaries that chose what a layer did: (m,) by z[t-1,l] and by z[t,l-1]."""

    z: Tensor
    y: Tensor


class Backward:
    def __init__(
        self,
        layers: list[Layer],
        done: list[RowSteps],
        x: Tensor,
        call: Call,
        rules: Rules,
        s_z: Tensor,
        fires: Tensor,
        gradients: Gradients,
    ) -> None:
        self.done, self.x, self.call, self.rules = done, x, call, rules
        self.s_z, self.fires, self.gradients = s_z, fires, gradients
        T, B, _ = x.shape
        self.L = len(layers)
        self.layers = [LayerBackward(layer, dc) for layer, dc in zip(layers, gradients.c_last, strict=True)]
        self.dz_before = gradients.z_last.clone()  # (B, L-1) by z of the step before
        self.dz = torch.zeros_like(self.dz_before)  # by z of the step at hand
        self.dx_z = x.new_zeros(T, B)  # by the dot product of x with the first detector
        # each event's h as the detectors below and above see it
        self.v_z = [self.layers[l + 1].values @ detector_weights(layers[l].w)[2] for l in range(self.L - 1)]
        self.w_z = [self.layers[l].values @ detector_weights(layers[l + 1].w)[0] for l in range(self.L - 2)]
        if call.valid is not None:  # padding repeats the last state, too
            for layer, repeats in zip(self.layers, gradients.repeats, strict=True):
                if repeats is not None:
                    layer.repeats += (repeats * ~call.valid).sum(0)

    def run(self, want_x: bool) -> InputGradients:
        for steps in reversed(self.done):
            self.step(steps)
        B, values = len(self.dz), self.gradients.values
        return InputGradients(
            x=self.by_x() if want_x else None,
            table=None,
            table_z=None,
            h=[layer.dh if d is None else layer.dh + d[:B] for layer, d in zip(self.layers, values, strict=True)],
            c=[layer.dc for layer in self.layers],
            z=self.dz_before,
            weights=[self.by_weights(l) for l in range(self.L)],
        )

    def step(self, steps: RowSteps) -> None:
        l, rows, t = steps.l, steps.rows, steps.t
        if l == self.L - 1:  # the first that is gone over of a row's time step
            self.dz[rows] = self.dz_before[rows] + self.gradients.z[t, rows]
            self.dz_before[rows] = 0
        repeats = self.gradients.repeats[l]
        if repeats is not None:
            self.layers[l].repeats[rows] += repeats[t, rows]
        choice = self.event(steps) if isinstance(steps, Events) else self.copy(steps)
        if l < self.L - 1:
            if self.call.given is None:
                self.detector(steps, choice)
            self.dz_before[rows, l] += choice.z
        if l > 0:
            self.dz[rows, l - 1] += choice.y

    def copy(self, steps: RowSteps) -> Choice:
        """Against what the layer would have done. dh and dc pass through."""
        layer, rows = self.layers[steps.l], steps.rows
        not_h, not_flush, not_update = (table[steps.before] for table in layer.not_copied)
        dc = layer.dc[rows]
        by_h = (layer.dh[rows] * not_h).sum(-1) + layer.repeats[rows]
        return Choice(by_h + (dc * not_flush).sum(-1), by_h + (dc * not_update).sum(-1))

    def event(self, e: Events) -> Choice:
        """The LSTM's algebra."""
        l, rows, z, y = e.l, e.rows, e.z, e.y
        layer, numbers, d_values = self.layers[l], slice(e.number, e.number + len(rows)), self.gradients.values[l]
        w = layer.w
        f, i, o, g = e.gates.chunk(4, dim=-1)
        dh = layer.dh[rows] if d_values is None else layer.dh[rows] + d_values[numbers]
        dc = layer.dc[rows] + self.through_squash(layer, e, dh * o)
        dc_ig, dh_o, dc_f = dc * (i * g), dh * (o * e.squashed), dc * f
        dF = (dh_o + dc_ig).sum(-1)
        dU = dF + (dc_f * e.c).sum(-1)
        dC = (dh * layer.values[e.before] + dc * e.c).sum(-1)
        update = 1 - z  # in an event, what is not a FLUSH
        dc_f *= update
        ds = torch.cat([dc_f * e.c * (1 - f), dc_ig * (1 - i), dh_o * (1 - o), dc * i * (1 - g * g)], dim=-1)
        layer.sums.b.add_(ds.sum(0))
        if w.gain is not None and layer.sums.gain is not None:
            ds, dgain = norm_backward(ds, e.s, w.gain)
            layer.sums.gain.add_(dgain)
        layer.ds[numbers] = ds

        z_, y_ = z.squeeze(1), y.squeeze(1)
        choice = Choice(dF - y_ * dU - (1 - y_) * dC, (1 - z_) * (dU - dC))
        if e.v is not None and w.V is not None:
            choice.z += (ds * e.v).sum(-1)
            flushed = z_.nonzero().squeeze(1)
            if len(flushed):
                self.layers[l + 1].dh[rows[flushed]] += ds[flushed] @ w.V
        if l > 0:
            below = self.layers[l - 1]
            down = ds @ w.W
            down = down * self.rules.masks[l - 1][rows] if self.rules.masks else down
            choice.y += (down * below.values[e.below]).sum(-1)
            below.dh[rows] += y * down
        layer.dh[rows] = ds @ w.U
        layer.dc[rows] = dc_f
        layer.repeats[rows] = 0
        return choice

    def through_squash(self, layer: LayerBackward, e: Events, grad: Tensor) -> Tensor:
        """Through tanh(c), or tanh(LN(c))."""
        grad = grad * (1 - e.squashed * e.squashed)
        w, sums = layer.w, layer.sums
        if w.gain_c is None or sums.gain_c is None or sums.bias_c is None:
            return grad
        sums.bias_c.add_(grad.sum(0))
        grad, dgain = norm_backward(grad, e.c_new, w.gain_c)
        sums.gain_c.add_(dgain)
        return grad

    def detector(self, steps: RowSteps, choice: Choice) -> None:
        """Through bound() to s_z, and from there on."""
        l, rows, t, slope = steps.l, steps.rows, steps.t, self.call.slope
        event = isinstance(steps, Events)
        z = steps.z.squeeze(1) if isinstance(steps, Events) else 0
        y = steps.y.squeeze(1) if isinstance(steps, Events) else 0
        dz = self.dz[rows, l]
        if self.rules.hold:  # z = (flush + update) * bound(z~)
            by_event = dz * self.fires[t, rows, l]
            choice.z += by_event * (1 - y)
            choice.y += by_event * (1 - z)
            if not event:
                return
        layer, above = self.layers[l], self.layers[l + 1]
        W_z, U_z, V_z, _ = detector_weights(layer.w)
        ds_z = dz * (slope / 2) * ((slope * self.s_z[t, rows, l]).abs() < 1)
        layer.dh[rows] += torch.outer(ds_z, U_z)
        layer.du_z[steps.before] += ds_z
        choice.z += ds_z * self.v_z[l][steps.above]
        if event:
            above.dh[rows] += torch.outer(z * ds_z, V_z)
            above.dv_z[steps.above] += z * ds_z
        if l == 0:
            self.dx_z[t, rows] = ds_z
            return
        below = self.layers[l - 1]
        choice.y += ds_z * self.w_z[l - 1][steps.below]
        if event:
            below.dh[rows] += torch.outer(y * ds_z, W_z)
            below.dw_z[steps.below] += y * ds_z

    def by_x(self) -> Tensor:
        dx = torch.zeros_like(self.x)
        events = self.events(0)
        if events:
            t, rows = torch.cat([e.t for e in events]), torch.cat([e.rows for e in events])
            dx[t, rows] = self.layers[0].ds[len(self.dz) :] @ self.layers[0].w.W
        if self.L > 1:
            dx += self.dx_z.unsqueeze(-1) * detector_weights(self.layers[0].w)[0]
        return dx

    def by_weights(self, l: int) -> LayerWeights:
        """From all events of a layer at once."""
        layer, events = self.layers[l], self.events(l)
        total = layer.sums
        if events:
            ds, before = layer.ds[len(self.dz) :], torch.cat([e.before for e in events])
            total = total._replace(U=ds.T @ layer.values[before], W=ds.T @ self.inputs(l, events))
        if l == self.L - 1:
            return total
        if events:
            flushed = torch.cat([e.z.squeeze(1) for e in events]).nonzero().squeeze(1)
            above = torch.cat([e.above for e in events if e.above is not None])[flushed]
            total = total._replace(V=ds[flushed].T @ self.layers[l + 1].values[above])
        x = self.x.flatten(0, 1)
        return total._replace(
            W_z=self.layers[l - 1].dw_z @ self.layers[l - 1].values if l else self.dx_z.flatten() @ x,
            U_z=layer.du_z @ layer.values,
            V_z=self.layers[l + 1].dv_z @ self.layers[l + 1].values,
            b_z=layer.du_z.sum(),
        )

    def inputs(self, l: int, events: list[Events]) -> Tensor:
        """(N, H_below) z[t,l-1] * h[t,l-1] of each event, or what dropout leaves of it."""
        if l == 0:
            return self.x[torch.cat([e.t for e in events]), torch.cat([e.rows for e in events])]
        below = torch.cat([e.below for e in events if e.below is not None])
        handed = torch.cat([e.y for e in events]) * self.layers[l - 1].values[below]
        return handed * self.rules.masks[l - 1][torch.cat([e.rows for e in events])] if self.rules.masks else handed

    def events(self, l: int) -> list[Events]:
        return [steps for steps in self.done if steps.l == l and isinstance(steps, Events)]


def norm_backward(grad: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Of layer normalisation: by its input, and by its gain."""
    centred = x - x.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + LAYER_NORM_EPS).rsqrt()
    x_hat, scaled = centred * rstd, grad * gain
    dx = rstd * (scaled - scaled.mean(-1, keepdim=True) - x_hat * (scaled * x_hat).mean(-1, keepdim=True))
    return dx, (grad * x_hat).sum(0)
