"""The dense equations for a GPU: for each layer and step one matrix product, and one kernel for all the rest of it.

    [h[t-1], z[t-1] * h_above[t-1], y[t] * h_below[t]] · [U V W]ᵀ        the product, torch's own
    layer normalisation, gates, UPDATE/COPY/FLUSH, detector              the kernel, in Triton, one program for each row

Backward it is one kernel and one product; gradients by weights are one product at the end. Every layer is computed at
every step: on a GPU, rows that wait for each other would cost more than COPY saves. Nothing waits for the GPU, so the
calls of a window can be captured as a CUDA graph. Sums are made in a fixed order: the same input gives the same bits.

Triton is imported when this engine is first used. With TRITON_INTERPRET=1 in the environment, its interpreter runs the
kernels on CPU tensors: slowly, but the same mathematics.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from hmrnn.engines import event_driven
from hmrnn.engines.event_driven import Gradients, InputGradients, Inputs, Result
from hmrnn.engines.types import Engine, Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call

BOUNDARIES = frozenset({"step", "sample"})


class TritonKernel:
    def forward(self, weights: list[LayerWeights], inputs: Inputs, call: Call, rules: Rules, training: bool) -> Result:
        from hmrnn.engines.triton import forward
        from hmrnn.engines.triton.buffers import Window, on

        assert inputs.x is not None
        with on(inputs.x.device):
            window = Window(weights, inputs.x, call, rules)
            forward.run(window)
            return forward.result(window, training)

    def backward(self, saved: Any, gradients: Gradients, want_x: bool) -> InputGradients:
        from hmrnn.engines.triton.backward import Backward
        from hmrnn.engines.triton.buffers import on

        with on(saved.x.device):
            return Backward(saved, gradients).run(want_x)


def run(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    if rules.boundary not in BOUNDARIES or (rules.boundary == "sample" and rules.uniforms is None is call.given):
        raise ValueError(f"boundary={rules.boundary!r} without random numbers is not what this engine computes")
    from hmrnn.engines.triton import graphs

    captured = graphs.wanted(call.state.z.device)
    return graphs.run(launched, weights, call, rules) if captured else launched(weights, call, rules)


def launched(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    """Launch by launch."""
    return event_driven.run(TritonKernel(), weights, call, rules)


def interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing(device: torch.device, dtype: torch.dtype) -> str:
    if device.type == "cpu" and not interprets():
        return "the triton engine takes CPU tensors only under TRITON_INTERPRET=1"
    try:
        import triton
    except ImportError as error:
        return f"the triton engine needs triton (pip install 'hmrnn[gpu]'): {error}"
    if device.type == "cpu":  # there its tests have checked it
        from triton.runtime.interpreter import InterpretedFunction

        ready = isinstance(triton.language.sum, InterpretedFunction)
        return "" if ready else "TRITON_INTERPRET=1 came too late: it must be set before triton is first imported"
    from hmrnn.engines.triton.selfcheck import failure

    return failure(device)


ENGINE = Engine(
    "triton",
    run,
    boundaries=BOUNDARIES,
    devices=frozenset({"cuda", "cpu"}),
    dtypes=frozenset({torch.float32, torch.float64}),
    bfloat16=True,
    opt_in="which nobody has measured on a GPU yet",
    missing=missing,
)
