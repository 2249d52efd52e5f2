"""The hierarchical RNN of the paper's Figure 1(a): the layers of the HM-LSTM, with boundaries that are given."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from hmrnn.config import Precision
from hmrnn.hmlstm import HMLSTM

SENTENCE_END = re.compile(r"[.!?][)\]}\"'’”»]{0,8}\Z")
LOOKBACK = 10  # symbols before a symbol that decide on its boundaries, and more than that


class HRNN(HMLSTM):
    """An HM-LSTM with given boundaries: every call needs `boundaries`. Its detectors are neither used nor trained.

    With layer normalisation, boundaries should be nested: layer 2 has one only where layer 1 has one, too.
    `boundaries.cumprod(-1)` makes them so. Otherwise a layer may UPDATE or FLUSH before it has received anything, and
    after a few such events its gradient overflows (docs/deviations.md). In your own training loop,
    `torch.nn.utils.clip_grad_norm_(…, error_if_nonfinite=True)` detects this.
    """

    needs_boundaries = True

    def __init__(
        self,
        input_size: int,
        hidden_sizes: int | Sequence[int],
        num_layers: int | None = None,
        *,
        layer_norm: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        weight_drop: float = 0.0,
        precision: Precision = "auto",
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_sizes,
            num_layers,
            layer_norm=layer_norm,
            batch_first=batch_first,
            dropout=dropout,
            weight_drop=weight_drop,
            precision=precision,
            engine=engine,
            device=device,
            dtype=dtype,
        )
        for name, parameter in self.named_parameters():
            if name.endswith("_z"):
                parameter.requires_grad_(False)


def text_boundaries(text: str) -> Tensor:
    """Returns the boundaries of words and of sentences in a text, (T, 2), for an `HRNN`.

    A boundary is on the white space after the word, not on its last letter: that a word ends there is known only when
    the space is read, and a language model must not see what comes next. A sentence ends with a word that ends in a
    full stop, question or exclamation mark (up to eight closing quotes and brackets may follow it), or that a line
    break follows.
    """
    boundaries = torch.zeros(len(text), 2)
    for word in re.finditer(r"\S+(?=\s)", text):
        space = word.end()
        boundaries[space, 0] = 1
        boundaries[space, 1] = text[space] in "\n\r" or SENTENCE_END.search(word.group()) is not None
    return boundaries
