"""This process among those that train together: one alone, or those that torchrun started."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Result = TypeVar("Result")


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    world: int = 1
    local: int = 0  # the number of this one among those on its machine

    @property
    def first(self) -> bool:
        """Whether this is the one process that writes."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients that are averaged over all processes."""
        return module if self.world == 1 else DistributedDataParallel(module)

    def sum(self, values: list[float]) -> list[float]:
        """Each value summed over all processes."""
        if self.world == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def of_first(self, value: float) -> float:
        """The first process's value."""
        shared = torch.tensor([value], dtype=torch.float64)
        if self.world > 1:
            dist.broadcast(shared, src=0)
        return float(shared)

    def gather(self, rows: Tensor) -> Tensor:
        """(n, …) of each process -> (world * n, …), in the order of the processes."""
        if self.world == 1:
            return rows
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(self.world)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def own(self, rows: Tensor) -> Tensor:
        """(world * n, …) -> (n, …): this process's part of what `gather` made."""
        return rows.chunk(self.world)[self.rank].clone()

    def first_before_others(self, work: Callable[[], Result]) -> Result:
        """Does the work in the first process and then in the others, which find what it left. If it fails there, the
        others leave without a word."""
        result = None
        try:
            if self.first:
                result = work()
        except BaseException:
            self.of_first(0.0)
            raise
        if self.of_first(1.0) == 0.0:
            sys.exit(1)
        return work() if result is None else result


@contextmanager
def joined() -> Iterator[Processes]:
    """Joins the processes that torchrun started, if it did."""
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield Processes()
        return
    # The others wait while the first one validates. Should it die, torchrun ends them.
    # What lies on a GPU goes by nccl; counts and random states lie on the CPU.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(hours=24))
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0)))
        dist.barrier()
        # Wrapped modules lie in cycles of references, and keep the group's threads alive. Those must end before the
        # interpreter does: a thread that then still has a tensor to give back aborts the process.
        gc.collect()
    finally:
        dist.destroy_process_group()
