"""A model that reads a text bit by bit, and remembers where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hmrnn.baselines.hrnn import LOOKBACK
from hmrnn.dropout import evaluating
from hmrnn.sequence import HMLSTMState

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel, TextModelOutput

AT_ONCE = 4096  # symbols of a long text that are read in one call: enough to be quick, and little memory


class Reader:
    """Reads on from where it stopped."""

    before: HMLSTMState  # the state before what was read last
    logits: Tensor  # (symbols,): of what comes next

    def __init__(self, model: TextModel, generator: torch.Generator | None = None) -> None:
        """`generator` is for sampled boundaries."""
        self.model = model
        self.generator = generator
        self.state = model.rnn.initial_state(1)
        self._past = torch.zeros(0, dtype=torch.int64)  # as far back as given boundaries need it

    @torch.no_grad()
    def read(self, numbers: Tensor) -> TextModelOutput:
        """(T,): the output is that of a batch of one row."""
        both = torch.cat([self._past, numbers])
        given = self.model.boundaries(both.unsqueeze(1), context=len(self._past))
        symbols = numbers.unsqueeze(1).to(self.model.embedding.weight.device)
        self.before = self.state
        out: TextModelOutput
        with evaluating(self.model):
            out, self.state = self.model(symbols, self.state, boundaries=given, generator=self.generator)
        self._past = both[-LOOKBACK:]
        self.logits = out.logits[-1, 0]
        return out
