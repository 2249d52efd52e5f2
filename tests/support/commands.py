"""`hmrnn` as a user calls it: in a process of its own, or quicker in this one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmrnn.cli import main


def run_process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hmrnn", *arguments], capture_output=True, text=True, check=False, timeout=300, **options
    )


def run(*arguments: str, cwd: Path | None = None, input: str | bytes = "") -> subprocess.CompletedProcess[str]:
    """The same in this process, which has torch already: what is printed, and the exit status."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for name in ("stdout", "stderr")}
    code, folder = 0, os.getcwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hmrnn", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input if isinstance(input, bytes) else input.encode())))
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        os.chdir(cwd or folder)
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
        finally:
            os.chdir(folder)
    out, err = (stream.buffer.getvalue().decode() for stream in streams.values() if stream.flush() is None)
    return subprocess.CompletedProcess(arguments, code, out, err)


def printed(program: str, *arguments: str) -> list[dict[str, object]]:
    """What a program of this folder prints, a line of JSON each. Triton compiles there: it does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).parent / program), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
