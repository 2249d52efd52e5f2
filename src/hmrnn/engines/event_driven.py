"""What the event-driven engines share: the place of their tables in autograd.

An event is an UPDATE or FLUSH of a layer in a batch row. In a COPY step everything is constant since the last event, so
a layer is computed at its events only, in the forward pass and in the backward pass: exactly, not approximately.

A kernel does the work, forward and backward, on tensors without a graph. Its tables have one row for each event of a
layer, the first B of them for the initial state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hmrnn.engines.types import Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call
from hmrnn.sequence import HMLSTMState, Piecewise


@dataclass(frozen=True)
class Result:
    """The forward pass of a kernel."""

    values: list[Tensor]  # L times (N_l, H_l): h after each event
    tangents: list[Tensor | None]  # L times (N_l, H_l): o*tanh(c) - h, had there been no COPY; None in the first layer
    index: list[Tensor]  # L times (T, B): the current event
    z: Tensor  # (T, B, L-1)
    c_last: list[Tensor]  # L times (B, H_l)
    z_last: Tensor  # (B, L-1)
    saved: Any  # what the kernel's backward pass needs


@dataclass(frozen=True)
class Gradients:
    """Of a loss by a `Result`: what the backward pass starts from."""

    values: list[Tensor | None]  # None: zero
    repeats: list[Tensor | None]  # L times (T, B): by the decision to COPY, see `Piecewise`; None: zero
    z: Tensor
    c_last: list[Tensor]
    z_last: Tensor


@dataclass(frozen=True)
class InputGradients:
    """Of a loss by what went in."""

    x: Tensor | None  # None if it is not wanted
    h: list[Tensor]
    c: list[Tensor]
    z: Tensor
    weights: list[LayerWeights]


class Kernel(Protocol):
    def forward(self, weights: list[LayerWeights], call: Call, rules: Rules, training: bool) -> Result: ...

    def backward(self, saved: Any, gradients: Gradients, want_x: bool) -> InputGradients: ...


def inputs(weights: Sequence[LayerWeights], call: Call) -> list[Tensor | None]:
    """All that a gradient may be wanted of."""
    return [call.x, *call.state.h, *call.state.c, call.state.z, *(w for layer in weights for w in layer)]


def wants_gradient(weights: Sequence[LayerWeights], call: Call) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs(weights, call))


def run(kernel: Kernel, weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    """Computes a call with an event-driven kernel."""
    with torch.autocast("cpu", enabled=False):  # the weights' dtype is the one to compute in
        return _run(kernel, weights, call, rules)


def _run(kernel: Kernel, weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    L = len(weights)
    if not wants_gradient(weights, call):
        result = kernel.forward(list(weights), call, rules, False)
        steps = [Piecewise(values, index) for values, index in zip(result.values, result.index, strict=True)]
        return trace(steps, result.z, result.c_last, result.z_last)
    outputs = _EventDriven.apply(kernel, call, rules, L, *inputs(weights, call))  # type: ignore[no-untyped-call]
    values, tangents, index, repeats, c_last = (outputs[k * L : (k + 1) * L] for k in range(5))
    steps = [Piecewise(*parts) for parts in zip(values, index, tangents, repeats, strict=True)]
    return trace(steps, outputs[5 * L], c_last, outputs[5 * L + 1])


def trace(steps: Sequence[Piecewise], z: Tensor, c_last: Sequence[Tensor], z_last: Tensor) -> Trace:
    h_last = tuple(layer[-1].dense() for layer in steps)
    return Trace(tuple(steps), z, HMLSTMState(h_last, tuple(c_last), z_last))


class _EventDriven(torch.autograd.Function):
    """Inputs in the order of `inputs`, outputs in that of `run`; `repeats` are zeros that carry a gradient."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, call: Call, rules: Rules, L: int, *tensors: Tensor | None) -> Any:
        size = len(LayerWeights._fields)
        flat = [None if tensor is None else tensor.detach() for tensor in tensors]
        x, h, c, z, parameters = flat[0], flat[1 : L + 1], flat[L + 1 : 2 * L + 1], flat[2 * L + 1], flat[2 * L + 2 :]
        weights = [LayerWeights(*parameters[l * size : (l + 1) * size]) for l in range(L)]  # type: ignore[arg-type]
        state = HMLSTMState(tuple(h), tuple(c), z)  # type: ignore[arg-type]
        detached = Call(x, state, call.valid, call.given, call.slope, None)  # type: ignore[arg-type]
        result = kernel.forward(weights, detached, rules, True)
        ctx.kernel, ctx.saved, ctx.L = kernel, result.saved, L
        ctx.set_materialize_grads(False)  # zeros for the large tables would cost more than they say
        ctx.shapes = [tensor.shape for tensor in (*result.c_last, result.z, result.z_last)]
        # The kernel has its own references. These let torch see whether somebody wrote into a tensor since.
        ctx.save_for_backward(*tensors, *result.values)
        repeats = [None if tangents is None else result.z.new_zeros(result.z.shape[:2]) for tangents in result.tangents]
        ctx.mark_non_differentiable(*result.index, *(t for t in result.tangents if t is not None))
        return (*result.values, *result.tangents, *result.index, *repeats, *result.c_last, result.z, result.z_last)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.saved is None:
            raise RuntimeError(
                "an HMLSTM went through backward() twice for one forward(): this engine frees its tables in the first. "
                "Sum the losses before backward(), or use engine='reference'"
            )
        x, *_ = ctx.saved_tensors  # raises if one was changed
        kernel, saved, L = ctx.kernel, ctx.saved, ctx.L
        ctx.saved = None
        values, repeats = list(grads[:L]), list(grads[3 * L : 4 * L])
        *c_last, z, z_last = (
            x.new_zeros(shape) if grad is None else grad for grad, shape in zip(grads[4 * L :], ctx.shapes, strict=True)
        )
        gradients = Gradients(values, repeats, z, c_last, z_last)
        with torch.autocast("cpu", enabled=False):
            result = kernel.backward(saved, gradients, ctx.needs_input_grad[4])
        parameters = [gradient for layer in result.weights for gradient in layer]
        return (None, None, None, None, result.x, *result.h, *result.c, result.z, *parameters)
