"""The event-driven engine in C++: built on first use, kept for the next time."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from hmrnn.engines import event_driven
from hmrnn.engines.event_driven import Gradients, InputGradients, Result, wants_gradient
from hmrnn.engines.native.build import Unavailable, extension
from hmrnn.engines.types import Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call
from hmrnn.sequence import HMLSTMState, Piecewise

__all__ = ["Clock", "Unavailable", "extension", "run"]


class Clock:
    """Seconds that this engine has taken so far, and those of them that its matrix products took."""

    total = 0.0
    products = 0.0

    @classmethod
    def add(cls, timing: Any) -> None:
        cls.total += timing.total
        cls.products += timing.products


def run(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    if len(call.x) == 1 and call.valid is None and not wants_gradient(weights, call):
        return stream(weights, call, rules)
    return event_driven.run(NativeKernel(extension()), weights, call, rules)


def stream(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    """A single step without a gradient: the layers that COPY cost nothing, their tensors are handed through."""
    state = call.state.detach()
    given, uniforms = (None if part is None else part[0] for part in (call.given, rules.uniforms))
    result = extension().stream(weights, call.x[0], state.h, state.c, state.z, given, uniforms, call.slope, rules.hold)
    index = torch.arange(len(state.z), device=state.z.device).unsqueeze(0)
    return Trace(
        steps=tuple(Piecewise(h, index) for h in result.h),
        z=result.z.unsqueeze(0),
        state=HMLSTMState(tuple(result.h), tuple(result.c), result.z.clone()),
        operations=result.operations.unsqueeze(0),
    )


class NativeKernel:
    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def forward(self, weights: list[LayerWeights], call: Call, rules: Rules, training: bool) -> Result:
        state = call.state
        lengths = None if call.valid is None else call.valid.sum(0)
        result = self.module.forward(
            weights,
            call.x,
            state.h,
            state.c,
            state.z,
            lengths,
            call.given,
            rules.uniforms,
            call.slope,
            rules.hold,
            training,
        )
        Clock.add(result.timing)
        return Result(
            values=result.values,
            tangents=result.tangents,
            index=result.index,
            z=result.z,
            c_last=result.c_last,
            z_last=result.z_last,
            saved=result.tables if training else None,
        )

    def backward(self, saved: Any, gradients: Gradients, want_x: bool) -> InputGradients:
        g = gradients
        result = self.module.backward(saved, g.values, g.repeats, g.z, g.c_last, g.z_last, want_x)
        Clock.add(result.timing)
        weights = [LayerWeights(*layer) for layer in result.weights]
        return InputGradients(result.x, result.h, result.c, result.z, weights)
