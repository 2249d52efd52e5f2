"""Trains for some updates and saves the gradient of each: by this process, or by those of torchrun."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from hmrnn.config import TrainingConfig
from hmrnn.domains import DOMAINS
from hmrnn.domains.strokes.config import (
    StrokeDataConfig,
    StrokeModelConfig,
    StrokeRunConfig,
    WritingConfig,
)
from hmrnn.domains.text.config import TextDataConfig, TextModelConfig, TextRunConfig
from hmrnn.training.checkpoint import SavedRun
from hmrnn.training.distributed import joined
from hmrnn.training.run import prepare

UPDATES = 8


def main(text: str, out: str, batch_size: int, boundary_bias: float, guided_updates: int) -> None:
    sizes = {"embedding_size": 5, "hidden_sizes": (8, 7, 6), "output_size": 9, "boundary_bias": boundary_bias}
    training = TrainingConfig(batch_size=batch_size, window=10, guided_updates=guided_updates)
    run = TextRunConfig(TextDataConfig(text), TextModelConfig(**sizes), training)
    if text == "strokes":
        writing = StrokeDataConfig(writing=WritingConfig(lines=30, words=(1, 2), spacing=6.0))
        run = StrokeRunConfig(writing, StrokeModelConfig(**sizes, components=3), training)
    recorded = {}
    with joined() as processes:
        data = DOMAINS[run.kind].load(run, None)
        training = prepare(SavedRun(run, data.fingerprint, None), data, "auto", processes)
        for update in range(training.task.epochs.first if text == "strokes" else UPDATES):
            made = training.make_update(stop=None, checkpoint=False)
            recorded[f"loss {update}"] = torch.tensor(made.loss)
            recorded[f"rates {update}"] = torch.tensor(made.rates)
            for name, parameter in training.task.model.named_parameters():
                recorded[f"gradient {update} {name}"] = parameter.grad.clone()
        recorded |= {f"weight {name}": p.detach() for name, p in training.task.model.named_parameters()}
        torch.save(recorded, Path(out) if processes.first else Path(f"{out}.{processes.rank}"))
        del training


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
