"""The forward pass: for each step and layer one product and one row kernel."""

from __future__ import annotations

from torch import Tensor

from hmrnn.engines.event_driven import Result
from hmrnn.engines.triton import buffers
from hmrnn.engines.triton.buffers import Step, Window, power_of_two, present


def run(window: Window) -> None:
    steps = [step(window, l) for l in range(window.L)]
    for t in range(window.T):
        for layer_step in steps:
            layer_step(t)


def step(window: Window, l: int) -> Step:
    """One step of layer l, with everything prepared that is the same at every t."""
    from hmrnn.engines.triton.kernels import forward_row

    layer, (above, below), w = window.layers[l], window.neighbours(l), window.layers[l].w
    tensors: list[Tensor | None] = [
        layer.s, layer.hs, layer.cs, above.hs if above else None, below.hs if below else window.x,
        window.zs, window.out_z, window.s_z, window.given, window.uniforms, window.valid,
        w.b, w.gain, w.gain_c, w.bias_c, w.U_z, w.V_z, w.W_z, w.b_z, window.slope, window.mask(l),
        layer.operand, above.operand if above else None, below.operand if below else None,
    ]  # fmt: skip
    arguments, constants = present(tensors, window.zs), {**window.constants(l), "BB": power_of_two(layer.HB)}
    operands, sums, matrix = layer.operand.unbind(), layer.s.unbind(), layer.matrix.T

    def run_step(t: int) -> None:
        window.products(operands[t], matrix, sums[t])
        buffers.launch(forward_row, window.B, t, arguments, constants)

    return run_step


def result(window: Window, training: bool) -> Result:
    T, B, L = window.T, window.B, window.L
    return Result(
        values=[layer.hs[1:].view(T * B, layer.H) for layer in window.layers],
        tangents=[None] * L,
        index=None,
        z=window.out_z[..., : L - 1].clone(),
        c_last=[layer.cs[T].clone() for layer in window.layers],
        z_last=window.zs[T, :, : L - 1].clone(),
        saved=window if training else None,
    )
