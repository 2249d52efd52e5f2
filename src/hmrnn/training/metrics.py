"""What a run tells while it goes on: a progress bar, metrics.jsonl, TensorBoard, warnings."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tqdm import tqdm

from hmrnn.printable import printable
from hmrnn.storage.files import appending, finite, named
from hmrnn.training.board import Board


class Reporter:
    """Where a run's news goes. Only the first process has any."""

    def __init__(self, directory: Path, active: bool, tensorboard: bool, update: int, done: float) -> None:
        """`update` and `done` tell where the run starts from: how many updates, and which share of all."""
        self.active = active
        self.board: Board | None = None
        self.metrics: IO[str] | None = None
        self.path = directory / "metrics.jsonl"
        with ExitStack() as opened:
            if active:
                self.metrics = appending(self.path)
                opened.callback(self._close_metrics)
            if active and tensorboard:
                self.board = Board(directory / "tensorboard", update)
                opened.callback(self.board.close)
            self.opened = opened.pop_all()
        self.done = min(done, 1.0)
        self.bar: tqdm[Any] = tqdm(
            total=1.0,
            initial=self.done,
            bar_format="{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}",
            dynamic_ncols=True,  # the bar takes the room that the text leaves
            disable=not (active and sys.stderr.isatty()),
        )

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bar.close()
        self.opened.close()

    def _close_metrics(self) -> None:
        assert self.metrics is not None
        with named(self.path):  # a full disk refuses once more what could not be written before
            self.metrics.close()

    def say(self, line: str) -> None:
        """A line for the user."""
        if self.active:
            tqdm.write(printable(line, kept="\n"), file=sys.stderr)

    def progress(self, done: float, text: str) -> None:
        """`done` is the share of the run that is behind us."""
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(max(0.0, min(done, 1.0) - self.done))
        self.done = max(self.done, min(done, 1.0))

    def record(self, **values: Any) -> None:
        """A line of metrics.jsonl, on disk at once; a number that is not finite is null."""
        if self.metrics is None:
            return
        with named(self.path):
            self.metrics.write(json.dumps(finite(values)) + "\n")
            self.metrics.flush()
        if self.board is not None:
            self.board.show(**values)
