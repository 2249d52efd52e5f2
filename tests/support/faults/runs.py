"""Small runs, commands in this process, and damage."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hmrnn.storage.files import sealed
from support import commands

SIZES = "--hidden-sizes 8 8 8 --output-size 8 --embedding-size 8"
# Without a cooldown, so that a run may be resumed with more epochs and still be the same.
SMALL = f"{SIZES} --batch-size 4 --window 20 --cooldown 0"
FLAGS = {
    "text": f"--data text.txt {SMALL} --epochs 1".split(),
    "bytes": f"--data bytes.bin --bytes {SMALL} --epochs 1".split(),
    "strokes": f"--data lines.jsonl {SMALL} --components 3 --epochs 1".split(),
    "series": f"--data steps.csv --ends end {SMALL} --components 3 --epochs 1".split(),
}
PARTS = ("config.json", "model.safetensors", "symbols.json", "columns.json")


def kind(name: str) -> str:
    """The command that trains a run: text, strokes or series."""
    return "text" if name == "bytes" else name


def call(*arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`hmrnn` in this process. What it does not handle itself is raised here, too."""
    return commands.run(*map(str, arguments), cwd=cwd, input=stdin)


def succeeded(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = call(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def refused(*arguments: str | Path, because: str = "", status: int = 1, **options: Any) -> str:
    """The one line with which a command says why it ended."""
    done = call(*arguments, **options)
    assert done.returncode == status, (done.returncode, done.stderr)
    return reason(done.stderr, because)


def reason(told: str, because: str = "") -> str:
    """The last line that a failed command told: the first that says `hmrnn:`, and not a traceback."""
    *before, last = told.splitlines()
    assert last.startswith("hmrnn: "), told
    assert not any(line.startswith("hmrnn: ") or "Traceback" in line for line in before), told
    assert because in last, told
    return last


def copy(run: Path, folder: Path) -> Path:
    """A run to spoil."""
    return Path(shutil.copytree(run, folder / f"run{len(list(folder.iterdir()))}"))


def reseal(run: Path, **changes: Any) -> None:
    """Changes settings in every config.json of a run, and their checksum with them, as an attacker would."""
    for path in run.rglob("config.json"):
        content = {**json.loads(path.read_text()), **changes}
        del content["checksum"]
        path.write_text(json.dumps(sealed(content)))


def weights_of(run: Path) -> dict[str, bytes]:
    """Bit for bit."""
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(run / "model.safetensors").items()}


def all_finite(run: Path) -> bool:
    return all(bool(t.isfinite().all()) for p in run.rglob("model.safetensors") for t in load_file(p).values())


def flipped(content: bytes, chance: random.Random) -> bytes:
    spoilt = bytearray(content)
    spoilt[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(spoilt)


def truncated(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {"flipped": flipped, "truncated": truncated}


@contextmanager
def bounded(seconds: int = 20, megabytes: int = 512) -> Iterator[None]:
    """Whatever happens inside must not need more time of the processor, or more memory, than this; nor may it wait for
    long, even where others use the processor, too."""

    def too_long(*_: Any) -> None:
        pytest.fail(f"still busy after {seconds} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handlers = {number: signal.signal(number, too_long) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)
    resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
