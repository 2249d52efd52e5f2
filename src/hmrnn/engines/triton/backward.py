"""The backward pass: for each layer and step one row kernel and one product; weights in one product at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from hmrnn.engines.event_driven import Gradients, InputGradients
from hmrnn.engines.triton import buffers
from hmrnn.engines.triton.buffers import Layer, Step, Window, present
from hmrnn.equations import LayerWeights


class LayerBackward:
    """Gradients of a layer on the way back, of the step at hand unless it says otherwise."""

    def __init__(self, layer: Layer, window: Window, d_h: Tensor | None, dc: Tensor) -> None:
        T, B, H = window.T, window.B, layer.H
        zeros = layer.hs.new_zeros
        self.d_h = zeros(T, B, H) if d_h is None else d_h.contiguous()  # by the output, of every step
        self.dh, self.dc = zeros(B, H), dc.clone()  # by h and c, but for what comes by products
        # by the operand; but the gradient by x is one product at the end
        self.matrix = layer.matrix if layer.l else layer.matrix[:, : layer.place_below].contiguous()
        self.d_operand = zeros(B, self.matrix.shape[1])
        self.ds = torch.empty(T, B, 4 * H, dtype=layer.operand.dtype, device=layer.hs.device)  # of every step
        # by each row's vectors: a program adds to its own row
        self.b, self.gain, self.gain_c, self.bias_c = zeros(B, 4 * H), zeros(B, 4 * H), zeros(B, H), zeros(B, H)


class Backward:
    def __init__(self, window: Window, gradients: Gradients) -> None:
        self.window = window
        self.layers = [
            LayerBackward(layer, window, d_h, dc)
            for layer, d_h, dc in zip(window.layers, gradients.values, gradients.c_last, strict=True)
        ]
        self.d_z = gradients.z.contiguous()
        self.dz = torch.zeros_like(window.zs[0])  # (B, L) by the state z, from the step after
        self.dz[:, : window.L - 1] = gradients.z_last
        self.dz_now = torch.zeros_like(self.dz)  # by z, from the layer above
        self.ds_z = torch.zeros_like(window.zs)  # (T + 1, B, L) by s_z; 0 after the end

    def run(self, want_x: bool) -> InputGradients:
        steps = [self.step(l) for l in range(self.window.L)]
        for t in reversed(range(self.window.T)):
            for layer_step in reversed(steps):
                layer_step(t)
        L, of_state = self.window.L, self.by_state()
        return InputGradients(
            x=self.by_x() if want_x else None,
            table=None,
            table_z=None,
            h=of_state[0],
            c=[layer.dc for layer in self.layers],
            z=of_state[1],
            weights=[self.by_weights(l) for l in range(L)],
        )

    def step(self, l: int) -> Step:
        """One step of layer l, with everything prepared that is the same at every t."""
        from hmrnn.engines.triton.kernels import backward_row

        window, layer, d, w = self.window, self.window.layers[l], self.layers[l], self.window.layers[l].w
        above, below = window.neighbours(l)
        tensors: list[Tensor | None] = [
            layer.s, layer.hs, layer.cs, above.hs if above else None, window.zs, window.out_z, window.s_z,
            window.uniforms, window.valid,
            w.b, w.gain, w.gain_c, w.bias_c, w.U_z, w.V_z,
            below.w.V_z if below else None, above.w.W_z if above else None,
            window.slope, window.mask(l),
            d.d_h, self.d_z, d.dh, d.dc, self.dz, self.dz_now, self.ds_z,
            d.d_operand, *(self.layers[n.l].d_operand if n else None for n in (above, below)),
            d.ds, d.b, d.gain, d.gain_c, d.bias_c,
        ]  # fmt: skip
        widths = [0 if n is None else self.layers[n.l].d_operand.shape[1] for n in (layer, above, below)]
        constants = {**window.constants(l), **dict(zip(("K", "KA", "KB"), widths, strict=True))}
        arguments, ds = present(tensors, window.zs), d.ds.unbind()

        def run_step(t: int) -> None:
            buffers.launch(backward_row, window.B, t, arguments, constants)
            window.products(ds[t], d.matrix, d.d_operand)

        return run_step

    def by_state(self) -> tuple[list[Tensor], Tensor]:
        """By h and z before the first step."""
        ds_z, zs, L = self.ds_z[0], self.window.zs[0], self.window.L
        dh = [d.dh + d.d_operand[:, : layer.H] for layer, d in zip(self.window.layers, self.layers, strict=True)]
        dz = self.dz[:, : L - 1].clone()
        for l, (layer, d) in enumerate(zip(self.window.layers[:-1], self.layers, strict=False)):
            assert layer.w.V_z is not None
            flushed = d.d_operand[:, layer.H : layer.H + layer.HA] + ds_z[:, l : l + 1] * layer.w.V_z
            dh[l + 1] += zs[:, l : l + 1] * flushed
            dz[:, l] += (flushed * self.window.layers[l + 1].hs[0]).sum(-1)
        return dh, dz

    def by_x(self) -> Tensor:
        window, first = self.window, self.window.layers[0]
        dx = torch.empty_like(window.x)
        ds = self.layers[0].ds.flatten(0, 1)
        window.products(ds, first.matrix[:, first.place_below :], dx.view(-1, first.HB))
        if first.w.W_z is not None:
            dx += self.ds_z[: window.T, :, :1] * first.w.W_z
        return dx

    def by_weights(self, l: int) -> LayerWeights:
        """From all steps at once."""
        window, layer, d, w = self.window, self.window.layers[l], self.layers[l], self.window.layers[l].w
        T, normed = window.T, w.gain is not None
        operands = layer.operand[:T].flatten(0, 1)
        matrix = window.products.transposed(d.ds.flatten(0, 1), operands, layer.s)
        U, V, W = matrix.split([layer.H, layer.HA, layer.HB], dim=1)
        found = LayerWeights(
            W, U, V if layer.HA else None, d.b.sum(0), None, None, None, None,
            d.gain.sum(0) if normed else None, d.gain_c.sum(0) if normed else None,
            d.bias_c.sum(0) if normed else None,
        )  # fmt: skip
        above, below = window.neighbours(l)
        if above is None:
            return found
        ds_z, z = self.ds_z[:T, :, l], window.zs[:T, :, l]
        fed = ds_z if below is None else ds_z * window.out_z[..., l - 1]
        return found._replace(
            W_z=fed.flatten() @ (window.x if below is None else below.hs[1:]).flatten(0, 1),
            U_z=ds_z.flatten() @ layer.hs[:T].flatten(0, 1),
            V_z=(ds_z * z).flatten() @ above.hs[:T].flatten(0, 1),
            b_z=ds_z.sum(),
        )
