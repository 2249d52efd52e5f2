"""How much of the engine's speed reaches the user: whole training updates against model and loss alone, in turn.

    python benchmarks/training_speed.py

An update is reading the window, forward and backward pass, clipping, Adam, and the detectors' norm ball. The settings
are those of the preset ptb with three layers of 512 units; the text is the built-in one.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from hmrnn.domains.text.config import PRESETS
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.training.checkpoint import SavedRun
from hmrnn.training.distributed import Processes
from hmrnn.training.run import prepare

ROUNDS = 15


def main() -> None:
    run = PRESETS["ptb"]
    run = replace(run, model=replace(run.model, hidden_sizes=(512, 512, 512)))
    data = load_text(run.data)
    training = prepare(SavedRun(run, data.fingerprint, None), data, "auto", Processes())
    task, generator = training.task, torch.Generator()
    updates, alone = [], []
    for round_ in range(ROUNDS + 3):
        start = time.perf_counter()
        training.make_update(stop=None, checkpoint=False)
        middle = time.perf_counter()
        state, symbols = task.state, task.streams(0).read(0, task.window + 1)
        clock = time.perf_counter()
        task.objective.zero_grad()
        task.objective(symbols, state, None, generator)[0].backward()
        end = time.perf_counter()
        if round_ >= 3:
            updates.append(middle - start)
            alone.append(end - clock)
    update, model = statistics.median(updates), statistics.median(alone)
    print(f"an update {update:.3f} s ({task.symbols_per_update / update:,.0f} symbols/s), model and loss {model:.3f} s")
    print(f"training runs at {model / update:.1%} of the speed of model and loss")


if __name__ == "__main__":
    main()
