"""The stacked LSTM, with or without layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from hmrnn.config import Precision
from hmrnn.dropout import drop
from hmrnn.errors import check_share
from hmrnn.hmlstm import HMLSTM
from hmrnn.recurrent import (
    Call,
    Recurrent,
    Unrolled,
    refuse_boundaries,
)
from hmrnn.sequence import HMLSTMOutput, HMLSTMState


class LSTM(Recurrent):
    """A stacked LSTM. Every layer UPDATEs at every step; there are no boundaries (z has no columns).

    An HM-LSTM of one layer has no detector and always UPDATEs: it is an LSTM, and this is a stack of them.
    Without layer normalisation it computes what `torch.nn.LSTM` does.
    `dropout` and `weight_drop` are as in `HMLSTM`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: int | Sequence[int],
        num_layers: int | None = None,
        *,
        layer_norm: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        weight_drop: float = 0.0,
        precision: Precision = "auto",
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_sizes, num_layers, slope=1.0, batch_first=batch_first)
        check_share("dropout", dropout)
        self.dropout = dropout
        sizes = [input_size, *self.hidden_sizes]
        self.layers = nn.ModuleList(
            HMLSTM(
                below,
                [size],
                layer_norm=layer_norm,
                weight_drop=weight_drop,
                precision=precision,
                engine=engine,
                device=device,
                dtype=dtype,
            )
            for below, size in pairwise(sizes)
        )

    @property
    def engine(self) -> str:
        return str(self.layers[0].engine)

    @property
    def engine_reason(self) -> str:
        return str(self.layers[0].engine_reason)

    @property
    def rounds_products(self) -> bool:
        return bool(self.layers[0].rounds_products)

    @property
    def state_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        return self.hidden_sizes, self.hidden_sizes, 0

    def unroll(self, call: Call) -> Unrolled:
        refuse_boundaries(call, "an LSTM")
        outputs: list[HMLSTMOutput] = []
        states: list[HMLSTMState] = []
        for layer, h, c in zip(self.layers, call.state.h, call.state.c, strict=True):
            assert isinstance(layer, HMLSTM)
            x = drop(outputs[-1].h[0], self.dropout if self.training else 0.0, call.generator) if outputs else call.x
            output, state = layer.unroll(replace(call, x=x, state=HMLSTMState((h,), (c,), call.state.z)))
            outputs.append(output)
            states.append(state)
        return Unrolled(
            HMLSTMOutput(
                steps=tuple(output.steps[0] for output in outputs),
                z=outputs[0].z,
                operations=torch.cat([output.operations for output in outputs], dim=-1),
            ),
            HMLSTMState(tuple(state.h[0] for state in states), tuple(state.c[0] for state in states), call.state.z),
        )
