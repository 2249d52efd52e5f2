"""Next-symbol prediction as a task to train on: the loss of each window of the text, and validation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmrnn.domains.text.config import TextRunConfig
from hmrnn.domains.text.data.store import TextData, told_left_out
from hmrnn.domains.text.data.streams import Streams
from hmrnn.domains.text.evaluation import score_text
from hmrnn.domains.text.model import TextModel
from hmrnn.errors import SettingError
from hmrnn.guidance.branching import Branching
from hmrnn.guidance.imitation import uncertainties
from hmrnn.guidance.last_three import LastThree
from hmrnn.guidance.steering import MOST_OFTEN
from hmrnn.sequence import HMLSTMState
from hmrnn.storage.pretrained import Pretrained
from hmrnn.training.batches import Epochs
from hmrnn.training.distributed import Processes
from hmrnn.training.task import Loss, Validation

VALIDATION_STREAMS = 64
RENEWAL = 32  # windows: a model should know a text's start, and have a past most of the time


class Objective(nn.Module):
    """The model and its loss in one module: distributed training hooks into its forward pass."""

    def __init__(self, model: TextModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, symbols: Tensor, state: HMLSTMState | None, given: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, HMLSTMState]:
        """symbols: (T + 1, B). The mean loss in nats, how often each detector fired (L-1,), the entropy of what was
        predicted at each step (T, B), and the state after."""
        out, state = self.model(symbols[:-1], state, boundaries=given, generator=generator)
        log_p = out.logits.log_softmax(-1)
        loss = F.nll_loss(log_p.flatten(0, 1), symbols[1:].flatten())
        entropy = -(log_p.detach().exp() * log_p.detach()).sum(-1)
        return loss, out.rnn.z.detach().mean((0, 1)), entropy, state


class TextTask:
    """Contiguous streams, one for each batch row, window by window, with the state carried along within an epoch.

    But each row starts anew once in RENEWAL windows, in turn. Boundaries that make boundaries can lock a network into a
    state in which it predicts nothing right, and one that was trained on a state that goes on and on may do well there,
    and be locked from the start of a text.
    """

    def __init__(
        self,
        model: TextModel,
        data: TextData,
        run: TextRunConfig,
        processes: Processes,
        teacher: Branching | None = None,
    ) -> None:
        """Without a `teacher` detectors learn from the last three symbols, as in runs from before there were any."""
        self.model, self.taught, self.measure = model, teacher, run.data.measure
        # In a text that only repeats, every symbol may be a segment; a detector that always fires decides nothing.
        self.rates: Sequence[float] = [min(rate, MOST_OFTEN) for rate in teacher.rates] if teacher else ()
        self.window = run.training.window
        self.train, self.valid = data.split("train"), data.split("valid")
        self.left_out = told_left_out(data.left_out)
        self.rows = run.training.batch_size
        rows = self.rows * processes.world
        self.epochs = Epochs((len(self.train) - 1) // rows // self.window)
        if self.epochs.first < 1 or len(self.valid) < 2:
            raise SettingError(
                f"{{data}}: too short: {len(self.train):,} symbols to train on and {len(self.valid):,} to validate, "
                f"but {rows} streams of one window of {self.window} steps take {rows * self.window + 1:,}, and "
                "validation 2. Give more text, or a smaller {0} or {1}",
                "batch_size",
                "window",
                data=run.data.data,
            )
        if run.model.model == "hrnn" and (len(run.model.hidden_sizes) > 3 or data.symbols.unit == "token"):
            raise ValueError(
                "a text of characters gives an HRNN boundaries of words and sentences, for 3 layers at most"
            )
        if len(data.symbols) < 2:
            raise ValueError(f"{run.data.data}: all symbols are the same: there is nothing to predict")
        self.random_start, self.seed, self.processes = run.data.random_start, run.training.seed, processes
        self.symbols_per_update = rows * self.window
        self.distinct, self.about_data = len(data.symbols), data.description()
        self.objective = processes.wrap(Objective(model))
        self.state: HMLSTMState | None = None

    def loss(self, update: int, generator: torch.Generator) -> Loss:
        epoch, window = self.epochs.place(update)
        start, end = window * self.window, (window + 1) * self.window
        streams = self.streams(epoch)
        state = None if start == 0 else self.state
        if state is not None:
            state = state.renewed([i for i, row in enumerate(streams.rows) if row % RENEWAL == update % RENEWAL])
        given = self.model.boundaries_of(streams, start, end)
        symbols = streams.read(start, end + 1).to(self.model.embedding.weight.device, non_blocking=True)
        loss, rates, entropy, state = self.objective(symbols, state, given, generator)
        self.state = state.detach()
        return Loss(loss, rates, partial(self.uncertainty, streams, start, end, entropy), self.symbols_per_update)

    def streams(self, epoch: int) -> Streams:
        """What this process reads in an epoch."""
        offset = 0
        if self.random_start and epoch > 0:
            offset = int(np.random.default_rng([self.seed, epoch]).integers(len(self.train)))
        return Streams.to_train(self.train, self.rows, self.processes.rank, self.processes.world, offset)

    @cached_property
    def teacher(self) -> Branching | LastThree:
        return self.taught or LastThree(self.train, self.distinct)

    def uncertainty(self, streams: Streams, start: int, end: int, entropy: Tensor) -> Tensor:
        """(T, B, 2): by what the teacher knows of the symbols nearby, and by all that the model knows of the past."""
        # A stream's past is the end of the one before it; that of the text's start is the text's end.
        past = streams.symbols(start - self.teacher.past, end)
        return uncertainties(self.teacher, past, entropy)

    @torch.no_grad()
    def read(self, model: Pretrained, window: int, state: HMLSTMState | None) -> HMLSTMState:
        assert isinstance(model, TextModel)
        start = window % self.epochs.first * self.window
        streams, end = self.streams(0), start + self.window
        given = model.boundaries_of(streams, start, end)
        symbols = streams.read(start, end).to(model.embedding.weight.device, non_blocking=True)
        _, state = model(symbols, None if start == 0 else state, boundaries=given)
        return state

    def validate(self, model: Pretrained, show: bool) -> Validation:
        """Read as many streams."""
        assert isinstance(model, TextModel)
        streams = min(VALIDATION_STREAMS, max(1, len(self.valid) // 500))
        return Validation(*score_text(model, self.valid, streams, show=show))

    def forget(self) -> None:
        """Starts the streams' next window without a past."""
        self.state = None

    def description(self) -> str:
        taught = f"\n{self.taught.description()}" if self.taught else ""
        return self.left_out + (
            f"{self.about_data}; {len(self.train):,} to train on, {len(self.valid):,} to validate; "
            f"{self.symbols_per_update:,} in each update{taught}"
        )
