"""The event-driven engine in C++: built on first use, kept for the next time."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from hmrnn.engines import event_driven
from hmrnn.engines.event_driven import Gradients, InputGradients, Result
from hmrnn.engines.native.build import extension
from hmrnn.engines.types import Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call


def run(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    return event_driven.run(NativeKernel(extension()), weights, call, rules)


class NativeKernel:
    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def forward(self, weights: list[LayerWeights], call: Call, rules: Rules, training: bool) -> Result:
        state = call.state
        lengths = None if call.valid is None else call.valid.sum(0)
        result = self.module.forward(
            weights, call.x, state.h, state.c, state.z, lengths, call.given, rules.uniforms, call.slope, rules.hold, training
        )
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
        weights = [LayerWeights(*layer) for layer in result.weights]
        return InputGradients(result.x, result.h, result.c, result.z, weights)
