"""Small networks, windows and a teacher, for the tests of `Guide`."""

from __future__ import annotations

import numpy as np
import torch

from hmrnn import HMLSTM

RATES = [0.5, 0.125]


def network(seed: int = 0, engine: str = "reference", **options) -> HMLSTM:
    torch.manual_seed(seed)
    rnn = HMLSTM(5, [7, 6, 4], engine=engine, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.normal_()
    return rnn


def window(T: int = 8, B: int = 3, seed: int = 1) -> torch.Tensor:
    return torch.randn(T, B, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def biases(rnn: HMLSTM) -> list[float]:
    return [w.b_z.item() for w in rnn.weights()[:-1]]


def still(rnn: HMLSTM) -> torch.optim.Optimizer:
    """An optimizer that changes nothing, though its learning rate is 1."""
    return torch.optim.SGD([*rnn.parameters()], lr=1.0, maximize=False, foreach=False)


class Marks:
    """A teacher that knows: segments end with symbol 0."""

    rates, delay, past = (0.25,), 0, 2

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def evidence(self, symbols):
        self.seen.append(symbols)
        return (symbols[2:] == 0).astype(np.float32)
