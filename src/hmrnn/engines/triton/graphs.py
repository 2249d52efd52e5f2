"""CUDA graphs: the launches of a window, forward and backward, captured once for each shape and then replayed.

A window of 100 steps of 3 layers is some 1,200 launches, and Python needs longer to make one than a GPU to carry it
out. A replay makes them all at once. Asked for by HMRNN_CUDA_GRAPHS=1 in the environment.

What a graph reads and writes lies where it lay when it was captured. So everything that changes from call to call comes
in by a tensor, the slope too, and what comes out is copied. The tables in between hold one window: its backward pass
has to come before the next forward pass of the same shape, and `_Latest` makes sure of it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hmrnn.devices import without_autocast
from hmrnn.engines.types import Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call
from hmrnn.sequence import HMLSTMState, Piecewise

MOST_GRAPHS = 16  # each holds the tables of a window
Run = Callable[[Sequence[LayerWeights], Call, Rules], Trace]


def wanted(device: torch.device) -> bool:
    return os.environ.get("HMRNN_CUDA_GRAPHS") == "1" and device.type == "cuda"


@dataclass(frozen=True)
class Shape:
    """What must be the same for a graph to serve another call: all that is not a number in a tensor."""

    tensors: tuple[tuple[torch.Size, torch.dtype, torch.device, bool] | None, ...]
    layers: int
    rules: tuple[str, bool, bool, int]
    training: bool


class Graph:
    def __init__(self, window: Callable[..., tuple[Tensor, ...]], tensors: list[Tensor]) -> None:
        samples = tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)
        self.replay = torch.cuda.make_graphed_callables(window, samples, allow_unused_input=True)
        self.calls = 0

    def __call__(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        self.calls += 1
        written: tuple[Tensor, ...] = self.replay(*tensors)  # type: ignore[assignment]
        out: tuple[Tensor, ...] = _Latest.apply(self, *written)  # type: ignore[no-untyped-call]
        return out


class _Latest(torch.autograd.Function):
    """Copies what a graph put out, and refuses to go back through a window that it has overwritten."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.graph, ctx.call = graph, graph.calls
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if ctx.call != ctx.graph.calls:
            raise RuntimeError(
                "a CUDA graph holds one window: call backward() before the next forward() of the same shape, or unset "
                "HMRNN_CUDA_GRAPHS"
            )
        return (None, *grads)


graphs: OrderedDict[Shape, Graph] = OrderedDict()


def run(plain: Run, weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    """What `plain` computes, by a graph of it."""
    L, flat = len(weights), flattened(weights, call, rules)
    present = [t for t in flat if t is not None]
    training = torch.is_grad_enabled() and any(t.requires_grad for t in present)
    shape = Shape(
        tuple(None if t is None else (t.shape, t.dtype, t.device, t.requires_grad and training) for t in flat),
        L,
        (rules.boundary, rules.hold, rules.bfloat16, len(rules.masks)),
        training,
    )

    def window(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        trace = plain(*restored([None if t is None else next(given) for t in flat], L, rules))
        state = trace.state
        return (*(steps.dense() for steps in trace.steps), trace.z, *state.h, *state.c, state.z)

    with without_autocast(call.state.z.device):
        if shape not in graphs:
            graphs[shape] = Graph(window, present if training else [t.detach() for t in present])
            if len(graphs) > MOST_GRAPHS:
                graphs.popitem(last=False)
        graphs.move_to_end(shape)
        out = graphs[shape](present)
    h, c = out[L + 1 : 2 * L + 1], out[2 * L + 1 : 3 * L + 1]
    return Trace(tuple(Piecewise.from_dense(values) for values in out[:L]), out[L], HMLSTMState(h, c, out[-1]))


def flattened(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> list[Tensor | None]:
    """All tensors of a call. `restored` reads them in the same order."""
    state, slope = call.state, call.slope
    slope = slope if isinstance(slope, Tensor) else torch.full((), slope, dtype=state.z.dtype, device=state.z.device)
    parameters = (w for layer in weights for w in layer)
    return [
        call.dense_x(), *state.h, *state.c, state.z, slope, call.valid, call.given, rules.uniforms,
        *rules.masks, *parameters,
    ]  # fmt: skip


def restored(flat: list[Any], L: int, rules: Rules) -> tuple[list[LayerWeights], Call, Rules]:
    values = iter(flat)

    def take(count: int) -> tuple[Any, ...]:
        return tuple(next(values) for _ in range(count))

    (x,), h, c = take(1), take(L), take(L)
    z, slope, valid, given, uniforms = take(5)
    masks = take(len(rules.masks))
    weights = [LayerWeights(*take(len(LayerWeights._fields))) for _ in range(L)]
    call = Call(x, HMLSTMState(h, c, z), valid, given, slope, None)
    return weights, call, replace(rules, uniforms=uniforms, masks=masks)
