"""The backward pass of the event-driven engine, written out: time backwards, layers downwards.

dF, dU and dC are the gradients by the coefficients flush, update and copy of `hmrnn.equations`, and
flush = z, update = (1-z)*y, copy = (1-z)*(1-y), where z = z[t-1,l] and y = z[t,l-1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from hmrnn.engines.event_driven import Gradients, InputGradients
from hmrnn.engines.events_tables import Counterfactual, Events, Layer, Saved, detector_weights, gates, squash
from hmrnn.equations import LAYER_NORM_EPS, LayerWeights


class Backward:
    def __init__(self, saved: Saved, gradients: Gradients) -> None:
        self.saved, self.gradients = saved, gradients
        layers = saved.layers
        self.dh = [torch.zeros_like(layer.h) for layer in layers]  # by h[t, l], from uses inside the network
        self.dc = [gradient.clone() for gradient in gradients.c_last]
        self.dz = gradients.z_last.clone()  # by the boundaries that are carried on
        self.repeats = [layer.h.new_zeros(len(layer.h)) for layer in layers]  # by the decisions to COPY since t
        self.ds_z = torch.zeros_like(saved.s_z)
        self.sums = [WeightSums(layer) for layer in layers]
        self.copies = [_joined(layer.counterfactuals) if layer.counterfactuals else None for layer in layers]
        self.values = [torch.cat(layer.values) for layer in layers]
        start = torch.arange(len(layers[0].h), device=layers[0].h.device).unsqueeze(0)
        self.before = [torch.cat([start, index[:-1]]) for index in saved.index]  # (T, B) current when each step began
        # (N,) each event's h as the detectors below and above see it
        self.v_z = [self.values[l + 1] @ detector_weights(layer.w)[2] for l, layer in enumerate(layers[:-1])]
        self.w_z = [self.values[l] @ detector_weights(layer.w)[0] for l, layer in enumerate(layers[1:-1])]

    def run(self, want_x: bool) -> InputGradients:
        saved, gradients = self.saved, self.gradients
        T, B, _ = saved.call.x.shape
        for t in reversed(range(T)):
            self.step(t)
        x = saved.call.x
        first = saved.layers[0].w
        dx = None
        if want_x:
            # where no event is, in padding, the gradient is zero
            dx = x.new_zeros(T, B, x.shape[2])
            for t, ds in self.sums[0].ds_at.items():
                events = saved.layers[0].at[t]
                assert events is not None
                dx[t, events.rows] = ds @ first.W
            if first.W_z is not None:
                dx += self.ds_z[:, :, :1] * first.W_z
        return InputGradients(
            x=dx,
            h=[dh if d is None else dh + d[:B] for dh, d in zip(self.dh, gradients.values, strict=True)],
            c=self.dc,
            z=self.dz,
            weights=[self.weights(l) for l in range(len(saved.layers))],
        )

    def step(self, t: int) -> None:
        saved, L = self.saved, len(self.saved.layers)
        valid = saved.call.valid
        alive = torch.ones_like(saved.y[t, :, 0]) if valid is None else valid[t].to(saved.y.dtype)
        dz = (self.dz + self.gradients.z[t]) * alive.unsqueeze(1)  # by z[t, l]; complete once layer l+1 is done
        dz_before = self.dz * (1 - alive.unsqueeze(1))  # padded steps pass it on
        for l in reversed(range(L)):
            d_repeats = self.gradients.repeats[l]
            if d_repeats is not None:
                self.repeats[l] += d_repeats[t]
            events = saved.layers[l].at[t]
            happens = torch.zeros_like(alive)
            if events is not None:
                happens[events.rows] = 1
            dself, dy = self.copy_rows(t, l, alive - happens)
            if events is not None:
                self.event_rows(t, l, events, dself, dy)
            if l < L - 1 and saved.call.given is None:
                self.detector(t, l, dz[:, l], happens if saved.rules.hold else alive, dself, dy)
            if l < L - 1:
                dz_before[:, l] += dself
            if l > 0:
                dz[:, l - 1] += dy
        self.dz = dz_before

    def copy_rows(self, t: int, l: int, copied: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by z and y where the layer did a COPY: against what it would have done. dh and dc pass through."""
        dself, dy = torch.zeros_like(copied), torch.zeros_like(copied)
        tables, rows = self.copies[l], copied.nonzero().squeeze(1)
        if tables is not None and len(rows):
            event = self.saved.index[l][t][rows]
            dh, dc = self.dh[l][rows], self.dc[l][rows]
            by_h = (dh * tables.h[event]).sum(-1) + self.repeats[l][rows]
            dself[rows] = by_h + (dc * tables.flush[event]).sum(-1)
            dy[rows] = by_h + (dc * tables.update[event]).sum(-1)
        return dself, dy

    def event_rows(self, t: int, l: int, e: Events, dself: Tensor, dy: Tensor) -> None:
        """The LSTM's algebra, and the gradients by z and y."""
        w, rows, z, y = self.saved.layers[l].w, e.rows, e.z, e.y
        f, i, o, g = gates(w, e.s)
        squashed = squash(w, e.c_new)
        dh, d_values = self.dh[l][rows], self.gradients.values[l]
        if d_values is not None:
            dh = dh + d_values[e.number : e.number + len(dh)]
        d_squashed = dh * o * (1 - squashed * squashed)
        dc = self.dc[l][rows] + self.sums[l].cell_norm(w, d_squashed, e.c_new)
        dc_ig, dh_o = dc * i * g, dh * o * squashed
        dF = (dh_o + dc_ig).sum(-1)
        dU = dF + (dc * f * e.c).sum(-1)
        dC = (dh * e.h + dc * e.c).sum(-1)

        update = 1 - z  # in an event, what is not a FLUSH
        ds = torch.cat([update * dc * e.c * f * (1 - f), dc_ig * (1 - i), dh_o * (1 - o), dc * i * (1 - g * g)], dim=-1)
        ds = self.sums[l].gate_norm(w, ds, e.s)
        self.sums[l].add(t, ds, e)

        z_, y_ = z.squeeze(1), y.squeeze(1)
        dself[rows] = dF - y_ * dU - (1 - y_) * dC
        if e.v is not None:
            dself[rows] += (ds * e.v).sum(-1)
            flushed = z_.nonzero().squeeze(1)
            if len(flushed) and w.V is not None:
                self.dh[l + 1][flushed if isinstance(rows, slice) else rows[flushed]] += ds[flushed] @ w.V
        if l > 0:
            down = ds @ w.W
            dy[rows] = (1 - z_) * (dU - dC) + (down * e.h_below).sum(-1)
            self.dh[l - 1][rows] += y * down
        self.dh[l][rows] = ds @ w.U
        self.dc[l][rows] = update * dc * f
        self.repeats[l][rows] = 0

    def detector(self, t: int, l: int, dz: Tensor, evaluated: Tensor, dself: Tensor, dy: Tensor) -> None:
        """Through bound() to s_z, and from there on. `evaluated`: 1 where z was made from s_z."""
        saved = self.saved
        W_z, U_z, V_z, _ = detector_weights(saved.layers[l].w)
        z, y, slope = saved.z[t, :, l], saved.y[t, :, l], saved.call.slope
        if saved.rules.hold:  # z = (flush + update) * bound(z~)
            by_event = dz * saved.fires[t, :, l]
            dself += by_event * (1 - y)
            dy += by_event * (1 - z)
        ds_z = dz * (slope / 2) * ((slope * saved.s_z[t, :, l]).abs() < 1) * evaluated
        self.ds_z[t, :, l] = ds_z
        self.dh[l].addr_(ds_z, U_z)
        self.dh[l + 1].addr_(z * ds_z, V_z)
        dself += ds_z * self.v_z[l][self.before[l + 1][t]]
        if l > 0:
            self.dh[l - 1].addr_(y * ds_z, W_z)
            dy += ds_z * self.w_z[l - 1][saved.index[l - 1][t]]

    def weights(self, l: int) -> LayerWeights:
        """The gradients of a layer's weights, from all its events at once."""
        saved, w = self.saved, self.saved.layers[l].w
        sums = self.sums[l].total()
        if w.U_z is None:
            return sums
        ds_z, z, y = self.ds_z[:, :, l], saved.z[:, :, l], saved.y[:, :, l]

        def by_event(layer: int, index: Tensor, weight: Tensor) -> Tensor:
            values = self.values[layer]
            return values.new_zeros(len(values)).index_add_(0, index.flatten(), weight.flatten()) @ values

        below = by_event(l - 1, saved.index[l - 1], y * ds_z) if l else torch.einsum("tb,tbi->i", ds_z, saved.call.x)
        return sums._replace(
            W_z=below,
            U_z=by_event(l, self.before[l], ds_z),
            V_z=by_event(l + 1, self.before[l + 1], z * ds_z),
            b_z=ds_z.sum(),
        )


class WeightSums:
    """Collects what the gradients of one layer's weights are made of."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.ds_at: dict[int, Tensor] = {}
        self.factors: list[tuple[Tensor, Tensor, Tensor]] = []
        self.flushes: list[tuple[Tensor, Tensor]] = []
        self.vectors = LayerWeights(*(None if p is None else torch.zeros_like(p) for p in layer.w))  # type: ignore[arg-type]

    def gate_norm(self, w: LayerWeights, ds: Tensor, s: Tensor) -> Tensor:
        """Through the bias and the normalisation of the pre-activations."""
        self.vectors.b.add_(ds.sum(0))
        if w.gain is None or self.vectors.gain is None:
            return ds
        dx, dgain = norm_backward(ds, s, w.gain)
        self.vectors.gain.add_(dgain)
        return dx

    def cell_norm(self, w: LayerWeights, dc: Tensor, c: Tensor) -> Tensor:
        """Through the normalisation of the cell inside its tanh."""
        if w.gain_c is None or self.vectors.gain_c is None or self.vectors.bias_c is None:
            return dc
        self.vectors.bias_c.add_(dc.sum(0))
        dx, dgain = norm_backward(dc, c, w.gain_c)
        self.vectors.gain_c.add_(dgain)
        return dx

    def add(self, t: int, ds: Tensor, e: Events) -> None:
        self.ds_at[t] = ds
        self.factors.append((ds, e.h, e.y * e.h_below))
        if e.h_above is not None:
            flushed = e.z.squeeze(1).nonzero().squeeze(1)
            self.flushes.append((ds[flushed], e.h_above[flushed]))

    def total(self) -> LayerWeights:
        if not self.factors:
            return self.vectors
        ds, h, below = (torch.cat(column) for column in zip(*self.factors, strict=True))
        total = self.vectors._replace(U=ds.T @ h, W=ds.T @ below)
        if self.flushes:
            ds, above = (torch.cat(column) for column in zip(*self.flushes, strict=True))
            total = total._replace(V=ds.T @ above)
        return total


def norm_backward(grad: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Of layer normalisation: by its input, and by its gain."""
    centred = x - x.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + LAYER_NORM_EPS).rsqrt()
    x_hat, scaled = centred * rstd, grad * gain
    dx = rstd * (scaled - scaled.mean(-1, keepdim=True) - x_hat * (scaled * x_hat).mean(-1, keepdim=True))
    return dx, (grad * x_hat).sum(0)


def _joined(parts: list[Counterfactual]) -> Counterfactual:
    return type(parts[0])(*(torch.cat(column) for column in zip(*parts, strict=True)))
