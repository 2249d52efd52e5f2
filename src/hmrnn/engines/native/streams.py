"""Single steps without a gradient: one call of the library each, with everything prepared that stays the same."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import attrgetter, is_
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from hmrnn.checks import check_slope, check_tensors
from hmrnn.devices import any_weight
from hmrnn.engines.event_driven import MOST_VECTORS
from hmrnn.engines.native.library import (
    Step,
    Stream,
    address,
    check,
    library,
    plain,
    plain_weights,
    precision_of,
    weights_array,
)
from hmrnn.equations import LayerWeights
from hmrnn.sequence import (
    COPY,
    HMLSTMOutput,
    HMLSTMState,
    Piecewise,
)

if TYPE_CHECKING:
    from hmrnn.hmlstm import HMLSTM

VERSION = attrgetter("_version")
MOST_ROWS = 8  # with more, products of many rows at once are faster

optimizer_steps = 0  # of all optimizers. Those that are fused write into weights whose `_version` stays what it was


def _count(*_: Any) -> None:
    global optimizer_steps
    optimizer_steps += 1


register_optimizer_step_post_hook(_count)


class Handle:
    """A stream of the library, freed with this object; and the tensors that it reads."""

    def __init__(
        self, rnn: HMLSTM, weights: Sequence[LayerWeights], bfloat16: bool, table: Table | None, **output: Any
    ):
        self.library, self.stream = library(), ctypes.c_void_p()
        dtype, sizes, input_size = any_weight(rnn).dtype, rnn.hidden_sizes, rnn.input_size
        checked = [plain_weights(layer, sizes, l, input_size, dtype) for l, layer in enumerate(weights)]
        if table is not None:
            checked[0] = checked[0]._replace(W=None, W_z=None)  # type: ignore[arg-type]
        self.kept = (checked, table, output)
        what = Stream(
            precision=precision_of(dtype, bfloat16),
            hold=rnn.copy_boundary == "hold",
            layers=len(sizes),
            input_size=input_size,
            hidden=(ctypes.c_int64 * len(sizes))(*sizes),
            weights=weights_array(checked),
            table=None if table is None else table.gates.data_ptr(),
            table_z=None if table is None or table.detector is None else table.detector.data_ptr(),
            **{name: value for name, value in output.items() if not name.startswith("_")},
        )
        check(self.library.hmrnn_stream_new(what, self.stream))

    def __del__(self) -> None:
        self.library.hmrnn_stream_free(self.stream)


class Table:
    """W x and W_z x of the first layer, for every vector that x may be."""

    def __init__(self, values: Tensor, first: LayerWeights) -> None:
        with torch.autocast("cpu", enabled=False):
            self.gates = (values @ first.W.T).contiguous()  # (S, 4H)
            self.detector = None if first.W_z is None else (values @ first.W_z).contiguous()  # (S,)


class SingleSteps:
    """The single steps of a network. Weights are read where they lie; those in bfloat16 and the table are copies."""

    def __init__(self, rnn: HMLSTM, weights: Sequence[LayerWeights], bfloat16: bool, table: Table | None) -> None:
        self.sizes, self.dtype = rnn.hidden_sizes, any_weight(rnn).dtype
        self.kind = (self.sizes, self.dtype)  # of the states that it makes
        self.handle = Handle(rnn, weights, bfloat16, table)
        L = len(self.sizes)
        self.arrays = [(ctypes.c_void_p * L)() for _ in range(4)]
        h, c, new_h, new_c = self.arrays
        self.asked = Step(h=h, c=c, new_h=new_h, new_c=new_c)
        self.spare: list[tuple[Tensor, Tensor] | None] = [None] * L
        self.index: Tensor | None = None
        self.call, self.where = self.handle.library.hmrnn_stream_step, ctypes.addressof(self.asked)
        self.lock = Lock()  # two threads may step one network

    def step(
        self,
        x: Tensor | None,
        symbols: Tensor | None,
        state: HMLSTMState,
        given: Tensor | None,
        uniforms: Tensor | None,
        slope: float,
    ) -> tuple[HMLSTMOutput, HMLSTMState]:
        """All tensors checked, contiguous, of the weights' dtype; without a time dimension. Hold the lock."""
        asked, (h, c, new_h, new_c), new = self.asked, self.arrays, torch.empty_like
        B, L = state.z.shape[0], len(self.sizes)
        if self.index is None or len(self.index) != B or self.index.is_inference() != torch.is_inference_mode_enabled():
            self.index, self.spare = torch.arange(B, device="cpu"), [None] * L
            self.operations = torch.empty(B, L, dtype=torch.int8, device="cpu")
        for l in range(L):
            h[l], c[l] = state.h[l].data_ptr(), state.c[l].data_ptr()
            if self.spare[l] is None:
                fresh_h, fresh_c = new(state.h[l]), new(state.c[l])
                self.spare[l] = fresh_h, fresh_c
                new_h[l], new_c[l] = fresh_h.data_ptr(), fresh_c.data_ptr()
        if not (all(h) and all(c)) or (x is not None and x.data_ptr() == 0):
            raise ValueError("x or the state has no memory any more: its storage was freed")
        z, z_too, operations = new(state.z), new(state.z), new(self.operations)
        asked.rows, asked.threads, asked.slope = B, torch.get_num_threads(), slope
        asked.x, asked.symbols, asked.z = address(x), address(symbols), state.z.data_ptr()
        asked.new_z, asked.new_z_too, asked.operations = z.data_ptr(), z_too.data_ptr(), operations.data_ptr()
        asked.given, asked.uniforms = address(given), address(uniforms)
        check(self.call(self.handle.stream, self.where))
        return self.result(state, z, z_too, operations)

    def result(
        self, state: HMLSTMState, z: Tensor, z_too: Tensor, operations: Tensor
    ) -> tuple[HMLSTMOutput, HMLSTMState]:
        """Tensors of layers that COPY are handed through as they are."""
        hs, cs = [], []
        for l, done in enumerate(copied_everywhere(operations)):
            spare = self.spare[l]
            if done or spare is None:
                hs.append(state.h[l])
                cs.append(state.c[l])
            else:
                hs.append(spare[0])
                cs.append(spare[1])
                self.spare[l] = None
        assert self.index is not None
        index = self.index
        steps = tuple([made(Piecewise, values=h, index=index, tangents=None, repeats=None) for h in hs])
        return (
            made(HMLSTMOutput, steps=steps, z=z, operations=operations),
            made(HMLSTMState, h=tuple(hs), c=tuple(cs), z=z_too, _kind=self.kind),
        )


def copied_everywhere(operations: Tensor) -> list[bool]:
    rows = operations.tolist()
    if len(rows) == 1:
        return [done == COPY for done in rows[0]]
    return [all(done == COPY for done in layer) for layer in zip(*rows, strict=True)]


def made(kind: type[Any], **fields: Any) -> Any:
    """A frozen dataclass, in a quarter of the time that its constructor takes."""
    new = object.__new__(kind)
    new.__dict__.update(fields)
    return new


class Prepared:
    """The steps of a network as long as its weights stay what they are: other tensors, or the same ones written into,
    and they are prepared anew. Kept in the network's `_prepared`."""

    def __init__(self, rnn: HMLSTM, rounds: bool, values: Tensor | None) -> None:
        self.rounds, self.values = rounds, values
        self.parameters = parameters_of(rnn)
        self.tensors = [t for t in (*self.parameters, values) if t is not None]
        self.counting = [t for t in self.tensors if not t.is_inference()]
        self.hooks = [layer._forward_pre_hooks for layer in rnn.layers]
        self.seen = self.look(rnn)
        weights = detached(rnn.weights())
        table = None if values is None else Table(values.detach(), weights[0])
        bfloat16 = rounds and any_weight(rnn).dtype == torch.float32
        self.steps = SingleSteps(rnn, weights, bfloat16, table)

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of a network prepares its own

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def look(self, rnn: HMLSTM) -> list[Any]:
        """What a change to the tensors shows in. (What is written through `.data` does not show.)"""
        seen: list[Any] = [*map(Tensor.data_ptr, self.tensors), *map(VERSION, self.counting)]
        seen += (optimizer_steps, rnn.boundary, rnn.copy_boundary, rnn._requested_engine, any(self.hooks))
        return seen

    def fits(self, rnn: HMLSTM, rounds: bool, values: Tensor | None) -> bool:
        """Whether nothing has changed."""
        if rounds != self.rounds or values is not self.values:
            return False
        now = parameters_of(rnn)
        same = len(now) == len(self.parameters) and all(map(is_, now, self.parameters))
        return same and self.look(rnn) == self.seen


def parameters_of(rnn: HMLSTM) -> list[Tensor | None]:
    """Layer by layer; None for what a layer has not."""
    found: list[Tensor | None] = []
    for layer in rnn.layers:
        found += layer._parameters.values()
    return found


def detached(weights: Sequence[LayerWeights]) -> list[LayerWeights]:
    return [layer.map(Tensor.detach) for layer in weights]


def is_plain(rnn: HMLSTM) -> bool:
    """Whether its weights are its parameters, and not made from others, as by `nn.utils.parametrize` or a hook."""
    return not any(layer._forward_pre_hooks or layer._forward_hooks for layer in rnn.layers) and all(
        w is layer._parameters.get(name)
        for weights, layer in zip(rnn.weights(), rnn.layers, strict=True)
        for name, w in weights._asdict().items()
    )


def try_step(
    rnn: HMLSTM,
    x: Tensor | Piecewise,
    state: HMLSTMState | None,
    boundaries: Tensor | None,
    slope: float | Tensor | None,
    generator: torch.Generator | None,
) -> tuple[HMLSTMOutput, HMLSTMState] | None:
    """A step without a gradient. None if it has to go the general way, which also tells what is wrong with a call."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    check_tensors(x, boundaries)
    if isinstance(x, Piecewise) and (len(x.values) > MOST_VECTORS or not isinstance(x.values, nn.Parameter)):
        x = x.dense()  # a table is worth while for vectors that come again
    values, index = (x.values, x.index) if isinstance(x, Piecewise) else (None, x)
    if index.dim() != (2 if values is None else 1) or not 0 < index.shape[0] <= MOST_ROWS or not is_simple(index):
        return None
    steps, B = prepared_steps(rnn, values), index.shape[0]
    if steps is None:
        return None
    if values is None:
        if index.dtype != steps.dtype or index.shape[1] != rnn.input_size:
            return None
    elif index.dtype != torch.int64 or not all(0 <= number < len(values) for number in index.tolist()):
        return None
    if state is None:
        state = rnn.initial_state(B)
    elif getattr(state, "_kind", None) != steps.kind or state.z.shape[0] != B:
        rnn._check_state(state, B, any_weight(rnn))
        state = plain_state(state)
    if boundaries is None and rnn.needs_boundaries:
        return None
    if boundaries is not None:
        rnn._check_boundaries(boundaries.unsqueeze(0), 1, B, state.z)
        boundaries = plain("boundaries", boundaries.to(steps.dtype), boundaries.shape, steps.dtype)
    uniforms = rnn._uniforms((B,), generator, state.z.device) if boundaries is None else None
    slope = rnn.slope if slope is None else check_slope(slope)
    x_, symbols = (index, None) if values is None else (None, index)
    with steps.lock:
        return steps.step(x_, symbols, state, boundaries, uniforms, slope)


def prepared_steps(rnn: HMLSTM, values: Tensor | None) -> SingleSteps | None:
    """The steps of a network whose inputs are rows of `values`, if given. None if this engine can't make them."""
    rounds = rnn.wants_bfloat16
    prepared: Prepared | None = rnn.__dict__.get("_prepared")
    if prepared is None or not prepared.fits(rnn, rounds, values):
        fits_input = values is None or values.shape[1:] == (rnn.input_size,)
        if rnn.engine != "native" or not is_plain(rnn) or not fits_input:
            return None
        prepared = rnn.__dict__["_prepared"] = Prepared(rnn, rounds, values)
    return prepared.steps


def plain_state(state: HMLSTMState) -> HMLSTMState:
    """As C++ can read it, of a state whose shapes and dtypes were checked."""
    h, c = (
        tuple(plain(f"state.{name}", t.detach(), t.shape, t.dtype) for t in part)
        for name, part in (("h", state.h), ("c", state.c))
    )
    return HMLSTMState(h, c, plain("state.z", state.z.detach(), state.z.shape, state.z.dtype))


def is_simple(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )
