"""The event-driven engine in C++: a library that knows no torch, called through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hmrnn.engines import event_driven
from hmrnn.engines.event_driven import (
    Gradients,
    InputGradients,
    Inputs,
    Result,
)
from hmrnn.engines.native import library as c
from hmrnn.engines.native.build import Unavailable
from hmrnn.engines.native.library import (
    address,
    bfloat16_kernel,
    library,
    multiplies_bfloat16_fast,
    plain,
    plain_weights,
    pointers,
)
from hmrnn.engines.types import Engine, Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call

__all__ = ["Clock", "Unavailable", "bfloat16_kernel", "library", "multiplies_bfloat16_fast", "run"]


class Clock:
    """Seconds that this engine has taken so far, and those of them that its matrix products took."""

    total = 0.0
    products = 0.0

    @classmethod
    def add(cls, seconds: Any) -> None:
        cls.total += seconds[0]
        cls.products += seconds[1]


def run(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    return event_driven.run(NativeKernel(), weights, call, rules, tables=True)


class Saved:
    """What the backward pass needs: the library's tables, freed with this object, and the tensors they point into."""

    def __init__(self, tables: int, inputs: Inputs, weights: list[LayerWeights], kept: Any) -> None:
        self.tables, self.inputs, self.weights, self.kept = tables, inputs, weights, kept

    def __del__(self) -> None:
        library().hmrnn_free(self.tables)


class Readable:
    """A call as the library reads it: checked, in one piece each, and kept as long as something points there."""

    def __init__(self, weights: list[LayerWeights], inputs: Inputs, call: Call, rules: Rules) -> None:
        T, B, self.input_size = call.shape
        L, start, dtype = len(weights), call.state, call.state.z.dtype
        if B * (T + 1) >= 2**29:
            raise ValueError(f"{T} time steps times {B} batch rows are too many for one call")
        self.sizes = sizes = [part.shape[1] for part in start.h]  # which were checked against the network

        def rows(name: str, parts: Sequence[Tensor]) -> list[Tensor]:
            """(B, H_l) of each layer, the lowest first."""
            return [plain(f"{name}[{l}]", part, (B, sizes[l]), dtype) for l, part in enumerate(parts)]

        self.weights = [
            plain_weights(layer, sizes, l, self.input_size, dtype, table=l == 0 and inputs.x is None)
            for l, layer in enumerate(weights)
        ]
        self.inputs = plain_inputs(inputs, self.input_size, sizes[0], dtype)
        self.h, self.c, self.masks = rows("state.h", start.h), rows("state.c", start.c), rows("masks", rules.masks)
        self.z = plain("state.z", start.z, (B, L - 1), dtype)
        self.lengths = None if call.valid is None else call.valid.sum(0)
        self.given = None if call.given is None else plain("boundaries", call.given, (T, B, L - 1), dtype)
        self.uniforms = plain_uniforms(rules, (T, B, L - 1)) if self.given is None else None

    def asked(self, call: Call, rules: Rules, training: bool) -> c.Call:
        T, B, _ = call.shape
        L, table = len(self.sizes), self.inputs.table
        return c.Call(
            precision=c.precision_of(self.z.dtype, rules.bfloat16),
            threads=torch.get_num_threads(),
            hold=rules.hold,
            training=training,
            steps=T,
            rows=B,
            layers=L,
            input_size=self.input_size,
            slope=float(call.slope),
            hidden=(ctypes.c_int64 * L)(*self.sizes),
            weights=c.weights_array(self.weights),
            x=address(self.inputs.x),
            symbols=address(self.inputs.symbols),
            table=address(table),
            table_z=address(self.inputs.table_z),
            table_size=0 if table is None else len(table),
            h=pointers(self.h),
            c=pointers(self.c),
            z=address(self.z),
            lengths=address(self.lengths),
            given=address(self.given),
            uniforms=address(self.uniforms),
            masks=pointers(self.masks) if self.masks else None,
        )


class NativeKernel:
    def forward(self, weights: list[LayerWeights], inputs: Inputs, call: Call, rules: Rules, training: bool) -> Result:
        (T, B, _), L = call.shape, len(weights)
        read = Readable(weights, inputs, call, rules)
        new = partial(torch.empty, dtype=read.z.dtype, device="cpu")
        N = B * (T + 1)
        values = [new(N, size) for size in read.sizes]
        tangents = [new(N, size) if l and training else None for l, size in enumerate(read.sizes)]
        index = [torch.empty(T, B, dtype=torch.int64, device="cpu") for _ in read.sizes]
        c_last = [new(B, size) for size in read.sizes]
        z_out, z_last = new(T, B, L - 1), new(B, L - 1)
        counts = (ctypes.c_int64 * L)()
        out = c.Forward(
            values=pointers(values),
            tangents=pointers(tangents),
            index=pointers(index),
            c_last=pointers(c_last),
            z=address(z_out),
            z_last=address(z_last),
            counts=counts,
        )
        tables = ctypes.c_void_p()
        c.check(library().hmrnn_forward(read.asked(call, rules, training), out, tables))
        Clock.add(out.seconds)
        kept = (values, tangents, read.given, read.uniforms, read.masks)
        return Result(
            values=[table[:count] for table, count in zip(values, counts, strict=True)],
            tangents=[None if t is None else t[:count] for t, count in zip(tangents, counts, strict=True)],
            index=index,
            z=z_out,
            c_last=c_last,
            z_last=z_last,
            saved=Saved(tables.value, read.inputs, read.weights, kept) if tables.value else None,
        )

    def backward(self, saved: Saved, gradients: Gradients, want_x: bool) -> InputGradients:
        g, inputs, weights = gradients, saved.inputs, saved.weights
        values, repeats, c_last = (
            [None if t is None else plain_gradient(t) for t in part] for part in (g.values, g.repeats, g.c_last)
        )
        z, z_last = plain_gradient(g.z), plain_gradient(g.z_last)
        d_x = None if inputs.x is None or not want_x else torch.empty_like(inputs.x)
        d_table, d_table_z = (None if t is None else torch.empty_like(t) for t in (inputs.table, inputs.table_z))
        d_h, d_c = ([torch.empty_like(part) for part in g.c_last] for _ in range(2))
        d_z = torch.empty_like(z_last)
        d_weights = [layer.map(torch.empty_like) for layer in weights]
        arrays = c.weights_array(d_weights)
        asked = c.Backward(
            values=pointers(values),
            repeats=pointers(repeats),
            z=address(z),
            c_last=pointers(c_last),
            z_last=address(z_last),
            d_x=address(d_x),
            d_table=address(d_table),
            d_table_z=address(d_table_z),
            d_h=pointers(d_h),
            d_c=pointers(d_c),
            d_z=address(d_z),
            d_weights=arrays,
        )
        c.check(library().hmrnn_backward(saved.tables, asked))
        Clock.add(asked.seconds)
        return InputGradients(d_x, d_table, d_table_z, d_h, d_c, d_z, d_weights)


def plain_gradient(tensor: Tensor) -> Tensor:
    """As C++ can read it. Autograd has checked that it is like the output that it belongs to."""
    return plain("a gradient", tensor, tensor.shape, tensor.dtype)


def plain_uniforms(rules: Rules, shape: tuple[int, ...]) -> Tensor | None:
    """By which the library tells the two kinds of boundaries that it computes: it samples where there are some."""
    if rules.boundary == "step":
        return None
    if rules.boundary != "sample" or rules.uniforms is None:
        raise ValueError(f"boundary={rules.boundary!r} without random numbers is not what this engine computes")
    return plain("uniforms", rules.uniforms, shape, torch.float32)


def plain_inputs(inputs: Inputs, input_size: int, units: int, dtype: torch.dtype) -> Inputs:
    if inputs.x is not None:
        return Inputs(plain("x", inputs.x, (*inputs.shape, input_size), dtype))
    assert inputs.table is not None
    assert inputs.symbols is not None
    size = len(inputs.table)
    low, high = (int(bound) for bound in inputs.symbols.aminmax())
    if low < 0 or high >= size:
        raise IndexError(f"x.index must lie between 0 and {size - 1}; got {low if low < 0 else high}")
    table = plain("the table of inputs", inputs.table, (size, 4 * units), dtype)
    table_z = None if inputs.table_z is None else plain("the table's detector", inputs.table_z, (size,), dtype)
    return Inputs(None, table, table_z, plain("x.index", inputs.symbols, inputs.shape, torch.int64))


def missing(device: torch.device, dtype: torch.dtype) -> str:
    try:
        library()
    except Unavailable as error:
        return f"the native engine is not available: {error}"
    return ""


ENGINE = Engine(
    "native",
    run,
    boundaries=frozenset({"step", "sample"}),
    devices=frozenset({"cpu"}),
    dtypes=frozenset({torch.float32, torch.float64}),
    bfloat16=True,
    fastest="the fastest on a CPU",
    missing=missing,
)
