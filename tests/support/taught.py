"""Trains as one of the processes of torchrun, of which only the first may count, and keeps what each one's teacher
knows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from hmrnn.config import TrainingConfig
from hmrnn.domains.text.config import TextDataConfig, TextModelConfig, TextRunConfig
from hmrnn.guidance.branching import Branching
from hmrnn.training.loop import Training
from hmrnn.training.run import train_run


def main(text: str, directory: str) -> None:
    rank, make = os.environ["RANK"], Training.make_update
    if rank != "0":
        Branching.of = None  # whoever counts here fails

    def watched(self, stop, checkpoint):
        np.savez(f"{directory}.{rank}.npz", **self.task.teacher.state_dict(), targets=self.guide.targets)
        return make(self, stop, checkpoint)

    Training.make_update = watched
    model = TextModelConfig(embedding_size=5, hidden_sizes=(8, 7, 6), output_size=9)
    training = TrainingConfig(batch_size=2, window=10, epochs=0.2)
    train_run(TextRunConfig(TextDataConfig(text), model, training), Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
