"""How the native library is found and built, in processes with caches of their own; mostly with a stand-in compiler."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import run_process

from hmrnn.engines.native import build

USE = """
import torch, hmrnn
rnn = hmrnn.HMLSTM(2, [3, 3])
out, _ = rnn(torch.randn(4, 2, 2))
out.h[1].sum().backward()
print(rnn.engine)
print(rnn.engine_reason)
"""

# By its path, as a wheel's build does it: without torch.
FIND = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("build", {build.__file__!r})
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
print(build.find())
assert "torch" not in sys.modules
"""

# Links when the file GO is there, if one is named, and keeps count of it. What it puts out is no library.
COMPILER = """#!/bin/sh
case "$*" in *-shared*) echo link >> "{log}"; while [ -n "$GO" ] && [ ! -e "$GO" ]; do sleep 0.05; done ;; esac
for word; do last=$word; done
echo built > "$last"
"""


@pytest.fixture
def compiler(tmp_path) -> Path:
    path = tmp_path / "compiler"
    path.write_text(COMPILER.format(log=tmp_path / "log"))
    path.chmod(0o755)
    return path


def start(cache: Path, code: str = USE, **environment: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HMRNN_CACHE": str(cache), **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=pipe, stderr=pipe, text=True)


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    stdout, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stderr
    return stdout, stderr


def outcome(process: subprocess.Popen[str]) -> tuple[str, str]:
    stdout, stderr = finished(process)
    engine, reason = stdout.splitlines()
    assert "Traceback" not in stderr
    if engine != "native":
        said = [line for line in stderr.splitlines() if "native engine is not available" in line]
        assert len(said) == 1, "said once, in one line"
    return engine, reason


def kept(cache: Path) -> list[str]:
    return sorted(path.suffix for path in (cache / "native").iterdir())


def test_without_a_compiler(tmp_path):
    engine, reason = outcome(start(tmp_path / "cache", CXX="/nowhere/c++"))
    assert engine == "events"
    assert "no C++ compiler" in reason
    assert "/nowhere/c++" in reason
    assert not (tmp_path / "cache").exists()


def test_with_a_compiler_that_fails(tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'c++: fatal error: out of order' >&2\nexit 1\n")
    broken.chmod(0o755)
    engine, reason = outcome(start(tmp_path / "cache", CXX=str(broken)))
    assert engine == "events"
    assert reason.endswith("the build failed: c++: fatal error: out of order")
    assert kept(tmp_path / "cache") == [".lock"], "nothing half-built is left"


def test_with_a_cache_that_can_not_be_written(tmp_path):
    (tmp_path / "file").touch()
    engine, reason = outcome(start(tmp_path / "file"))
    assert engine == "events"
    assert f"{tmp_path / 'file'}: this is a file, and must be a folder" in reason
    assert "HMRNN_CACHE" in reason


def test_without_a_home(tmp_path):
    code = "import pathlib\ndef home(): raise RuntimeError('no home')\npathlib.Path.home = home\n" + USE
    engine, reason = outcome(start(tmp_path, code, HMRNN_CACHE=""))
    assert engine == "events"
    assert "no home directory" in reason


def test_a_spoiled_file_in_the_cache(tmp_path, compiler):
    engine, reason = outcome(start(tmp_path, CXX=str(compiler)))
    assert engine == "events"
    assert "delete it" in reason


def test_two_processes_build_at_once(tmp_path, compiler):
    go = tmp_path / "go"
    processes = [start(tmp_path, FIND, CXX=str(compiler), GO=str(go)) for _ in range(2)]
    said = [process.stderr.readline() for process in processes if process.stderr]
    go.touch()
    found, more = zip(*map(finished, processes), strict=True)
    assert (found[0], "".join(more)) == (found[1], "")
    assert sorted("building" in line for line in said) == [False, True], "also where standard error is a pipe"
    assert sorted("waiting" in line for line in said) == [False, True]
    compiler.unlink()
    assert finished(start(tmp_path, FIND, CXX=str(compiler))) == (found[0], ""), "the third found it there"
    assert (tmp_path / "log").read_text() == "link\n"
    assert kept(tmp_path) == [".lock", ".so"]


def test_a_build_that_was_killed(tmp_path, compiler):
    go = tmp_path / "go"
    try:
        process = start(tmp_path, FIND, CXX=str(compiler), GO=str(go))
        while not (tmp_path / "log").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert kept(tmp_path) == [".lock", ".part"]
        found, _ = finished(start(tmp_path, FIND, CXX=str(compiler)))
        assert Path(found.strip()).read_text() == "built\n"
        assert kept(tmp_path) == [".lock", ".so"]
    finally:
        go.touch()  # the compiler that was left behind ends, too


def test_building_beforehand(tmp_path, compiler):
    environment = {**os.environ, "HMRNN_CACHE": str(tmp_path), "CXX": str(compiler)}
    done = run_process("build", "--json", env=environment)
    answer = json.loads(done.stdout)
    assert answer["built"]
    assert Path(answer["library"]).read_text() == "built\n"
    assert done.stderr.startswith("hmrnn: building the native engine")
    again = run_process("build", env=environment)
    assert again.stdout == f"{answer['library']}: there already\n"
    failed = run_process("build", env={**environment, "CXX": "/nowhere/c++"})
    assert failed.returncode == 1
    assert re.fullmatch(r"hmrnn: .*\bnative\b.*/nowhere/c\+\+.*\bCXX\b.*\n", failed.stderr)


def test_nothing_is_built_on_import(tmp_path):
    finished(start(tmp_path, "import hmrnn; hmrnn.HMLSTM(2, [3]); hmrnn.TextModel"))
    assert not list(tmp_path.iterdir())


def test_no_second_openmp_runtime():
    """Torch brings one. Two in a process would each start their threads."""
    runtimes = """
def runtimes():
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if any(name in line for name in ("gomp", "libomp", "iomp"))})
import torch
before = runtimes()
"""
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux tells what a process has loaded")
    code = runtimes + USE + "assert runtimes() == before, runtimes()"
    assert outcome(start(Path(os.environ["HMRNN_CACHE"]), code))[0] == "native"


V2 = "fpu sse sse2 ht pni cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
V3 = V2 + " abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = V3 + " avx512bw avx512cd avx512dq avx512f avx512vl"


@pytest.mark.parametrize(
    ("flags", "variant"),
    [
        ("", None),
        (V2, "x86-64-v2"),
        (V3, "x86-64-v3"),
        (V3.replace("fma", ""), "x86-64-v2"),
        (V3 + " avx512f avx512cd", "x86-64-v3"),  # Knights Landing
        (V4, "x86-64-v4"),  # Skylake
        (V4 + " avx512_bf16", "x86-64-v4-bf16"),  # Zen 4 has no AMX
        (V3 + " avx512_bf16", "x86-64-v3"),
    ],
)
def test_the_variant_for_a_processor(flags, variant):
    assert build.choose_variant(flags.split()) == variant


@pytest.mark.parametrize(
    ("platform", "flags", "variants"),
    [
        ("linux-x86_64", ("-march=native",), list(build.VARIANTS)),
        ("linux-aarch64", ("-mcpu=native",), ["aarch64"]),
        ("macosx-11.0-arm64", ("-mcpu=native",), ["aarch64"]),
        ("linux-riscv64", (), ["riscv64"]),
    ],
)
def test_other_processors(monkeypatch, platform, flags, variants):
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", platform)
    assert build.flags_for_here() == flags
    assert list(build.flags_for_wheel()) == variants


def test_on_windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(build.Unavailable, match="not built on Windows"):
        build.check_compiler()


@pytest.mark.parametrize("output", ["", "a\nfoo.cpp:1: error: no\nb", "just this"])
def test_the_first_error_of_a_build_is_one_line(output):
    assert "\n" not in build._first_error(output)
    assert build._first_error(output) == {"": "?", "just this": "just this"}.get(output, "foo.cpp:1: error: no")
