"""bfloat16 products of the native engine: against a reference that rounds the same operands, in float64 elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from networks import Case, cases
from torch import Tensor

from hmrnn import HMLSTM, HMLSTMState, Piecewise
from hmrnn.engines.native import library

KERNELS = ("widen", "dot", "amx")


def rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32).to(torch.bfloat16).to(torch.float64)


class Product(torch.autograd.Function):
    """a @ b.T of operands that are rounded, whose gradients are products of rounded operands, too."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return rounded(a) @ rounded(b).T

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return rounded(grad) @ rounded(b), rounded(grad).T @ rounded(a)


class RoundedMatrix(Tensor):
    """A matrix whose product with a batch of rows is `Product`: `equations.py` takes it as it takes any other."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (Tensor.matmul, Tensor.__matmul__, torch.matmul) and isinstance(args[1], cls):
            return Product.apply(args[0], args[1].as_subclass(Tensor).T)
        return super().__torch_function__(function, types, args, kwargs or {})
