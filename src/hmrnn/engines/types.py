"""What engines are told besides the call, what they give back, and what they declare of themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call
from hmrnn.sequence import HMLSTMState, Piecewise


@dataclass(frozen=True)
class Rules:
    """How boundaries are made, and products."""

    boundary: str  # step, sample or soft
    hold: bool  # no boundary can arise in a COPY step
    uniforms: Tensor | None  # (T, B, L-1) random numbers, for `sample`: drawn once, so that every engine samples alike
    bfloat16: bool = False  # round the operands of matrix products, where the weights are float32
    masks: tuple[Tensor, ...] = ()  # L-1 times (B, H_l), or none: dropout of what W of the layer above multiplies


@dataclass(frozen=True)
class Trace:
    """A call carried out."""

    steps: tuple[Piecewise, ...]  # L times (T, B, H_l)
    z: Tensor  # (T, B, L-1), 0 at padded steps
    state: HMLSTMState


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Of an autograd function whose backward pass leaves no graph: refuses to be differentiated again. Torch itself
    would take a second derivative for 0, as in a penalty on the norm of a gradient."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("this engine has no second derivatives (create_graph=True): use engine='reference'")
        return backward(ctx, *grads)

    return checked


def nothing_missing(device: torch.device, dtype: torch.dtype) -> str:
    """Of an engine that needs nothing but torch."""
    return ""


@dataclass(frozen=True)
class Engine:
    """An engine, and what it supports. The dispatch reads this and knows no engine by name."""

    name: str
    run: Callable[[Sequence[LayerWeights], Call, Rules], Trace]
    boundaries: frozenset[str]
    """The kinds of boundaries that it computes. A new kind is computed by no engine that does not name it."""
    devices: frozenset[str] | None
    """The types of devices whose tensors it takes; None for all."""
    dtypes: frozenset[torch.dtype] | None
    """Of the weights; None for all."""
    bfloat16: bool = False
    """Whether it can round the operands of matrix products to bfloat16, where the weights are float32."""
    traceable: bool = False
    """Whether torch.compile can trace it."""
    fastest: str = ""
    """Where it is the fastest, as the reason for which `auto` takes it."""
    opt_in: str = ""
    """Why `auto` does not take it; empty if it does."""
    missing: Callable[[torch.device, torch.dtype], str] = nothing_missing
    """Asked last: what it still needs to run there, as the reason not to take it. Empty if nothing. May build it."""

    def rounds(self, dtype: torch.dtype) -> bool:
        """Whether it can compute products in bfloat16 with such weights."""
        return self.bfloat16 and dtype == torch.float32

    def obstacle(self, boundary: str, device: torch.device, dtype: torch.dtype) -> str:
        """Why it can't be used, in one line. Empty if it can."""
        return self.unsupported(boundary, device, dtype) or self.missing(device, dtype)

    def elsewhere(self, device: torch.device) -> str:
        """Why it can't be used on a device, whatever is computed there. Empty if it can."""
        if self.devices is None or device.type in self.devices:
            return ""
        return (
            f"the {self.name} engine runs on {' and '.join(sorted(self.devices))}, and the weights are on {device.type}"
        )

    def unsupported(self, boundary: str, device: torch.device, dtype: torch.dtype) -> str:
        """The same by what it declares alone, whether it is installed or not."""
        if boundary not in self.boundaries:
            kinds = " and ".join(sorted(self.boundaries))
            return f"the {self.name} engine computes {kinds} boundaries, and these are {boundary}"
        if elsewhere := self.elsewhere(device):
            return elsewhere
        if self.dtypes is not None and dtype not in self.dtypes:
            kinds = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in self.dtypes))
            return f"the {self.name} engine computes in {kinds}, and the weights are {dtype}"
        if torch.compiler.is_compiling() and not self.traceable:
            return "torch.compile traces the dense equations"
        return ""
