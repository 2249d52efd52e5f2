"""A GPU that is not there: tensors with a device and shapes, but without numbers. Who asks for one has waited for it.

Run as a program, since a device can't be taken back: `python tests/support/fake_gpu.py SCENARIO` prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from small_runs import settings
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from hmrnn import HMLSTM, engines
from hmrnn.domains import DOMAINS
from hmrnn.engines.triton import buffers, graphs
from hmrnn.training import loop
from hmrnn.training import run as training_run
from hmrnn.training.checkpoint import SavedRun
from hmrnn.training.distributed import Processes

GPU = "faked"
launches: Counter[str] = Counter()


class Watch(TorchDispatchMode):
    """Counts operations, and refuses to bring anything back from the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        out = func(*args, **(kwargs or {}))
        came = [t.device.type for t in args if isinstance(t, torch.Tensor)]
        if isinstance(out, torch.Tensor) and out.device.type == "cpu" and GPU in came:
            raise RuntimeError(f"{func} brings a tensor back to the CPU")
        return out


@contextmanager
def fake_gpu() -> Iterator[Watch]:
    backend_registration._setup_privateuseone_for_python_backend(GPU)
    fake_tensor._is_privateuse1_backend_available = lambda: False  # so that not even constants are put there

    def launch(kernel, rows, t, tensors, constants):
        assert all(tensor.device.type == GPU and tensor.is_contiguous() for tensor in tensors)
        launches[f"{kernel.__name__} of layer {constants['l']}"] += 1

    buffers.launch = launch
    declared = engines.ENGINES["triton"]
    engines.ENGINES["triton"] = replace(declared, devices=frozenset({GPU}), missing=lambda device, dtype: "")
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        yield watch


def window(rnn: HMLSTM, T: int, **options: object) -> None:
    """Forward and backward of a window whose state was carried from the one before, with padding."""
    x = torch.randn(T, 4, 6, device=GPU, requires_grad=True)
    lengths = torch.full((4,), T - 1, device=GPU)
    _, state = rnn(x, lengths=lengths, **options)
    out, state = rnn(x, state.detach(), lengths=lengths, slope=torch.full((), 1.5, device=GPU), **options)
    (sum(h.sum() for h in out.h) + out.z.sum() + state.c[0].sum()).backward()
    assert all(parameter.grad is not None for parameter in rnn.parameters())


def no_wait() -> dict[str, object]:
    """Everything that may be asked of the engine."""
    with fake_gpu():
        for precision in ("float32", "bfloat16"):
            for boundary in ("step", "sample"):
                options = {"boundary": boundary, "precision": precision, "dropout": 0.5, "weight_drop": 0.5}
                rnn = HMLSTM(6, [5, 4, 3], engine="triton", device=GPU, **options)
                assert rnn.engine == "triton"
                assert rnn.rounds_products == (precision == "bfloat16")
                window(rnn, 5)
                window(rnn, 5, boundaries=torch.ones(5, 4, 2, device=GPU))
    return {"launches": sum(launches.values())}


class FakeGraph:
    """A CUDA graph that records nothing. What is captured is made once for real, and replayed as nothing."""

    def replay(self) -> None:
        launches["replay"] += 1


def no_wait_with_graphs() -> dict[str, object]:
    """The same by CUDA graphs. torch's own code captures and replays them; only what asks a driver is replaced."""

    def nothing(*_: object, **__: object) -> nullcontext[None]:
        return nullcontext()

    def synchronize() -> None:
        launches["synchronize"] += 1  # torch waits around the capture, but must never do so in a replay

    made = {"CUDAGraph": FakeGraph, "graph": nothing, "Stream": nothing, "stream": nothing, "synchronize": synchronize}
    for name, fake in made.items():
        setattr(torch.cuda, name, fake)
    torch.cuda.graphs.graph_pool_handle = nothing
    torch.Tensor.data_ptr = lambda tensor: id(tensor)  # so that inputs are copied to where the graph reads them
    graphs.wanted = lambda device: device.type == GPU
    counts = {}
    with fake_gpu() as watch:
        for precision in ("float32", "bfloat16"):
            rnn = HMLSTM(6, [5, 4, 3], engine="triton", device=GPU, precision=precision, dropout=0.5, weight_drop=0.5)
            window(rnn, 5)
            launches.clear()
            copies = watch.seen["aten.copy_.default"]
            rnn.zero_grad()
            window(rnn, 5)
            counts[precision] = dict(launches)
            assert watch.seen["aten.copy_.default"] - copies > len(list(rnn.parameters()))
    return counts | {"graphs": len(graphs.graphs)}


def launches_of_a_step(engine: str = "triton") -> dict[str, object]:
    """By how much the operations of forward and backward grow with each step."""
    counts = []
    with fake_gpu() as watch:
        for T in (5, 6):
            rnn = HMLSTM(6, [5, 4, 3], engine=engine, device=GPU)
            watch.seen.clear()
            launches.clear()
            x = torch.randn(T, 4, 6, device=GPU, requires_grad=True)
            out, _ = rnn(x)
            sum(h.sum() for h in out.h).backward()
            counts.append(watch.seen + launches)
    return {name: count - counts[0][name] for name, count in counts[1].items() if count != counts[0][name]}


def a_wait_is_noticed() -> dict[str, object]:
    """What the checks did before: so that the others can fail."""
    noticed = []
    with fake_gpu():
        z = torch.zeros(4, 2, device=GPU)
        for name, wait in {"item": lambda: bool((z == 0).all()), "nonzero": lambda: z[z != 0], "cpu": z.cpu}.items():
            try:
                wait()
            except Exception:
                noticed.append(name)
    return {"noticed": noticed}


def auto_names_triton() -> dict[str, object]:
    with fake_gpu():
        rnn = HMLSTM(6, [5, 4], device=GPU)
        return {"engine": rnn.engine, "reason": rnn.engine_reason}


def updates(text: str) -> dict[str, object]:
    """Whole updates of a text model: the loss, guidance, steering, the optimiser."""
    run = settings(Path(text), weight_decay=0.1, guided_updates=100, uncertainty_weight=0.1, dropout=0.3)
    counts = Counter()

    def fetched(device: torch.device, *values: float | torch.Tensor) -> list[float]:
        counts["fetched"] += 1
        return [1.0] * len(values)

    loop.fetched = fetched
    text_domain = DOMAINS[run.kind]
    data = text_domain.load(run, None)
    with fake_gpu():
        build, text_domain.build = text_domain.build, lambda *what: built(build, *what)
        training = training_run.prepare(SavedRun(run, data.fingerprint, None), data, "triton", Processes(), GPU)
        training.task.teacher = Spread()
        for _ in range(3):
            training.make_update(stop=None, checkpoint=False)
            counts["updates"] += 1
        return {"engine": training.task.model.rnn.engine, **counts}


def built(build, *what):
    """Made there, since parameters without numbers can't be moved."""
    with torch.device(GPU):
        model = build(*what)
    model.to = lambda device: model
    return model


class Spread:
    """In place of counts of the text, which are made by numpy."""

    past, delay = 2, 0

    def evidence(self, symbols: np.ndarray) -> np.ndarray:
        return np.zeros((10, 4), dtype=np.float32)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
    os._exit(0)  # the thread that autograd keeps for a device does not end by itself
