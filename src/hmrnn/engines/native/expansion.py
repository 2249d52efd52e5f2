"""The gradient of a `Piecewise` that is written out, in one pass of the library."""

from __future__ import annotations

import torch
from torch import Tensor

from hmrnn.engines.native.library import Expansion, check, is_loaded, library, plain, precision_of


def expansion_backward(grad: Tensor, index: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor] | None:
    """From the gradient (..., H) by values[index] + repeats * tangents[index], where repeats are zero, to those by the
    values and by the repeats. None where the native engine is not in use, or can't read these tensors.

    That the index lies within the values was checked when it was used.
    """
    if not is_loaded() or not all(map(is_readable, (grad, index, tangents))):
        return None
    if grad.dtype not in (torch.float32, torch.float64) or grad.numel() == 0:
        return None
    values, width = tangents.shape
    grad = plain("grad", grad, (*index.shape, width), grad.dtype)
    index = plain("index", index, index.shape, torch.int64)
    tangents = plain("tangents", tangents, tangents.shape, grad.dtype)
    d_values, d_repeats = torch.empty_like(tangents), grad.new_empty(index.shape)
    asked = Expansion(
        precision_of(grad.dtype, bfloat16=False),
        torch.get_num_threads(),
        index.numel(),
        values,
        width,
        *(tensor.data_ptr() for tensor in (grad, index, tangents, d_values, d_repeats)),
    )
    check(library().hmrnn_expansion_backward(asked))
    return d_values, d_repeats


def is_readable(tensor: Tensor) -> bool:
    """Whether it has memory that C++ could read."""
    dispatches = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not dispatches
