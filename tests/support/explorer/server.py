"""An explorer that really listens, and a client that really asks, for tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from websockets.sync.client import ClientConnection, connect

from hmrnn.domains.text.config import IN_EXPLORER
from hmrnn.explorer import listening
from hmrnn.explorer.loading import load
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.server import create_app, server_of

TO_END = 30  # seconds


@contextmanager
def running(runs: Sequence[Path], port: int = 0) -> Iterator[str]:
    """Serves runs: gives host and port."""
    memory = Memory()
    server = server_of(create_app(load(runs, memory, IN_EXPLORER), memory))
    with listening(port) as own:
        # a daemon: a server that does not end must not keep the tests from ending
        thread = threading.Thread(target=server.run, kwargs={"sockets": [own]}, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{own.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(TO_END)
            if thread.is_alive():
                raise RuntimeError(f"the server did not end within {TO_END} seconds")


@contextmanager
def talking(host: str) -> Iterator[Client]:
    with connect(f"ws://{host}/socket", origin=f"http://{host}", max_size=None) as socket:
        yield Client(socket)


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.hello, self.last = socket, json.loads(socket.recv()), 0

    def send(self, **request) -> int:
        self.last += 1
        self.socket.send(json.dumps({"run": 0, "id": self.last, **request}))
        return self.last

    def ask(self, **request) -> tuple[list[dict], dict]:
        """The answers, and the last word."""
        number, answers = self.send(**request), []
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            assert answer["id"] in (number, None), answer
            if {"done", "error", "stopped", "busy"} & answer.keys():
                return answers, answer
            answers.append(answer)


def joined(answers: Sequence[dict]) -> dict:
    """Answers that follow each other, as one."""
    whole: dict = {}
    for answer in answers:
        for name, value in answer.items():
            if not isinstance(value, list) or name == "unknown":
                whole.setdefault(name, value)
            elif value and isinstance(value[0], list):
                before = whole.setdefault(name, [[] for _ in value])
                for column, more in zip(before, value, strict=True):
                    column.extend(more)
            else:
                whole.setdefault(name, []).extend(value)
    return whole


def assert_tells(answer: dict, steps) -> None:
    """The answer is what the tensors say, but for rounding."""
    assert answer["operations"] == steps.operations.T.tolist()
    assert answer["z"] == steps.z.T.int().tolist()
    for name in ("z_tilde", "norms", "surprisal"):
        told = np.array(answer[name], dtype=float)  # None becomes NaN
        np.testing.assert_allclose(told, getattr(steps, name).numpy().T, atol=0.0006, rtol=0, err_msg=name)
