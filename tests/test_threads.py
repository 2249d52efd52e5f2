"""Whose threads the native engine works with: torch's own where there are any, and its own where there are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A training step of two groups of rows, and of one group whose threads meet; sums of some of its gradients.
WORK = """
import os, signal, threading
import torch, hmrnn

def threads():
    return len(os.listdir("/proc/self/task"))

def train(rows):
    torch.manual_seed(0)
    rnn = hmrnn.HMLSTM(8, [128, 96], engine="native", layer_norm=False)
    out, _ = rnn(torch.randn(180 // rows, rows, 8))  # so few numbers that torch itself needs one thread for them
    sum(h.square().sum() for h in out.h).backward()
    return [p.grad.flatten()[:99].double().sum().item() for p in rnn.parameters()]

torch.set_num_threads(3)
"""


def run(code: str, **environment: str) -> list[str]:
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **environment}
    done = subprocess.run(
        [sys.executable, "-c", WORK + code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells a process's threads")


def test_no_thread_is_started_where_torch_has_them():
    code = """
train(1)
torch.ones(1000, 1000).add_(1)
before = threads()
train(64), train(6)
print(before, threads())
"""
    before, after = map(int, run(code)[0].split())
    assert before >= 3, "torch has no threads here, so that this test tells nothing"
    assert after == before


FORKED = """
expected = {rows: train(rows) for rows in (64, 6)}
pid = os.fork()
if pid == 0:
    signal.alarm(40)
    same = all(train(rows) == sums for rows, sums in expected.items())
    print(threads(), same, flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("environment", [{}, {"OMP_DYNAMIC": "true"}], ids=["OpenMP's", "our own"])
def test_a_forked_process_has_threads_of_its_own(environment):
    """It takes none along, of whichever kind they are: those of OpenMP would never answer. (Nor do they answer torch,
    if it asks them.)"""
    (line,) = run(FORKED, **environment)
    assert line == "3 True"


LIMITED = """
expected = {rows: train(rows) for rows in (64, 6)}
torch.set_num_threads(1)
single = {rows: train(rows) for rows in (64, 6)}
for rows in expected:
    for a, b in zip(expected[rows], single[rows], strict=True):
        assert abs(a - b) <= 1e-3 * max(1, abs(b)), (rows, a, b)
print("same")
"""


@pytest.mark.parametrize("limit", ["1", "2"])
def test_openmp_may_give_fewer_threads_than_are_asked_for(limit):
    assert run(LIMITED, OMP_THREAD_LIMIT=limit) == ["same"]


def test_openmp_may_choose_the_number_of_threads():
    assert run(LIMITED, OMP_DYNAMIC="true") == ["same"]


def test_two_threads_of_a_program_train_at_once():
    code = """
def one(k):
    torch.manual_seed(k)
    rnn = hmrnn.HMLSTM(8, [128, 96], engine="native", layer_norm=False)
    x = torch.randn(3, 64, 8, generator=torch.Generator().manual_seed(k))
    return rnn, x

def gradient(rnn, x):
    rnn.zero_grad()
    out, _ = rnn(x)
    sum(h.square().sum() for h in out.h).backward()
    return [p.grad.flatten()[:99].double().sum().item() for p in rnn.parameters()]

networks = [one(k) for k in range(2)]
expected = [gradient(*n) for n in networks]
found = [None, None]

def work(k):
    torch.set_num_threads(3)
    found[k] = [gradient(*networks[k]) for _ in range(5)]

workers = [threading.Thread(target=work, args=(k,)) for k in range(2)]
[w.start() for w in workers]
[w.join() for w in workers]
for k in range(2):
    for sums in found[k]:
        assert all(abs(a - b) <= 1e-3 * max(1, abs(b)) for a, b in zip(sums, expected[k], strict=True))
print("same")
"""
    assert run(code) == ["same"]
