"""What a window of steps is computed in: tensors for all steps, which kernels and products write into."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmrnn.engines.types import Rules
from hmrnn.equations import LAYER_NORM_EPS, LayerWeights
from hmrnn.recurrent import Call


@dataclass(frozen=True)
class Products:
    """Matrix products, in the weights' dtype or with operands that are rounded to bfloat16 and sums in float32."""

    rounded: bool
    kind: torch.dtype  # of operands, as they are kept

    @staticmethod
    def of(rules: Rules, like: Tensor) -> Products:
        # A CPU has no such product: there operands are kept in float32, and rounded when they are multiplied.
        by_device = rules.bfloat16 and like.device.type != "cpu"
        return Products(rules.bfloat16, torch.bfloat16 if by_device else like.dtype)

    def operand(self, values: Tensor) -> Tensor:
        return values.bfloat16().to(self.kind) if self.rounded else values

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        if self.kind == torch.bfloat16:
            return torch.mm(a, b, out_dtype=torch.float32, out=out)
        return torch.mm(self.operand(a), b, out=out)

    def transposed(self, a: Tensor, b: Tensor, like: Tensor) -> Tensor:
        """aᵀ b"""
        return self(a.T, self.operand(b), like.new_empty(a.shape[1], b.shape[1]))


class Layer:
    """A layer's weights and what it leaves for the backward pass. H, HA, HB: units of it, of the one above, below."""

    def __init__(self, l: int, weights: list[LayerWeights], call: Call, products: Products) -> None:
        (T, B, input_size), w, state = call.shape, weights[l], call.state
        sizes = [input_size, *(len(layer.b) // 4 for layer in weights), 0]
        self.l, self.HB, self.H, self.HA = l, *sizes[l : l + 3]
        self.K = self.H + self.HA + self.HB
        self.w = w.map(Tensor.contiguous)
        blocks = [w.U, *([] if w.V is None else [w.V]), w.W]
        self.matrix = products.operand(torch.cat(blocks, dim=1))  # (4H, K): U, V, W
        new, like = state.z.new_empty, state.h[l]
        self.s = new(T, B, 4 * self.H)
        self.hs, self.cs = new(T + 1, B, self.H), new(T + 1, B, self.H)
        self.hs[0], self.cs[0] = like, state.c[l]
        # what the matrix multiplies: h[t-1], z[t-1] * h_above[t-1], y[t] * h_below[t]
        self.operand = torch.empty(T + 1, B, self.K, dtype=products.kind, device=like.device)
        self.operand[0, :, : self.H] = like
        if self.HA:
            self.operand[0, :, self.H : self.H + self.HA] = state.z[:, l : l + 1] * state.h[l + 1]

    @property
    def place_below(self) -> int:
        """Where in a row of the operand what comes from below begins."""
        return self.H + self.HA

    @property
    def warps(self) -> int:
        """Of a program: enough that a row fits into its registers."""
        return next((warps for most, warps in ((128, 2), (512, 4), (2048, 8)) if most >= self.H), 16)


class Window:
    """The forward pass of a window: filled by `forward.run`, read by `backward.run`."""

    def __init__(self, weights: list[LayerWeights], x: Tensor, call: Call, rules: Rules) -> None:
        self.x, self.call, self.rules, self.products = x.contiguous(), call, rules, Products.of(rules, x)
        (self.T, self.B, _), self.L = x.shape, len(weights)
        self.layers = [Layer(l, weights, call, self.products) for l in range(self.L)]
        first = self.layers[0]
        first.operand[: self.T, :, first.place_below :] = self.x
        new = call.state.z.new_zeros
        self.zs = new(self.T + 1, self.B, self.L)  # the state; 0 of the last layer
        self.zs[0, :, : self.L - 1] = call.state.z
        self.out_z, self.s_z = (new(self.T, self.B, self.L) for _ in range(2))
        self.valid = None if call.valid is None else call.valid.to(torch.int8).contiguous()
        self.given = None if call.given is None else call.given.contiguous()
        self.uniforms = None if rules.uniforms is None else rules.uniforms.contiguous()
        self.masks = [mask.contiguous() for mask in rules.masks]
        # By a tensor: a graph that was captured with one slope must be able to run with the next.
        self.slope = call.slope if isinstance(call.slope, Tensor) else torch.full_like(self.zs[0, 0, 0], call.slope)

    def mask(self, l: int) -> Tensor | None:
        return self.masks[l] if self.masks and l < self.L - 1 else None

    def neighbours(self, l: int) -> tuple[Layer | None, Layer | None]:
        """The layers above and below."""
        return self.layers[l + 1] if l + 1 < self.L else None, self.layers[l - 1] if l else None

    def constants(self, l: int) -> dict[str, Any]:
        """What the kernels of a layer are compiled for."""
        layer, (above, below) = self.layers[l], self.neighbours(l)
        return {
            "l": l,
            "L": self.L,
            "H": layer.H,
            "HA": layer.HA,
            "HB": layer.HB,
            "K": layer.K,
            "KA": above.K if above else 0,
            "KB": below.K if below else 0,
            "PLACE_ABOVE": above.place_below if above else 0,
            "EPS": LAYER_NORM_EPS,
            "NORM": layer.w.gain is not None,
            "GIVEN": self.given is not None,
            "SAMPLED": self.rules.boundary == "sample",
            "HOLD": self.rules.hold,
            "PADDED": self.valid is not None,
            "MASKED": self.mask(l) is not None,
            "BH": power_of_two(layer.H),
            "BA": power_of_two(layer.HA),
            "num_warps": layer.warps,
            "enable_fp_fusion": True,  # triton's default, which is about to change
        }


def power_of_two(size: int) -> int:
    """The smallest that holds so many, from 1."""
    return 1 << max(0, size - 1).bit_length()


def launch(kernel: Any, rows: int, t: int, tensors: list[Tensor], constants: dict[str, Any]) -> None:
    """Starts a kernel, one program for each batch row, and does not wait for it."""
    kernel[(rows,)](t, rows, *tensors, **constants)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Kernels are started on the current device, which need not be that of their tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


Step = Callable[[int], None]


def present(tensors: list[Tensor | None], placeholder: Tensor) -> list[Tensor]:
    """A kernel gets a tensor for every argument. What a layer has not, its kernel does not touch."""
    return [placeholder if tensor is None else tensor for tensor in tensors]
