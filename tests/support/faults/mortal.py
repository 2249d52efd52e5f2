"""Trains in processes that are killed with signal 9, again and again, and last in one that may end.

A script: each training process is forked from this one, which has imported everything and computed nothing. So a life
costs a fraction of a second, and yet is a process of its own.

    python mortal.py RUN DEATHS SEED text|strokes FLAG…
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import hmrnn.storage.files
from hmrnn import cli

FEWEST, MOST = 1, 40  # updates in a life


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def train(arguments: list[str], dies_in_write: int, chance: random.Random) -> int:
    """Starts a process that trains. In its n-th write of a file it dies, if n is not 0: the file is cut off, or it is
    just about to get its name, or just has it."""
    child = os.fork()
    if child:
        return child
    writes, fsync, replace = [0], os.fsync, os.replace
    how = chance.choice(["cut off", "unnamed", "named"])

    def mortal_fsync(handle: int) -> None:
        writes[0] += 1
        if writes[0] == dies_in_write and how == "cut off":
            os.ftruncate(handle, chance.randrange(os.fstat(handle).st_size))
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    def mortal_replace(source: str, target: str, **folders: int) -> None:
        if writes[0] == dies_in_write and how == "unnamed":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target, **folders)
        if writes[0] == dies_in_write:
            os.kill(os.getpid(), signal.SIGKILL)

    if dies_in_write:
        hmrnn.storage.files.os.fsync, hmrnn.storage.files.os.replace = mortal_fsync, mortal_replace
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    sys.argv = ["hmrnn", "train", *arguments]
    status = 0
    try:
        cli.main()
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    os._exit(status)


def live(run: Path, arguments: list[str], in_write: bool, chance: random.Random) -> str:
    """One life. Says how it ended."""
    metrics = run / "metrics.jsonl"
    before, updates = lines_in(metrics), chance.randint(FEWEST, MOST)
    child = train(arguments, chance.randint(1, 30) if in_write else 0, chance)
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        # It forgets updates after its checkpoint before it makes them again.
        before = min(before, lines_in(metrics))
        if not in_write and lines_in(metrics) > before + updates:
            time.sleep(chance.random() * 0.01)
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "killed in a write" if in_write else "killed"
    return f"ended with status {os.WEXITSTATUS(status)}"


def main() -> None:
    directory, deaths, seed, what, *flags = sys.argv[1:]
    run, chance, ends = Path(directory), random.Random(int(seed)), []
    for death in range(int(deaths)):
        where = ["--resume", str(run)] if (run / "training.safetensors").exists() else [*flags, "--out", str(run)]
        ends.append(live(run, [what, *where], death % 2 == 1, chance))
    _, status = os.waitpid(train([what, "--resume", str(run)], 0, chance), 0)
    print(json.dumps({"ends": ends, "status": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()
