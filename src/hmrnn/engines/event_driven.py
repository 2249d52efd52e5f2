"""What the event-driven engines share: the place of their tables in autograd.

An event is an UPDATE or FLUSH of a layer in a batch row. In a COPY step everything is constant since the last event, so
a layer is computed at its events only, in the forward pass and in the backward pass: exactly, not approximately.

A kernel does the work, forward and backward, on tensors without a graph. Its tables have one row for each event of a
layer, the first B of them for the initial state. (The kernel of `triton` computes every step. Its tables have a row for
each step, in order, and none for the initial state.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hmrnn.devices import without_autocast
from hmrnn.engines.types import Rules, Trace, first_derivative
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call
from hmrnn.sequence import HMLSTMState, Piecewise

MOST_VECTORS = 1024  # of which a table is made, whatever the length of a call: so that every call rounds alike


@dataclass(frozen=True)
class Inputs:
    """What the first layer is fed with: x; or a table of products, where the same few vectors stand at many steps."""

    x: Tensor | None  # (T, B, input_size)
    table: Tensor | None = None  # (S, 4H): W x of each vector
    table_z: Tensor | None = None  # (S,): W_z x of each; None in a network of one layer
    symbols: Tensor | None = None  # (T, B) int64: which of them stands there

    @property
    def shape(self) -> tuple[int, int]:
        """T and B."""
        at = self.symbols if self.x is None else self.x
        assert at is not None
        return at.shape[0], at.shape[1]


@dataclass(frozen=True)
class Result:
    """The forward pass of a kernel."""

    values: list[Tensor]  # L times (N_l, H_l): h after each event
    tangents: list[Tensor | None]  # L times (N_l, H_l): o*tanh(c) - h, had there been no COPY; None in the first layer
    index: list[Tensor] | None  # L times (T, B): the current event; None if every step has a row of its own, in order
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
    table: Tensor | None
    table_z: Tensor | None
    h: list[Tensor]
    c: list[Tensor]
    z: Tensor
    weights: list[LayerWeights]


class Kernel(Protocol):
    def forward(
        self, weights: list[LayerWeights], inputs: Inputs, call: Call, rules: Rules, training: bool
    ) -> Result: ...

    def backward(self, saved: Any, gradients: Gradients, want_x: bool) -> InputGradients: ...


def wants_gradient(tensors: Sequence[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def run(kernel: Kernel, weights: Sequence[LayerWeights], call: Call, rules: Rules, *, tables: bool = False) -> Trace:
    """Computes a call with an event-driven kernel. `tables`: whether it takes a table of inputs."""
    with without_autocast(call.state.z.device):  # the weights' dtype is the one to compute in
        inputs, weights = feed(list(weights), call, tables)
        return _run(kernel, weights, inputs, call, rules)


def feed(weights: list[LayerWeights], call: Call, tables: bool) -> tuple[Inputs, list[LayerWeights]]:
    """What the first layer is fed with, and the weights that are left to multiply."""
    first = weights[0]
    # What a layer has put out is no table: which of its values are repeated has a gradient, too.
    few = not isinstance(call.x, Tensor) and call.x.tangents is None and len(call.x.values) <= MOST_VECTORS
    if not tables or not few:
        return Inputs(call.dense_x()), weights
    assert not isinstance(call.x, Tensor)
    table_z = None if first.W_z is None else call.x.values @ first.W_z
    inputs = Inputs(None, call.x.values @ first.W.T, table_z, call.x.index)
    return inputs, [first._replace(W=None, W_z=None), *weights[1:]]  # type: ignore[arg-type]


def tensors(inputs: Inputs, weights: Sequence[LayerWeights], call: Call) -> list[Tensor | None]:
    """All that a gradient may be wanted of."""
    state = call.state
    parameters = (w for layer in weights for w in layer)
    return [inputs.x, inputs.table, inputs.table_z, *state.h, *state.c, state.z, *parameters]


def _run(kernel: Kernel, weights: list[LayerWeights], inputs: Inputs, call: Call, rules: Rules) -> Trace:
    L, all_ = len(weights), tensors(inputs, weights, call)
    if not wants_gradient(all_):
        result = kernel.forward(weights, inputs, call, rules, False)
        indices = [None] * L if result.index is None else result.index
        steps = [pieces(values, index, call) for values, index in zip(result.values, indices, strict=True)]
        return trace(steps, result.z, result.c_last, result.z_last)
    outputs = _EventDriven.apply(kernel, inputs.symbols, call, rules, L, *all_)  # type: ignore[no-untyped-call]
    values, tangents, index, repeats, c_last = (outputs[k * L : (k + 1) * L] for k in range(5))
    steps = [pieces(*parts) for parts in zip(values, index, [call] * L, tangents, repeats, strict=True)]
    return trace(steps, outputs[5 * L], c_last, outputs[5 * L + 1])


def pieces(
    values: Tensor, index: Tensor | None, call: Call, tangents: Tensor | None = None, repeats: Tensor | None = None
) -> Piecewise:
    if index is None:
        return Piecewise.from_dense(values.view(*call.shape[:2], -1))
    return Piecewise(values, index, tangents, repeats)


def trace(steps: Sequence[Piecewise], z: Tensor, c_last: Sequence[Tensor], z_last: Tensor) -> Trace:
    h_last = tuple(layer[-1].dense() for layer in steps)
    return Trace(tuple(steps), z, HMLSTMState(h_last, tuple(c_last), z_last))


class _EventDriven(torch.autograd.Function):
    """Inputs and outputs in the order of `_run`; `repeats` are zeros that carry a gradient."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, symbols: Tensor | None, call: Call, rules: Rules, L: int, *tensors: Tensor | None
    ) -> Any:
        size = len(LayerWeights._fields)
        flat = [None if tensor is None else tensor.detach() for tensor in tensors]
        inputs, h, c, z = (
            Inputs(flat[0], flat[1], flat[2], symbols),
            flat[3 : L + 3],
            flat[L + 3 : 2 * L + 3],
            flat[2 * L + 3],
        )
        parameters = flat[2 * L + 4 :]
        weights = [LayerWeights(*parameters[l * size : (l + 1) * size]) for l in range(L)]  # type: ignore[arg-type]
        state = HMLSTMState(tuple(h), tuple(c), z)  # type: ignore[arg-type]
        result = kernel.forward(weights, inputs, replace(call, state=state), rules, True)
        ctx.kernel, ctx.saved, ctx.L = kernel, result.saved, L
        ctx.set_materialize_grads(False)  # zeros for the large tables would cost more than they say
        ctx.shapes = [tensor.shape for tensor in (*result.c_last, result.z, result.z_last)]
        # The kernel has its own references. These let torch see whether somebody wrote into a tensor since.
        ctx.save_for_backward(z, *tensors, *result.values)
        repeats = [None if tangents is None else result.z.new_zeros(result.z.shape[:2]) for tangents in result.tangents]
        index = [None] * L if result.index is None else result.index
        ctx.mark_non_differentiable(*(t for t in (*index, *result.tangents) if t is not None))
        return (*result.values, *result.tangents, *index, *repeats, *result.c_last, result.z, result.z_last)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.saved is None:
            raise RuntimeError(
                "an HMLSTM went through backward() twice for one forward(): this engine frees its tables in the first. "
                "Sum the losses before backward(), or use engine='reference'"
            )
        like, *_ = ctx.saved_tensors  # raises if one was changed
        kernel, saved, L = ctx.kernel, ctx.saved, ctx.L
        ctx.saved = None
        values, repeats = list(grads[:L]), list(grads[3 * L : 4 * L])
        *c_last, z, z_last = (
            like.new_zeros(shape) if grad is None else grad
            for grad, shape in zip(grads[4 * L :], ctx.shapes, strict=True)
        )
        gradients = Gradients(values, repeats, z, c_last, z_last)
        with without_autocast(like.device):
            d = kernel.backward(saved, gradients, ctx.needs_input_grad[5])
        parameters = [gradient for layer in d.weights for gradient in layer]
        return (None,) * 5 + (d.x, d.table, d.table_z, *d.h, *d.c, d.z, *parameters)
