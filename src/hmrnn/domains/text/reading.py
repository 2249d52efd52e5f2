"""A text model that reads on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hmrnn.baselines.hrnn import LOOKBACK
from hmrnn.dropout import evaluating
from hmrnn.structure.reading import Place, Read

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel

PIECE = 4096  # symbols of a long text that are read in one call: enough to be quick, and little memory
START = ("\n", " ")  # what an empty text is taken to follow: the first of these that the model knows


@torch.no_grad()
def read_on(model: TextModel, numbers: Tensor, before: Place, generator: torch.Generator | None = None) -> Read:
    """(T,) int64. `generator` is for sampled boundaries. What is expected next are logits, (1, symbols)."""
    both, device = torch.cat([before.past, numbers]), model.embedding.weight.device
    given = model.boundaries(both.unsqueeze(1), context=len(before.past))
    generator = generator or before.generator(device)
    with evaluating(model):
        out, state = model(numbers.unsqueeze(1).to(device), before.state, boundaries=given, generator=generator)
    logits = out.logits[:, 0]

    def surprisal() -> Tensor:
        """In bits."""
        first = torch.full_like(logits[:1], math.nan) if before.expected is None else before.expected
        log_p = torch.cat([first, logits[:-1]]).double().log_softmax(-1).cpu()
        return -log_p.gather(1, numbers.unsqueeze(1))[:, 0] / math.log(2)

    # Lists as indices copy: who remembers a place does not keep the tables of what was read before it.
    after = Place(before.at + len(numbers), state.select([0]), both[-LOOKBACK:], logits[[-1]])
    return Read(model, numbers, before, out.rnn, after, surprisal)


def unseen(model: TextModel) -> Place:
    """Where a text begins of which nothing is there yet."""
    known = model.symbols.table
    numbers = model.symbols.encode(next((symbol for symbol in START if symbol in known), known[0]))
    after = read_on(model, numbers, Place.start(model)).after
    return Place(0, after.state, after.past, after.expected)
