"""From the hidden states of all layers to a prediction: the gated output embedding, and the heads on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from hmrnn.devices import without_autocast
from hmrnn.sequence import Piecewise


class OutputEmbedding(nn.Module):
    """The output embedding of the paper's section 4.1.

        g_l = sigm(w_l . [h_1; ..; h_L])             a scalar per layer and step
        h_e = ReLU(sum_l  g_l * W_l^e h_l)

    `gates[k]` holds the part of all the w_l that reads layer k. What depends on one layer's h alone is computed once
    for each distinct h, not once a step.
    """

    def __init__(
        self,
        hidden_sizes: Sequence[int],
        output_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        L = len(hidden_sizes)
        self.gates = nn.ModuleList(nn.Linear(size, L, bias=False, device=device, dtype=dtype) for size in hidden_sizes)
        self.embeddings = nn.ModuleList(
            nn.Linear(size, output_size, bias=False, device=device, dtype=dtype) for size in hidden_sizes
        )

    def forward(self, steps: Sequence[Piecewise], *, bfloat16: bool = False) -> Tensor:
        """Combines the hidden states of all layers.

        Args:
            steps: Hidden states of each layer, (T, B, H_l), as `HMLSTMOutput.steps`.
            bfloat16: Round the operands of the large products to bfloat16.

        Returns:
            (T, B, output_size).
        """
        votes = [layer.linear(gate).dense() for layer, gate in zip(steps, self.gates, strict=True)]
        g = torch.stack(votes).sum(0).sigmoid()  # (T, B, L)
        h_e = torch.zeros((), device=g.device, dtype=g.dtype)
        for l, (layer, W_e) in enumerate(zip(steps, self.embeddings, strict=True)):
            h_e = h_e + g[..., l : l + 1] * layer.linear(partial(rounded, W_e) if bfloat16 else W_e).dense()
        return h_e.relu()


class SoftmaxHead(nn.Linear):
    """Maps the output embedding, (..., output_size), to logits of the next symbol, (..., symbols)."""

    def forward(self, h_e: Tensor, *, bfloat16: bool = False) -> Tensor:
        return rounded(self, h_e) if bfloat16 else super().forward(h_e)


def rounded(layer: nn.Module, x: Tensor) -> Tensor:
    """A linear layer whose product has operands in bfloat16."""
    from hmrnn.engines.native.products import linear

    assert isinstance(layer, nn.Linear)
    with without_autocast(x.device):
        out = linear(x, layer.weight)
        return out if layer.bias is None else out + layer.bias
