"""What HMLSTM and its baselines share: the call in all its layouts, its checks, `lengths`, and `step()`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from hmrnn.checks import (
    check_binary,
    check_like,
    check_slope,
    check_slope_tensor,
    check_tensors,
    layer_sizes,
    valid_steps,
)
from hmrnn.devices import any_weight
from hmrnn.errors import check_size
from hmrnn.layouts import packed, padded, transposed
from hmrnn.sequence import HMLSTMOutput, HMLSTMState, PackedOutput, Piecewise

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Call:
    """One checked call of a recurrent network, time first. What an engine is asked to compute."""

    x: Tensor | Piecewise  # (T, B, input_size)
    state: HMLSTMState
    valid: Tensor | None  # (T, B) bool: False at padded steps; None without any
    given: Tensor | None  # (T, B, L-1) boundaries that are known
    slope: float | Tensor  # a tensor, (), where a graph is captured once and runs with many slopes
    generator: torch.Generator | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """T, B and input_size."""
        T, B, input_size = self.x.shape
        return T, B, input_size

    def dense_x(self) -> Tensor:
        """(T, B, input_size), zero at padded steps: what stands there, NaN too, must not reach a gradient."""
        x = self.x if isinstance(self.x, Tensor) else self.x.dense()
        return x if self.valid is None else x.masked_fill(~self.valid.unsqueeze(-1), 0)


class Unrolled(NamedTuple):
    """What came of a call, time first."""

    output: HMLSTMOutput
    state: HMLSTMState


class Recurrent(nn.Module, ABC):
    """A stack of recurrent layers (or modules) with the call of `HMLSTM`."""

    warn_collapse = True  # whether a detector that fires never or always in training is warned of
    _look: Callable[[Call, HMLSTMOutput], None] | None = None

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Before `__init__`, of which Python would only tell that it misses hidden_sizes."""
        ours = cls.__init__.__module__.partition(".")[0] == __name__.partition(".")[0]  # a subclass may have its own
        if ours and "hidden_size" in options:  # of torch.nn.LSTM
            raise TypeError(
                f"{cls.__name__} has no hidden_size: give hidden_sizes, one for each layer, or one and num_layers"
            )
        return super().__new__(cls)

    def __init__(
        self,
        input_size: int,
        hidden_sizes: int | Sequence[int],
        num_layers: int | None = None,
        *,
        slope: float,
        batch_first: bool,
    ) -> None:
        super().__init__()
        check_size("input_size", input_size)
        self.input_size = input_size
        self.hidden_sizes = layer_sizes(hidden_sizes, num_layers)
        self.slope = slope
        self.batch_first = batch_first

    @property
    def slope(self) -> float:
        """Slope of the detectors in calls without one of their own. It is checked when it is set, not in each call."""
        slope: float = self.__dict__["slope"]
        return slope

    @slope.setter
    def slope(self, slope: float | Tensor) -> None:
        self.__dict__["slope"] = check_slope(slope)  # by this name, as in networks that were pickled before

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "slope":  # else nn.Module would keep a parameter itself
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def num_layers(self) -> int:
        return len(self.hidden_sizes)

    @property
    def engine(self) -> str:
        """The name of the engine in use."""
        return "torch"

    @property
    def engine_reason(self) -> str:
        """The reason for which this engine is in use, in one line."""
        return "it has no other"

    @property
    def rounds_products(self) -> bool:
        """Whether a call now would round the operands of matrix products to bfloat16."""
        return False

    @property
    def soft(self) -> bool:
        """Whether boundaries may lie between 0 and 1."""
        return False

    @property
    @abstractmethod
    def state_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Units of each h, units of each c, number of z: what a row of the state holds."""

    @abstractmethod
    def unroll(self, call: Call) -> Unrolled:
        """Computes a checked call."""

    def constrain_detectors(self, radius: float | None = None) -> None:
        """To be called after each optimiser step. Does nothing where there is no detector."""

    def shift_detectors(self, shifts: Sequence[float | Tensor]) -> None:
        """Adds to the bias of each detector, one number for each. Does nothing where there is no detector."""

    def initial_state(self, batch_size: int) -> HMLSTMState:
        """h = c = 0, z = 0."""
        h_sizes, c_sizes, num_z = self.state_sizes
        like = any_weight(self)
        return HMLSTMState(
            tuple(like.new_zeros(batch_size, size) for size in h_sizes),
            tuple(like.new_zeros(batch_size, size) for size in c_sizes),
            like.new_zeros(batch_size, num_z),
        )

    def forward(
        self,
        x: Tensor | Piecewise | PackedSequence,
        state: HMLSTMState | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        boundaries: Tensor | PackedSequence | None = None,
        slope: float | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[HMLSTMOutput | PackedOutput, HMLSTMState]:
        """Runs over a batch of sequences.

        Args:
            x: (T, B, input_size), or (B, T, input_size) with `batch_first`. (T, input_size) is one sequence, and then
                nothing has a batch dimension. A `PackedSequence` gives a `PackedOutput`. In a `Piecewise` of few
                vectors, such as embedded symbols, each vector is multiplied once a call.
            state: The state to start from; zeros by default.
            lengths: (B,) number of valid steps of each row. Later steps COPY in every layer and leave the state alone.
            boundaries: (T, B, L-1) of 0 and 1, to use instead of the detectors'.
            slope: Slope of the detectors in this call, instead of `self.slope`: a number or a tensor of one.
            generator: Source of random numbers for sampled boundaries and dropout. A CPU generator gives the same
                numbers on every device.

        Returns:
            The output of every step, and the state after the last one.

        On a GPU this does not synchronise. Values of z and lengths are checked by the GPU, and a wrong call ends in a
        device-side assertion.
        """
        if isinstance(x, PackedSequence):
            return self._packed(x, state, lengths, boundaries, slope, generator)
        if isinstance(boundaries, PackedSequence):
            raise TypeError("boundaries are a PackedSequence, and x is none: pack both, or neither")
        check_tensors(x, boundaries)
        if len(x.shape) == 2:
            return self._unbatched(x, state, lengths, boundaries, slope, generator)
        if len(x.shape) != 3:
            raise ValueError(
                f"x must have 3 dimensions (time, batch, input_size), or 2 (time, input_size); got {tuple(x.shape)}"
            )
        if self.batch_first:
            x = x.transpose(0, 1) if isinstance(x, Tensor) else x.transpose()
            boundaries = boundaries.transpose(0, 1) if boundaries is not None and boundaries.dim() == 3 else boundaries
        output, state = self._time_first(x, state, lengths, boundaries, slope, generator)
        return (transposed(output) if self.batch_first else output), state

    def _time_first(
        self,
        x: Tensor | Piecewise,
        state: HMLSTMState | None,
        lengths: Tensor | Sequence[int] | None,
        boundaries: Tensor | None,
        *how: Any,
    ) -> Unrolled:
        """`how` are slope and generator."""
        call = self._check(x, state, lengths, boundaries, *how)
        done = self.unroll(call)
        if self._look is not None:
            self._look(call, done.output)
        return done

    def _packed(
        self,
        x: PackedSequence,
        state: HMLSTMState | None,
        lengths: Tensor | Sequence[int] | None,
        boundaries: Tensor | PackedSequence | None,
        *how: Any,
    ) -> tuple[PackedOutput, HMLSTMState]:
        """Rows are computed in the order of the packed data, the longest first; states go by the order before it."""
        if lengths is not None:
            raise ValueError("lengths must not be given with a PackedSequence, which knows them")
        dense, own_lengths = padded(x)
        given: Tensor | None = None
        if isinstance(boundaries, PackedSequence):
            if not torch.equal(boundaries.batch_sizes, x.batch_sizes):
                raise ValueError("boundaries must be packed as x is: their batch_sizes differ")
            given = padded(boundaries)[0]
        elif boundaries is not None:
            raise TypeError(f"boundaries must be a PackedSequence, as x is one; got {type(boundaries).__name__}")
        if isinstance(state, HMLSTMState) and x.sorted_indices is not None:
            self._check_state(state, len(own_lengths), any_weight(self))
            state = state.select(x.sorted_indices)
        output, state = self._time_first(dense, state, own_lengths, given, *how)
        return packed(output, own_lengths, x), state if x.unsorted_indices is None else state.select(x.unsorted_indices)

    def _unbatched(
        self,
        x: Tensor | Piecewise,
        state: HMLSTMState | None,
        lengths: Tensor | Sequence[int] | None,
        boundaries: Tensor | None,
        *how: Any,
    ) -> tuple[HMLSTMOutput, HMLSTMState]:
        """One sequence, as a batch of one."""
        if lengths is not None:
            raise ValueError("lengths are those of a batch, and x has none: it has 2 dimensions (time, input_size)")
        if isinstance(state, HMLSTMState):
            if state.z.dim() != 1:
                raise ValueError("state has a batch dimension, and x has none: give state.select(0), or x of a batch")
            state = state.batch_of_one()
        x = x.unsqueeze(1) if isinstance(x, Tensor) else x[:, None]
        boundaries = None if boundaries is None else boundaries.unsqueeze(1)
        output, state = self._time_first(x, state, None, boundaries, *how)
        steps = tuple(steps[:, 0] for steps in output.steps)
        return HMLSTMOutput(steps, output.z[:, 0], output.operations[:, 0]), state.select(0)

    @contextmanager
    def watched(self, look: Callable[[Call, HMLSTMOutput], None]) -> Iterator[None]:
        """Calls `look` after each forward pass in the meantime, time first in every layout."""
        if self._look is not None:
            raise RuntimeError("two guides can't look at one network at once")
        self._look = look
        try:
            yield
        finally:
            self._look = None

    def step(
        self,
        x: Tensor | Piecewise,
        state: HMLSTMState | None = None,
        boundaries: Tensor | None = None,
        slope: float | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[HMLSTMOutput, HMLSTMState]:
        """Computes one time step. Its output has no time dimension.

        Args:
            x: (B, input_size).
            state: The state to start from; zeros by default.
            boundaries: (B, L-1) of 0 and 1, to use instead of the detectors'.
            slope: Slope of the detectors in this step, instead of `self.slope`.
            generator: Source of random numbers for sampled boundaries and dropout.

        Returns:
            The output, and the state after the step. They may share memory: do not write into them.
        """
        check_tensors(x, boundaries)
        if len(x.shape) != 2:
            raise ValueError(f"x must have 2 dimensions (batch, input_size) in a single step; got {tuple(x.shape)}")
        given = None if boundaries is None else boundaries.unsqueeze(0)
        x = x.unsqueeze(0) if isinstance(x, Tensor) else x[None]
        output, state = self.unroll(self._check(x, state, None, given, slope, generator))
        return HMLSTMOutput(tuple(steps[0] for steps in output.steps), output.z[0], output.operations[0]), state

    def _check(
        self,
        x: Tensor | Piecewise,
        state: HMLSTMState | None,
        lengths: Tensor | Sequence[int] | None,
        boundaries: Tensor | None,
        slope: float | Tensor | None,
        generator: torch.Generator | None,
    ) -> Call:
        like = any_weight(self)
        T, B, input_size = x.shape
        if input_size != self.input_size:
            raise ValueError(
                f"x must have {self.input_size} features (input_size) in its last dimension; got {input_size}"
            )
        if T == 0 or B == 0:
            raise ValueError(f"x must have at least one time step and one batch row; got {T} and {B}")
        check_like("x", x if isinstance(x, Tensor) else x.values, like)
        if state is None:
            state = self.initial_state(B)
        else:
            self._check_state(state, B, like)
        valid = None if lengths is None else valid_steps(lengths, T, B, like.device)
        if boundaries is not None:
            self._check_boundaries(boundaries, T, B, like)
            boundaries = boundaries.to(like.dtype)
        if slope is None:
            slope = self.slope
        else:
            slope = check_slope_tensor(slope, like) if isinstance(slope, Tensor) else check_slope(slope)
        return Call(x, state, valid, boundaries, slope, generator)

    def _check_state(self, state: HMLSTMState, B: int, like: Tensor) -> None:
        if not isinstance(state, HMLSTMState):
            raise TypeError(f"state must be an HMLSTMState, as initial_state() gives it; got {type(state).__name__}")
        h_sizes, c_sizes, num_z = self.state_sizes
        for name, tensors, sizes in [("h", state.h, h_sizes), ("c", state.c, c_sizes), ("z", (state.z,), (num_z,))]:
            shapes, expected = [tuple(tensor.shape) for tensor in tensors], [(B, size) for size in sizes]
            if shapes != expected:
                raise ValueError(f"state.{name} must have shapes {expected}; got {shapes}")
            for tensor in tensors:
                check_like(f"state.{name}", tensor, like)
        if not self.soft:
            check_binary("state.z", state.z)

    def _check_boundaries(self, boundaries: Tensor, T: int, B: int, like: Tensor) -> None:
        expected = (T, B, self.num_layers - 1)
        if tuple(boundaries.shape) != expected:
            order = "time, batch, layers - 1; turned by batch_first" if self.batch_first else "time, batch, layers - 1"
            raise ValueError(f"boundaries must have shape ({order}) = {expected}; got {tuple(boundaries.shape)}")
        if boundaries.device != like.device:
            raise ValueError(f"boundaries must be on {like.device}, as the weights are; got {boundaries.device}")
        if boundaries.requires_grad:
            raise ValueError("boundaries are taken as they are, without a gradient: detach() them")
        check_binary("boundaries", boundaries)


def refuse_boundaries(call: Call, what: str) -> None:
    if call.given is not None:
        raise ValueError(f"boundaries can't be given to {what}: it has none")
