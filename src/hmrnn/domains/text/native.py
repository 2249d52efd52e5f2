"""A text model inside the native library: one call reads a symbol and predicts the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hmrnn.devices import any_weight
from hmrnn.engines.native.library import address, check, plain, pointers
from hmrnn.engines.native.streams import Handle, Table, detached, plain_state
from hmrnn.hmlstm import HMLSTM
from hmrnn.sequence import HMLSTMState

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel


class TextStream:
    """A text model that reads on symbol by symbol, with its state inside the library. One batch row, float32.

    The model's weights must not change as long as it reads.
    """

    @staticmethod
    def of(model: TextModel, state: HMLSTMState, generator: torch.Generator | None) -> TextStream | None:
        """None if this model has to be called step by step."""
        suits = model.config.model == "hm-lstm" and model.rnn.engine == "native" and state.z.dtype == torch.float32
        return TextStream(model, state, generator) if suits else None

    def __init__(self, model: TextModel, state: HMLSTMState, generator: torch.Generator | None = None) -> None:
        rnn = model.rnn
        assert isinstance(rnn, HMLSTM)
        weights = detached(rnn.weights())
        like = any_weight(rnn).dtype
        table = Table(model.embedding.weight.detach(), weights[0])
        size, symbols = model.config.output_size, len(model.symbols)
        gates = [
            plain("gates", weight_of(g), (rnn.num_layers, h), like)
            for g, h in zip(model.output.gates, rnn.hidden_sizes, strict=True)
        ]
        embeddings = [
            plain("embeddings", weight_of(e), (size, h), like)
            for e, h in zip(model.output.embeddings, rnn.hidden_sizes, strict=True)
        ]
        head = plain("head", model.head.weight.detach(), (symbols, size), like)
        bias = plain("head", model.head.bias.detach(), (symbols,), like)
        self.handle = Handle(
            rnn,
            weights,
            rnn.rounds_products,
            table,
            output_size=size,
            symbols=symbols,
            gates=pointers(gates),
            embeddings=pointers(embeddings),
            head=head.data_ptr(),
            head_bias=bias.data_ptr(),
            _kept=(gates, embeddings, head, bias),
        )
        self.slope, self.samples, self.generator = rnn.slope, rnn.boundary == "sample", generator
        self.rnn, self.sizes, self.symbols = rnn, rnn.hidden_sizes, symbols
        self.logits = torch.empty(symbols, device="cpu")
        self.z = torch.empty(rnn.num_layers - 1, device="cpu")
        self.set(state)

    def set(self, state: HMLSTMState) -> None:
        self.rnn._check_state(state, 1, self.z)
        plain = plain_state(state)
        h, c, z = pointers(plain.h), pointers(plain.c), plain.z.data_ptr()
        check(self.handle.library.hmrnn_stream_set(self.handle.stream, h, c, z))

    @property
    def state(self) -> HMLSTMState:
        h, c = ([torch.empty(1, size, device="cpu") for size in self.sizes] for _ in range(2))
        z = torch.empty(1, len(self.sizes) - 1, device="cpu")
        check(self.handle.library.hmrnn_stream_get(self.handle.stream, pointers(h), pointers(c), z.data_ptr()))
        return HMLSTMState(tuple(h), tuple(c), z)

    def read(self, symbol: int) -> tuple[bool, ...]:
        """Reads a symbol: the boundaries that it made. `logits` are those of the next."""
        if not 0 <= symbol < self.symbols:
            raise IndexError(f"a symbol's number must lie between 0 and {self.symbols - 1}; got {symbol}")
        uniforms = torch.rand(len(self.z), generator=self.generator, device="cpu") if self.samples else None
        handle = self.handle
        check(
            handle.library.hmrnn_stream_next(
                handle.stream,
                symbol,
                self.slope,
                torch.get_num_threads(),
                address(uniforms),
                self.logits.data_ptr(),
                self.z.data_ptr(),
            )
        )
        return tuple(z > 0.5 for z in self.z.tolist())


def weight_of(linear: nn.Module) -> Tensor:
    assert isinstance(linear, nn.Linear)
    return linear.weight.detach()
