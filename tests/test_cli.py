"""The command line as a user meets it: in a process of its own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hmrnn", *arguments], capture_output=True, text=True, check=False, timeout=300, **options
    )


def test_help_is_quick_and_explains():
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = run("--help")
        times.append(time.perf_counter() - start)
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert min(times) < 1.0


def test_importing_the_command_line_does_not_import_torch():
    code = "import sys, hmrnn, hmrnn.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_there():
    import hmrnn

    assert all(getattr(hmrnn, name) is not None for name in hmrnn.__all__)
    with pytest.raises(AttributeError, match="warp"):
        _ = hmrnn.warp


def test_bad_usage_exits_with_2():
    for arguments in (["fly"], ["demo", "--updates", "many"], []):
        done = run(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_demo_trains_saves_and_shows_segments(tmp_path):
    done = run("demo", "--out", str(tmp_path / "run"), "--updates", "3")
    assert done.returncode == 0, done.stderr
    bits, chance = (float(value) for value in re.findall(r": +(\d\.\d+)$", done.stdout, re.MULTILINE))
    assert 1 < bits < 10
    assert 4 < chance < 5
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert done.stderr == "", "no progress bar where there is no terminal"


def test_a_failure_exits_with_1_and_one_line(tmp_path):
    (tmp_path / "file").touch()
    done = run("demo", "--out", str(tmp_path / "file" / "run"), "--updates", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("hmrnn: ")
    assert "Traceback" not in done.stderr


def test_the_readmes_python_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-c", block], check=True, capture_output=True, timeout=300, cwd=tmp_path)


def test_the_readmes_commands_exist():
    """Every `hmrnn` line in the README names a command that explains itself, with flags that it knows."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("hmrnn ")]
    assert len(commands) >= 2
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        shown = run(words[0], "--help")
        assert shown.returncode == 0, command
        for flag in (word for word in words if word.startswith("--")):
            assert flag in shown.stdout, command
