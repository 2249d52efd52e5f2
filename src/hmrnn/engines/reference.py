"""The definition: every layer at every step by the equations, in plain autograd, on any device and in any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from hmrnn import boundary
from hmrnn.config import BOUNDARIES
from hmrnn.engines.types import Engine, Rules, Trace
from hmrnn.equations import LayerWeights, layer_step
from hmrnn.recurrent import Call
from hmrnn.sequence import HMLSTMState, Piecewise


def run(weights: Sequence[LayerWeights], call: Call, rules: Rules) -> Trace:
    x = call.dense_x()
    T, B, _ = x.shape
    L = len(weights)
    one, zero = x.new_ones(B, 1), x.new_zeros(B, 1)
    h, c = list(call.state.h), list(call.state.c)
    z = [*(call.state.z[:, l : l + 1] for l in range(L - 1)), zero]
    hs: list[list[Tensor]] = [[] for _ in range(L)]
    zs: list[list[Tensor]] = [[] for _ in range(L)]

    for t in range(T):
        h_below, z_below = x[t], one
        for l in range(L):
            uniform = at(rules.uniforms, t, l)
            new = layer_step(
                weights[l],
                h[l],
                c[l],
                z[l],
                h_below,
                z_below,
                h[l + 1] if l + 1 < L else None,
                slope=call.slope,
                bound=partial(boundary.bound, boundary=rules.boundary, uniform=uniform),
                hold=rules.hold,
                mask_below=rules.masks[l - 1] if l and rules.masks else None,
                z_given=at(call.given, t, l),
            )
            if call.valid is None:
                h[l], c[l], z[l] = new
                z_below = new.z
            else:
                alive = call.valid[t].unsqueeze(1)
                h[l], c[l], z[l] = (torch.where(alive, *pair) for pair in zip(new, (h[l], c[l], z[l]), strict=True))
                z_below = torch.where(alive, new.z, zero)
            h_below = h[l]
            hs[l].append(h_below)
            zs[l].append(z_below)

    return Trace(
        steps=tuple(Piecewise.from_dense(torch.stack(column)) for column in hs),
        z=torch.cat([x.new_zeros(T, B, 0), *map(torch.stack, zs[:-1])], dim=-1),
        state=HMLSTMState(tuple(h), tuple(c), torch.cat([x.new_zeros(B, 0), *z[:-1]], dim=-1)),
    )


def at(values: Tensor | None, t: int, l: int) -> Tensor | None:
    """(B, 1) out of (T, B, L-1); nothing in the last layer."""
    return None if values is None or l == values.shape[-1] else values[t, :, l : l + 1]


ENGINE = Engine("reference", run, boundaries=frozenset(BOUNDARIES), devices=None, dtypes=None, traceable=True)
