"""Reading what changes: a text that is typed, a line that is drawn. What was read before is not read again.

What a model makes of a symbol depends on nothing but the symbols up to it. So a text is read in blocks, and what came
of a block is remembered under a digest of the text up to its end: whoever sends the text again, with a symbol more, has
that symbol read. The server remembers texts, not users.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from torch import Tensor

from hmrnn.structure.operations import Steps
from hmrnn.structure.reading import Place, Read

BLOCK = 128  # symbols: many for one call of the model, and few enough to wait for
FEW = 8  # so many symbols are read one by one: a call for several packs the weights first, which takes as long
MOST_REMEMBERED = 2048  # blocks, each with a state: some 20 MB for a model of 3 x 256 units, 80 MB for 3 x 1024
SECONDS_REMEMBERED = 600.0


@dataclass(frozen=True)
class Block:
    """A stretch that was read, without what it was computed from."""

    steps: Steps
    after: Place

    @staticmethod
    def of(read: Read) -> Block:
        return Block(read.steps(), read.after)


ReadOn: TypeAlias = Callable[[Tensor, Place], Read]


class Memory:
    """Blocks that were read lately: at most so many, and none that was not asked for in a while."""

    def __init__(
        self,
        most: int = MOST_REMEMBERED,
        seconds: float = SECONDS_REMEMBERED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.seconds, self.clock = most, seconds, clock
        self.blocks: OrderedDict[bytes, tuple[float, Block]] = OrderedDict()  # those that were asked for last, last

    def get(self, digest: bytes) -> Block | None:
        self.forget()
        found = self.blocks.get(digest)
        if found is None:
            return None
        self.put(digest, found[1])
        return found[1]

    def put(self, digest: bytes, read: Block) -> None:
        self.blocks[digest] = self.clock(), read
        self.blocks.move_to_end(digest)
        if len(self.blocks) > self.most:
            self.blocks.popitem(last=False)

    def forget(self) -> None:
        """Drops what is too old."""
        oldest = self.clock() - self.seconds
        while self.blocks and next(iter(self.blocks.values()))[0] < oldest:
            self.blocks.popitem(last=False)


def read_blocks(memory: Memory, key: bytes, inputs: Tensor, place: Place, read_on: ReadOn) -> Iterator[Block]:
    """Reads symbols or points from their start, `place`, on: block by block. `key` tells apart models and settings."""
    digest = key
    for block in inputs.split(BLOCK) if len(inputs) else ():
        read = read_block(memory, digest, block, place, read_on)
        yield read
        digest, place = digest_of(digest, block), read.after


def read_block(memory: Memory, before: bytes, block: Tensor, place: Place, read_on: ReadOn) -> Block:
    """What is remembered of its beginning, and the rest of it read now."""
    parts: list[Block] = []
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
        parts.append(Block.of(read_on(piece, parts[-1].after if parts else place)))
    whole = Block(Steps.joined(part.steps for part in parts), parts[-1].after)
    memory.put(digest_of(before, block), whole)
    return whole


def digest_of(before: bytes, block: Tensor) -> bytes:
    return blake2b(before + block.numpy().tobytes(), digest_size=16).digest()
