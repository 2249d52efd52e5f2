"""What a recurrent network takes along and gives back: its state, its output, and values that rarely change.

T  time steps      B  batch rows      L  layers      H_l  units of layer l
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence


class Operation(IntEnum):
    """The operation of a layer at a time step."""

    UPDATE = 0
    COPY = 1
    FLUSH = 2

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    @classmethod
    def names(cls, operations: Tensor) -> Any:
        """Returns the names of a tensor of operations, such as `HMLSTMOutput.operations`, as nested lists."""
        return named(operations.tolist())


def named(numbers: Any) -> Any:
    return [named(own) for own in numbers] if isinstance(numbers, list) else Operation(numbers).name


UPDATE, COPY, FLUSH = Operation.UPDATE, Operation.COPY, Operation.FLUSH


@dataclass(frozen=True)
class Piecewise:
    """A sequence of vectors that stores each distinct vector once, although it may occur at many time steps.

    Boundaries decided how often a vector is repeated, and this decision has a gradient: without the repetition,
    `values + tangents` would have taken its place. `repeats` is zero and carries that gradient: the sequence is
    values[index] + repeats * tangents[index].

    Attributes:
        values: (N, H) the distinct vectors.
        index: (T, B), or any other shape, int64: the number of the vector at each step.
        tangents: (N, H), or None if there is no gradient or no repetition.
        repeats: (T, B) of zeros, or None.
        in_order: Whether every step has a vector of its own, one after the other.
    """

    values: Tensor
    index: Tensor
    tangents: Tensor | None = None
    repeats: Tensor | None = None
    in_order: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the sequence written out: (T, B, H), for instance."""
        return (*self.index.shape, *self.values.shape[1:])

    def __repr__(self) -> str:
        values = " of ".join(map(str, sizes(self.values)))
        return f"Piecewise({' x '.join(map(str, sizes(self.index)))} steps, {values} units)"

    @staticmethod
    def from_dense(dense: Tensor) -> Piecewise:
        """Wraps a tensor, (..., H), in which every step has a vector of its own."""
        values = dense.reshape(-1, dense.shape[-1])
        index = torch.arange(len(values), device=dense.device).view(dense.shape[:-1])
        return Piecewise(values, index, in_order=True)

    def __getitem__(self, where: Any) -> Piecewise:
        """Some of the steps: indexes the leading dimensions."""
        repeats = None if self.repeats is None else self.repeats[where]
        return Piecewise(self.values, self.index[where], self.tangents, repeats)

    def transpose(self) -> Piecewise:
        """Exchanges time and batch."""
        repeats = None if self.repeats is None else self.repeats.T
        return Piecewise(self.values, self.index.T, self.tangents, repeats)

    def dense(self) -> Tensor:
        """Returns the sequence as one tensor, (..., H)."""
        if self.in_order:
            return self.values.view(*self.index.shape, -1)
        if self.tangents is None or self.repeats is None:
            # embedding() is indexing whose backward adds up in parallel
            return F.embedding(self.index, self.values)
        dense: Tensor = _Expand.apply(self.values, self.index, self.tangents, self.repeats)  # type: ignore[no-untyped-call]
        return dense

    def map(self, f: Callable[[Tensor], Tensor]) -> Piecewise:
        """Applies f, from (N, H) to (N, K), once to each distinct vector. f must treat rows independently."""
        values = f(self.values)
        tangents = None if self.tangents is None else derivative_along(values, self.values, self.tangents)
        return Piecewise(values, self.index, tangents, self.repeats, self.in_order)

    def linear(self, f: Callable[[Tensor], Tensor]) -> Piecewise:
        """Applies a linear f with f(0) = 0, as `map` does but faster: its derivative is f itself."""
        with torch.no_grad():
            tangents = None if self.tangents is None else f(self.tangents)
        return Piecewise(f(self.values), self.index, tangents, self.repeats, self.in_order)


def sizes(tensor: Tensor) -> tuple[Any, ...]:
    """For a repr, which must not fail whatever stands in a tensor's place."""
    return tuple(getattr(tensor, "shape", ())) or ("?",)


class _Expand(torch.autograd.Function):
    """values[index] + repeats * tangents[index], where repeats is zero."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, tangents: Tensor, repeats: Tensor) -> Tensor:
        ctx.save_for_backward(index, tangents)
        ctx.rows = len(values)
        return F.embedding(index, values)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, Tensor]:
        from hmrnn.engines.native.expansion import expansion_backward

        index, tangents = ctx.saved_tensors
        if len(tangents) == ctx.rows and (both := expansion_backward(grad, index, tangents)) is not None:
            return both[0], None, None, both[1]
        values = torch.ops.aten.embedding_dense_backward(grad.contiguous(), index, ctx.rows, -1, False)
        return values, None, None, (grad * F.embedding(index, tangents)).sum(-1)


def derivative_along(value: Tensor, at: Tensor, direction: Tensor) -> Tensor:
    """The derivative of `value`, which was computed from `at`, in a direction: as a constant."""
    # Two reverse passes: u -> J^T u is linear, and its transpose is J. (Torch's forward mode compiles scripts first.)
    u = torch.zeros_like(value, requires_grad=True)
    (pulled,) = torch.autograd.grad(value, at, u, create_graph=True, materialize_grads=True)
    (pushed,) = torch.autograd.grad(pulled, u, direction, materialize_grads=True)
    return pushed.detach()


@dataclass(frozen=True)
class HMLSTMState:
    """The state after a time step. A clockwork RNN has no c and keeps its clock in z; a plain LSTM has no z.

    Attributes:
        h: Hidden states of each layer, (B, H_l).
        c: Cells of each layer, (B, H_l).
        z: (B, L-1) boundaries.
    """

    h: tuple[Tensor, ...]
    c: tuple[Tensor, ...]
    z: Tensor

    def __repr__(self) -> str:
        batch = "".join(f"B={size}, " for size in sizes(self.z)[:-1])
        return f"HMLSTMState({batch}layers {'/'.join(str(sizes(h)[-1]) for h in self.h)})"

    def __iter__(self) -> Iterator[NoReturn]:
        raise TypeError("HMLSTMState is no pair (h, c): .h and .c have one tensor for each layer, .z the boundaries")

    def __getstate__(self) -> dict[str, Any]:
        return {"h": self.h, "c": self.c, "z": self.z}  # and not what an engine has noted of it

    def detach(self) -> HMLSTMState:
        """Detaches the state from the graph, as at the end of a window of truncated backpropagation."""
        return self._map(lambda tensor: tensor.detach())

    def to(self, *args: Any, **kwargs: Any) -> HMLSTMState:
        """Moves the state to a device or dtype, as `Tensor.to` does."""
        return self._map(lambda tensor: tensor.to(*args, **kwargs))

    def select(self, rows: Tensor | slice | list[int] | int) -> HMLSTMState:
        """Returns the state of some batch rows, by index, mask or slice. A single number drops the batch dimension."""
        return self._map(lambda tensor: tensor[rows])

    def batch_of_one(self) -> HMLSTMState:
        """Adds a batch dimension to the state of one sequence."""
        return self._map(lambda tensor: tensor.unsqueeze(0))

    def renewed(self, rows: list[int]) -> HMLSTMState:
        """Returns the state with some batch rows set to zero."""
        index = torch.tensor(rows, dtype=torch.int64, device="cpu").to(self.z.device, non_blocking=True)
        return self._map(lambda tensor: tensor.index_fill(0, index, 0))

    def _map(self, f: Callable[[Tensor], Tensor]) -> HMLSTMState:
        return HMLSTMState(tuple(map(f, self.h)), tuple(map(f, self.c)), f(self.z))


class NoTensor:
    """What an output says to those who take it for the tensor that `torch.nn.LSTM` gives."""

    @classmethod
    def _told(cls) -> str:
        return f"{cls.__name__} is no tensor: .last has the hidden states of the top layer, .h those of each layer"

    def __getitem__(self, where: Any) -> NoReturn:
        raise TypeError(self._told())

    def __iter__(self) -> Iterator[NoReturn]:
        return self[0]

    @classmethod
    def __torch_function__(cls, *call: Any) -> NoReturn:  # as of Linear(out)
        raise TypeError(cls._told())

    if not TYPE_CHECKING:  # to mypy, it would have any attribute

        def __getattr__(self, name: str) -> NoReturn:
            own = name.startswith("_") or not hasattr(Tensor, name)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}" if own else self._told())


@dataclass(frozen=True)
class HMLSTMOutput(NoTensor):
    """The output of every layer at every step.

    Shapes begin with (T, B), with (B, T) for `batch_first`, with (B,) from `step()`, and with (T,) for a single
    sequence without a batch dimension.

    Attributes:
        steps: Hidden states of each layer, (T, B, H_l), each distinct one stored once.
        z: (T, B, L-1) boundaries: 0 or 1, or between if soft; 0 at padded steps.
        operations: (T, B, L) int8: UPDATE, COPY or FLUSH. A soft boundary counts from 0.5.
    """

    steps: tuple[Piecewise, ...]
    z: Tensor
    operations: Tensor

    def __repr__(self) -> str:
        return shown(self, self.z)

    @cached_property
    def h(self) -> tuple[Tensor, ...]:
        """The hidden states of each layer as tensors, (T, B, H_l)."""
        return tuple(steps.dense() for steps in self.steps)

    @cached_property
    def last(self) -> Tensor:
        """The hidden states of the top layer as a tensor, (T, B, H_L): the `output` of `torch.nn.LSTM`."""
        return self.h[-1] if "h" in self.__dict__ else self.steps[-1].dense()

    @property
    def rates(self) -> Tensor:
        """The share of the steps, without padded ones, at which each detector fired: (L-1,)."""
        return rates_of(self.z, self.operations)


@dataclass(frozen=True)
class PackedOutput(NoTensor):
    """The output for a `PackedSequence`, packed as the input is.

    Attributes:
        steps: Hidden states of each layer, (N, H_l), in the order of the data of the input.
        z: Boundaries, packed (N, L-1).
        operations: UPDATE, COPY or FLUSH, packed (N, L).
    """

    steps: tuple[Piecewise, ...]
    z: PackedSequence
    operations: PackedSequence

    def __repr__(self) -> str:
        return shown(self, self.z.data)

    @cached_property
    def h(self) -> tuple[PackedSequence, ...]:
        """The hidden states of each layer, packed (N, H_l)."""
        return tuple(self.z._replace(data=steps.dense()) for steps in self.steps)

    @cached_property
    def last(self) -> PackedSequence:
        """The hidden states of the top layer, packed: the `output` of `torch.nn.LSTM`."""
        return self.h[-1] if "h" in self.__dict__ else self.z._replace(data=self.steps[-1].dense())

    @property
    def rates(self) -> Tensor:
        """The share of the steps at which each detector fired: (L-1,)."""
        return rates_of(self.z.data, self.operations.data)


def shown(output: HMLSTMOutput | PackedOutput, z: Tensor) -> str:
    """An output in a line. It does not know which dimension is time, and which is batch."""
    steps = " x ".join(map(str, sizes(z)[:-1]))
    layers = "/".join(str(sizes(steps.values)[-1]) for steps in output.steps)
    rates = ""
    if type(z) is Tensor:  # and nothing without numbers
        rates = "".join(f" {rate:.2f}".replace(" 0.", " .") for rate in output.rates.tolist())
    return f"{type(output).__name__}({steps}, layers {layers}{rates and ', rates' + rates})"


def rates_of(z: Tensor, operations: Tensor) -> Tensor:
    """(L-1,): at which share of the steps z is 1. The lowest layer copies at padded steps only: those do not count."""
    steps = (operations[..., 0] != COPY).sum().clamp_min(1)
    return (z.detach() > 0.5).flatten(0, -2).sum(0) / steps


def register(kind: type[Any], *tensors: str, settings: tuple[str, ...] = ()) -> None:
    """Makes a dataclass a pytree of those of its fields that are tensors, or trees of them, and not None."""

    def flatten(node: Any) -> tuple[list[Any], list[Any]]:
        there = [name for name in tensors if getattr(node, name) is not None]
        return [getattr(node, name) for name in there], [there, [getattr(node, name) for name in settings]]

    def flatten_with_keys(node: Any) -> tuple[list[tuple[pytree.KeyEntry, Any]], list[Any]]:
        leaves, context = flatten(node)
        return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(context[0], leaves, strict=True)], context

    def unflatten(leaves: Iterable[Any], context: list[Any]) -> Any:
        there, set_to = context
        return kind(**dict(zip(there, leaves, strict=True)), **dict(zip(settings, set_to, strict=True)))

    pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=f"hmrnn.{kind.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
        to_dumpable_context=lambda context: context,
        from_dumpable_context=lambda context: context,
    )
    torch.serialization.add_safe_globals([kind])  # plain data: files that hold one load with weights_only=True


register(Piecewise, "values", "index", "tangents", "repeats", settings=("in_order",))
register(HMLSTMState, "h", "c", "z")
register(HMLSTMOutput, "steps", "z", "operations")
register(PackedOutput, "steps", "z", "operations")
