"""The native engine where it can't be built, and where two build it at once: in processes with caches of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

USE = """
import torch, hmrnn
rnn = hmrnn.HMLSTM(2, [3, 3])
out, _ = rnn(torch.randn(4, 2, 2))
out.h[1].sum().backward()
print(rnn.engine)
print(rnn.engine_reason)
"""


def start(cache: Path, code: str = USE, **environment: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HMRNN_CACHE": str(cache), **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=pipe, stderr=pipe, text=True)


def outcome(process: subprocess.Popen[str]) -> tuple[str, str]:
    stdout, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stderr
    engine, reason = stdout.splitlines()
    assert "Traceback" not in stderr
    if engine != "native":
        said = [line for line in stderr.splitlines() if "native engine is not available" in line]
        assert len(said) == 1, "said once, in one line"
    return engine, reason


def test_without_a_compiler(tmp_path):
    engine, reason = outcome(start(tmp_path, CXX="/nowhere/c++"))
    assert engine == "events"
    assert "no C++ compiler" in reason
    assert "/nowhere/c++" in reason


def test_with_a_compiler_that_fails(tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'c++: fatal error: out of order' >&2\nexit 1\n")
    broken.chmod(0o755)
    engine, reason = outcome(start(tmp_path / "cache", CXX=str(broken)))
    assert engine == "events"
    assert "the build failed" in reason
    assert [path.suffix for path in (tmp_path / "cache" / "native").iterdir()] == [".lock"], (
        "nothing half-built is left"
    )


def test_with_a_cache_that_can_not_be_written(tmp_path):
    (tmp_path / "file").touch()
    engine, reason = outcome(start(tmp_path / "file"))
    assert engine == "events"
    assert "can't be used" in reason
    assert "HMRNN_CACHE" in reason


def test_without_a_home(tmp_path):
    code = "import pathlib\ndef home(): raise RuntimeError('no home')\npathlib.Path.home = home\n" + USE
    engine, reason = outcome(start(tmp_path, code, HMRNN_CACHE=""))
    assert engine == "events"
    assert "no home directory" in reason


def test_on_another_processor(tmp_path):
    code = "import platform; platform.machine = lambda: 'riscv64'\n" + USE
    engine, reason = outcome(start(tmp_path, code))
    assert engine == "events"
    assert "riscv64" in reason


def test_a_spoiled_file_in_the_cache(tmp_path):
    code = (
        "from hmrnn.engines.native import build; build._build = lambda target: target.write_bytes(b'spoiled')\n" + USE
    )
    engine, reason = outcome(start(tmp_path, code))
    assert engine == "events"
    assert "delete it" in reason


def test_two_processes_build_at_once(tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    assert [outcome(process) for process in processes] == [("native", "the fastest on a CPU")] * 2
    built = [path for path in (tmp_path / "native").iterdir() if path.suffix == ".so"]
    assert len(built) == 1
    modified = built[0].stat().st_mtime_ns
    assert outcome(start(tmp_path, CXX=os.environ.get("CXX", "c++")))[0] == "native"
    assert built[0].stat().st_mtime_ns == modified, "the third found it there"


def test_nothing_is_built_on_import(tmp_path):
    process = start(tmp_path, "import hmrnn; hmrnn.HMLSTM(2, [3]); hmrnn.TextModel")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["", "a\nfoo.cpp:1: error: no\nb", "just this"])
def test_the_first_error_of_a_build_is_one_line(output):
    from hmrnn.engines.native.build import _first_error

    assert "\n" not in _first_error(output)
    assert _first_error(output) == {"": "?", "just this": "just this"}.get(output, "foo.cpp:1: error: no")
