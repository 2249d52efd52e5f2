"""Many users of the explorer at once, on loopback: how long does one wait for what one typed?

    python benchmarks/explorer_load.py

A server in a process of its own, with an untrained model of 3 x 256 units, and clients with a WebSocket each. A client
pastes the beginning of a text of 200 symbols that nobody has sent before, types the rest of it, five to eight symbols a
second, and takes the next. A time is that from sending a text to the last word of the answer. Prints a table, and last
one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import string
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from websockets.asyncio.client import connect

from hmrnn import Symbols, TextModel, TextModelConfig
from hmrnn.domains.text.config import IN_EXPLORER
from hmrnn.explorer import listening
from hmrnn.explorer.loading import load
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.server import create_app, server_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LETTERS = string.ascii_lowercase + " .,"
LONGEST = 200  # symbols of a text
PAUSES = (1 / 8, 1 / 5)  # seconds between two keys
BAR = 300.0  # milliseconds


@dataclass
class Waited:
    """Of all clients."""

    typed: list[float] = field(default_factory=list)  # milliseconds for a symbol more
    pasted: list[float] = field(default_factory=list)  # … for up to 200 new ones
    errors: list[str] = field(default_factory=list)
    busy: int = 0


def run_server(folder: str, told: Connection) -> None:
    memory = Memory()
    app = create_app(load([Path(folder)], memory, IN_EXPLORER), memory)
    with listening(0) as own:
        told.send(own.getsockname()[1])
        server_of(app).run(sockets=[own])


@contextmanager
def serving(hidden: int) -> Iterator[int]:
    """A server's port."""
    torch.manual_seed(0)
    # This bias makes boundaries about as frequent as trained models have them.
    config = TextModelConfig(hidden_sizes=(hidden,) * 3, output_size=hidden, boundary_bias=-0.1)
    with tempfile.TemporaryDirectory() as folder:
        TextModel(Symbols.of(LETTERS), config).save_pretrained(folder)
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=run_server, args=(folder, there), daemon=True)
        process.start()
        try:
            yield here.recv()
        finally:
            process.terminate()
            process.join()


async def type_on(host: str, until: float, seed: int, waited: Waited) -> None:
    """One user."""
    choice = random.Random(seed)
    await asyncio.sleep(choice.uniform(0, 3))  # they do not all come at once
    try:
        async with connect(f"ws://{host}/socket", origin=f"http://{host}", max_size=None) as socket:
            await socket.recv()
            while time.monotonic() < until:
                text, n = "".join(choice.choices(LETTERS, k=LONGEST)), choice.randint(1, LONGEST)
                waited.pasted.append(await ask(socket, text[:n], 0, waited))
                while n < LONGEST and time.monotonic() < until:
                    await asyncio.sleep(choice.uniform(*PAUSES))
                    n += 1
                    waited.typed.append(await ask(socket, text[:n], n - 1, waited))
    except Exception as error:
        waited.errors.append(repr(error))


async def ask(socket, text: str, have: int, waited: Waited) -> float:
    start, last = time.perf_counter(), {}
    await socket.send(json.dumps({"id": 0, "run": 0, "kind": "read", "text": text, "have": have}))
    while not last.keys() & {"done", "error", "busy"}:
        last = json.loads(await socket.recv())
    if "error" in last:
        waited.errors.append(last["error"])
    waited.busy += "busy" in last
    return 1000 * (time.perf_counter() - start)


async def load_with(host: str, clients: int, seconds: float) -> Waited:
    waited, until = Waited(), time.monotonic() + seconds
    await asyncio.gather(*(type_on(host, until, seed, waited) for seed in range(clients)))
    return waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--hidden", type=int, default=256)
    asked = parser.parse_args()
    with serving(asked.hidden) as port:
        waited = asyncio.run(load_with(f"127.0.0.1:{port}", asked.clients, asked.seconds))
    answer: dict[str, object] = {**vars(asked), "errors": len(waited.errors), "busy": waited.busy}
    print(f"{'':24}{'requests':>10}{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}")
    for name, times in (("a symbol typed", waited.typed), ("1 to 200 pasted", waited.pasted)):
        p50, p95, p99 = np.percentile(times, [50, 95, 99]) if times else [float("nan")] * 3
        print(f"{name:24}{len(times):>10,}{p50:>10.1f}{p95:>10.1f}{p99:>10.1f}")
        answer[name] = {"requests": len(times), "p50": p50, "p95": p95, "p99": p99}
    worst = float(np.percentile([*waited.typed, *waited.pasted], 95))
    print(
        f"{len(waited.errors)} errors, {waited.busy} times busy{''.join(f'; {error}' for error in set(waited.errors))}"
    )
    print(f"95 % of all are answered within {worst:.0f} ms; the bar is {BAR:.0f} ms")
    print(json.dumps({**answer, "p95": worst, "kept": worst < BAR and not waited.errors}))


if __name__ == "__main__":
    main()
