"""The clockwork RNN of Koutník et al. (2014) with layer normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hmrnn.equations import layer_norm
from hmrnn.recurrent import (
    Call,
    Recurrent,
    Unrolled,
    refuse_boundaries,
)
from hmrnn.sequence import (
    COPY,
    UPDATE,
    HMLSTMOutput,
    HMLSTMState,
    Piecewise,
)


class ClockworkRNN(Recurrent):
    """A recurrent layer of modules with clocks of their own. `hidden_sizes` are their units, the fastest first.

        h[t,i] = tanh(LN(W_i x[t] + U_i [h[t-1,i]; ..; h[t-1,L]]) * gain_i + b_i)     if t mod 2^(i-1) = 0
                 h[t-1,i]                                                             otherwise

    All modules read the input; a module also reads itself and the slower ones. They UPDATE or COPY by the clock. The
    state stores it as a binary number in z: bit i, the lowest first, in column i. In the output, z of module i is 1
    where module i+1 UPDATEs.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: int | Sequence[int],
        num_layers: int | None = None,
        *,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_sizes, num_layers, slope=1.0, batch_first=batch_first)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        sizes = self.hidden_sizes
        self.W = parameter(sum(sizes), input_size)
        self.U = nn.ParameterList(parameter(size, sum(sizes[i:])) for i, size in enumerate(sizes))
        self.b = nn.ParameterList(parameter(size) for size in sizes)
        self.gain = nn.ParameterList(parameter(size) for size in sizes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Matrices uniform within 1/sqrt(units), gains one, biases zero."""
        scale = 1 / math.sqrt(sum(self.hidden_sizes))
        for matrix in [self.W, *self.U]:
            nn.init.uniform_(matrix, -scale, scale)
        for gain, b in zip(self.gain, self.b, strict=True):
            nn.init.ones_(gain)
            nn.init.zeros_(b)

    @property
    def state_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        return self.hidden_sizes, (), self.num_layers - 1

    def unroll(self, call: Call) -> Unrolled:
        refuse_boundaries(call, "a clockwork RNN")
        x = call.dense_x()
        T, B, _ = x.shape
        valid = x.new_ones(T, B, dtype=torch.bool) if call.valid is None else call.valid
        elapsed = valid.cumsum(0)
        start = from_bits(call.state.z)
        periods = 2 ** torch.arange(self.num_layers, device=x.device)
        ticks = ((start + elapsed - 1).unsqueeze(-1) % periods == 0) & valid.unsqueeze(-1)  # (T, B, L)

        inputs = (x @ self.W.T).split(self.hidden_sizes, dim=-1)
        h = list(call.state.h)
        hs: list[list[Tensor]] = [[] for _ in h]
        for t in range(T):
            before = torch.cat(h, dim=-1)
            for i in range(self.num_layers):
                slower = before[:, sum(self.hidden_sizes[:i]) :]
                s = layer_norm(inputs[i][t] + slower @ self.U[i].T, self.gain[i], self.b[i])
                h[i] = torch.where(ticks[t, :, i : i + 1], s.tanh(), h[i])
                hs[i].append(h[i])

        output = HMLSTMOutput(
            steps=tuple(Piecewise.from_dense(torch.stack(column)) for column in hs),
            z=ticks[..., 1:].to(x.dtype),
            operations=torch.where(ticks, UPDATE, COPY).to(torch.int8),
        )
        return Unrolled(output, HMLSTMState(tuple(h), (), to_bits(start + elapsed[-1], call.state.z)))


def from_bits(bits: Tensor) -> Tensor:
    """(B, n) of 0 and 1, the lowest first -> (B,) int64"""
    return (bits.long() << torch.arange(bits.shape[1], device=bits.device)).sum(-1)


def to_bits(numbers: Tensor, like: Tensor) -> Tensor:
    """(B,) int64 -> (B, n), in the shape and dtype of `like`; higher bits are dropped"""
    places = torch.arange(like.shape[1], device=like.device)
    return ((numbers.unsqueeze(-1) >> places) & 1).to(like.dtype)
