"""What the arguments of a recurrent network must be: sizes, tensors, slopes."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from numbers import Real

import torch
from torch import Tensor

from hmrnn.errors import check_size, check_type
from hmrnn.sequence import Piecewise

CHECKED_AT_ONCE = ("cpu", "mps")  # devices whose values are looked at before a call; MPS has no assertions of its own


def layer_sizes(hidden_sizes: int | Sequence[int], num_layers: int | None) -> tuple[int, ...]:
    """The units of each layer."""
    if isinstance(hidden_sizes, int) and num_layers is not None:
        check_size("num_layers", num_layers)
        hidden_sizes = [hidden_sizes] * num_layers
    if not isinstance(hidden_sizes, Sized) or len(hidden_sizes) == 0:
        raise ValueError(
            "hidden_sizes must list the units of each layer, as in [256, 256], or be one size with num_layers; "
            f"got {hidden_sizes!r}"
        )
    if num_layers not in (None, len(hidden_sizes)):
        raise ValueError(f"num_layers must be the number of hidden_sizes, {len(hidden_sizes)}; got {num_layers}")
    for size in hidden_sizes:
        check_size("each of hidden_sizes", size)
    return tuple(hidden_sizes)


def check_tensors(x: object, boundaries: object) -> None:
    check_type("x", x, (Tensor, Piecewise), "a tensor")
    if boundaries is not None:
        check_type("boundaries", boundaries, Tensor, "a tensor")


def valid_steps(lengths: Tensor | Sequence[int], T: int, B: int, device: torch.device) -> Tensor:
    """(T, B): which steps lie within their row's length."""
    if not isinstance(lengths, Tensor):
        lengths = torch.as_tensor(lengths, device="cpu")  # checked where it is, before it is moved
    check_whole("lengths", lengths)
    if tuple(lengths.shape) != (B,):
        raise ValueError(f"lengths must have shape (batch,) = {(B,)}; got {tuple(lengths.shape)}")
    check_values(f"lengths must lie between 0 and the number of time steps {T}", lengths, (lengths < 0) | (lengths > T))
    return torch.arange(T, device=device).unsqueeze(1) < lengths.to(device, non_blocking=True)


def check_whole(name: str, numbers: Tensor) -> None:
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"{name} must be whole numbers; got {numbers.dtype}")


def check_binary(name: str, values: Tensor) -> None:
    check_values(f"{name} must be 0 or 1", values, (values != 0) & (values != 1))


def check_values(must: str, values: Tensor, wrong: Tensor) -> None:
    """Refuses values of which some are wrong. On a GPU they are checked when it comes to them: nobody waits for it.

    In a call that is traced, there are no values to look at.
    """
    if values.device.type == "meta" or torch.compiler.is_compiling():
        return
    if values.device.type not in CHECKED_AT_ONCE:
        torch._assert_async(~wrong.any(), must)
    elif wrong.any():
        raise ValueError(f"{must}; got {values[wrong][0].item()}")


def check_slope_tensor(slope: Tensor, like: Tensor) -> Tensor:
    if slope.shape != ():
        raise ValueError(f"slope must be one number; got shape {tuple(slope.shape)}")
    check_like("slope", slope, like)
    check_constant(slope)
    check_values("slope must be positive and finite", slope, ~((slope > 0) & slope.isfinite()))
    return slope


def check_constant(slope: Tensor) -> None:
    if slope.requires_grad:
        raise ValueError("slope is taken as it is, without a gradient: detach() it")


def check_slope(slope: float | Tensor) -> float:
    """The number itself, also that of a tensor of one."""
    if isinstance(slope, Tensor) and slope.shape == ():
        check_constant(slope)
        slope = slope.item()
    if not isinstance(slope, Real) or isinstance(slope, bool):
        raise TypeError(f"slope must be a number; got {type(slope).__name__}")
    if not 0 < slope < float("inf"):
        raise ValueError(f"slope must be positive and finite; got {slope}")
    return float(slope)


def check_like(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.dtype != like.dtype:
        raise TypeError(f"{name} must be {like.dtype}, as the weights are; got {tensor.dtype}")
    if tensor.device != like.device:
        raise ValueError(f"{name} must be on {like.device}, as the weights are; got {tensor.device}")
