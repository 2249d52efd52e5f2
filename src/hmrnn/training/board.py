"""What TensorBoard shows of a run."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hmrnn.errors import SettingError
from hmrnn.storage.files import make_folder, named, open_file


class Board:
    """Writes its file itself, line by line: torch's writer does so in a thread, where a full disk ends in a traceback,
    and follows links."""

    def __init__(self, folder: Path, update: int) -> None:
        """What was shown after this update will come again."""
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            raise SettingError(
                "{0} needs the package tensorboard: pip install 'hmrnn[tensorboard]'", "tensorboard"
            ) from None
        self.event, self.summary = Event, Summary
        make_folder(folder)
        started = time.time()
        self.path = folder / f"events.out.tfevents.{started:.6f}.{socket.gethostname()}.{os.getpid()}"
        handle = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.records = RecordWriter(os.fdopen(handle, "wb"))
        try:
            self._write(Event(wall_time=started, file_version="brain.Event:2"))
            self._write(Event(wall_time=started, step=update + 1, session_log=SessionLog(status=SessionLog.START)))
        except OSError:
            with suppress(OSError):
                self.close()
            raise

    def show(self, update: int, **values: Any) -> None:
        numbers: dict[str, float] = {}
        for name, value in values.items():
            several = {f"{name}/{i + 1}": own for i, own in enumerate(value)} if isinstance(value, list) else {}
            numbers |= several if isinstance(value, list) else {name: value}
        shown = [self.summary.Value(tag=name, simple_value=float(number)) for name, number in numbers.items()]
        self._write(self.event(wall_time=time.time(), step=update, summary=self.summary(value=shown)))

    def _write(self, event: Any) -> None:
        with named(self.path):
            self.records.write(event.SerializeToString())
            self.records.flush()

    def close(self) -> None:
        with named(self.path):
            self.records.close()
