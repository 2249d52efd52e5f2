"""Linear maps whose products are computed in bfloat16, as the native engine computes its own: sums are float32.

On another device than the CPU, torch computes them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmrnn.engines.native.library import (
    Product,
    check,
    library,
    plain,
)
from hmrnn.engines.types import first_derivative


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T for x (..., inputs) and weight (outputs, inputs), both float32."""
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} can't be multiplied with a weight of shape {tuple(weight.shape)}")
    out: Tensor = _Linear.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows, matrix = flat("x", x), flat("weight", weight)
        ctx.save_for_backward(rows, matrix)
        ctx.shape = x.shape
        return product(rows, matrix, transposed=True).view(*x.shape[:-1], len(weight))

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, matrix = ctx.saved_tensors
        wants_x, wants_weight = ctx.needs_input_grad
        grad = flat("grad", grad)
        d_x = product(grad, matrix).view(ctx.shape) if wants_x else None
        return d_x, product(grad, rows, sums=True) if wants_weight else None


def flat(name: str, tensor: Tensor) -> Tensor:
    """(..., n) -> (rows, n), as C++ can read it."""
    if tensor.device.type != "cpu":
        return tensor.reshape(-1, tensor.shape[-1])
    return plain(name, tensor, tensor.shape, torch.float32).view(-1, tensor.shape[-1])


def product(a: Tensor, b: Tensor, *, transposed: bool = False, sums: bool = False) -> Tensor:
    """a @ b, a @ b.T (`transposed`) or a.T @ b (`sums`)."""
    if a.device.type != "cpu":
        a, b = (a.T if sums else a), (b.T if transposed else b)
        return torch.mm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    depth, rows = a.shape if sums else a.shape[::-1]
    columns = b.shape[0] if transposed else b.shape[1]
    c = torch.empty(rows, columns, dtype=torch.float32, device="cpu")
    if c.numel() == 0 or depth == 0:
        return c.zero_()
    asked = Product(
        a.data_ptr(), b.data_ptr(), c.data_ptr(), rows, columns, depth, transposed, sums, torch.get_num_threads()
    )
    check(library().hmrnn_product(asked))
    return c
