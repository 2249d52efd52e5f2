"""Reading what changes: a text that is typed, a line that is drawn. What was read before is not read again.

What a model makes of a symbol depends on nothing but the symbols up to it. So a text is read in blocks, and what came
of a block is remembered under a digest of the text up to its end: whoever sends the text again, with a symbol more, has
that symbol read. The server remembers texts, not users.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

import torch
from torch import Tensor

from hmrnn.baselines.hrnn import LOOKBACK
from hmrnn.domains.strokes.model import StrokeModel
from hmrnn.domains.text.model import TextModel
from hmrnn.mixture import PointDensity
from hmrnn.sequence import HMLSTMState
from hmrnn.structure.operations import Steps, steps_of

BLOCK = 128  # symbols: many for one call of the model, and few enough to wait for
FEW = 8  # so many symbols are read one by one: a call for several packs the weights first, which takes as long
MOST_REMEMBERED = 2048  # blocks, each with a state: some 20 MB for a model of 3 x 256 units, 80 MB for 3 x 1024
SECONDS_REMEMBERED = 600.0


@dataclass(frozen=True)
class Place:
    """How far a model has come."""

    at: int  # symbols or points that were read
    state: HMLSTMState
    past: Tensor  # the last symbols, as far back as given boundaries need them
    expected: Tensor | PointDensity | None  # what comes next: (1, symbols) log-probabilities, or (1, 1) densities


@dataclass(frozen=True)
class Read:
    """A block that was read."""

    steps: Steps
    after: Place


ReadOn: TypeAlias = Callable[[Tensor, Place], Read]


def start(model: TextModel | StrokeModel) -> Place:
    return Place(0, model.rnn.initial_state(1), torch.zeros(0, dtype=torch.int64), None)


@torch.no_grad()
def read_text(model: TextModel, numbers: Tensor, before: Place) -> Read:
    """Reads on: (T,) int64."""
    both = torch.cat([before.past, numbers])
    given = model.boundaries(both.unsqueeze(1), context=len(before.past))
    out, state = model(numbers.unsqueeze(1), before.state, boundaries=given, generator=generator_at(before))
    log_p = out.logits[:, 0].double().log_softmax(-1)
    first = before.expected if isinstance(before.expected, Tensor) else torch.full_like(log_p[:1], math.nan)
    surprisal = -torch.cat([first, log_p[:-1]]).gather(1, numbers.unsqueeze(1))[:, 0] / math.log(2)
    steps = steps_of(model, before.at, numbers, out.rnn, before.state, surprisal, hidden=False)
    # Lists as indices copy: what is remembered must not keep the block's tables alive.
    return Read(steps, Place(before.at + len(numbers), state.select([0]), both[-LOOKBACK:], log_p[[-1]]))


@torch.no_grad()
def read_points(model: StrokeModel, points: Tensor, before: Place) -> Read:
    """Reads on: (T, 3) float32."""
    x = points.unsqueeze(1)
    out, state = model(x, before.state, generator=generator_at(before))
    normalised = model.normalised(x)
    first = torch.full((1, 1), math.nan)
    if isinstance(before.expected, PointDensity):
        first = before.expected.log_prob(normalised[:1])
    surprisal = -torch.cat([first, out.density[:-1].log_prob(normalised[1:])])[:, 0].double()
    steps = steps_of(model, before.at, points, out.rnn, before.state, surprisal, hidden=False)
    return Read(steps, Place(before.at + len(points), state.select([0]), before.past, out.density[[-1]]))


def generator_at(place: Place) -> torch.Generator:
    """For sampled boundaries: the same place draws the same ones."""
    return torch.Generator().manual_seed(place.at)


class Memory:
    """Blocks that were read lately: at most so many, and none that was not asked for in a while."""

    def __init__(
        self,
        most: int = MOST_REMEMBERED,
        seconds: float = SECONDS_REMEMBERED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.seconds, self.clock = most, seconds, clock
        self.blocks: OrderedDict[bytes, tuple[float, Read]] = OrderedDict()  # those that were asked for last, last

    def get(self, digest: bytes) -> Read | None:
        self.forget()
        found = self.blocks.get(digest)
        if found is None:
            return None
        self.put(digest, found[1])
        return found[1]

    def put(self, digest: bytes, read: Read) -> None:
        self.blocks[digest] = self.clock(), read
        self.blocks.move_to_end(digest)
        if len(self.blocks) > self.most:
            self.blocks.popitem(last=False)

    def forget(self) -> None:
        """Drops what is too old."""
        oldest = self.clock() - self.seconds
        while self.blocks and next(iter(self.blocks.values()))[0] < oldest:
            self.blocks.popitem(last=False)


def read_blocks(memory: Memory, key: bytes, inputs: Tensor, place: Place, read_on: ReadOn) -> Iterator[Read]:
    """Reads symbols or points from their start, `place`, on: block by block. `key` tells apart models and settings."""
    digest = key
    for block in inputs.split(BLOCK) if len(inputs) else ():
        read = read_block(memory, digest, block, place, read_on)
        yield read
        digest, place = digest_of(digest, block), read.after


def read_block(memory: Memory, before: bytes, block: Tensor, place: Place, read_on: ReadOn) -> Read:
    """What is remembered of its beginning, and the rest of it read now."""
    parts: list[Read] = []
    known = len(block)
    while known and not parts:
        read = memory.get(digest_of(before, block[:known]))
        if read is None:
            known -= 1
        else:
            parts.append(read)
    rest = block[known:]
    if len(rest) == 0:
        return parts[0]
    for piece in rest.split(1 if len(rest) <= FEW else BLOCK):
        parts.append(read_on(piece, parts[-1].after if parts else place))
    whole = Read(Steps.joined(part.steps for part in parts), parts[-1].after)
    memory.put(digest_of(before, block), whole)
    return whole


def digest_of(before: bytes, block: Tensor) -> bytes:
    return blake2b(before + block.numpy().tobytes(), digest_size=16).digest()
