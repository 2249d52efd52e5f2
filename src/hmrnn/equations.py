"""One step of one HM-LSTM layer: the equations of Chung, Ahn and Bengio (2017), section 3.2, in the same letters.

Everything else in this package that computes an HM-LSTM is tested against this file.

    B  batch rows      H  units of this layer      H_below, H_above  units of its neighbours
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hmrnn.boundary import hard_sigmoid

LAYER_NORM_EPS = 1e-5


class LayerWeights(NamedTuple):
    """The parameters of one layer. Rows of the gate matrices: forget, input, output gate and proposal, in that order.

    The last layer has no detector and nothing above it: there V and the four of the detector are None.
    Without layer normalisation the last three are None. Engines that look up the products of the input in a table set W
    and W_z of the first layer to None.
    """

    W: Tensor  # (4H, H_below)  bottom-up: the paper's W_{l-1}^l
    U: Tensor  # (4H, H)        recurrent: U_l^l
    V: Tensor | None  # (4H, H_above)  top-down: U_{l+1}^l
    b: Tensor  # (4H,)
    W_z: Tensor | None  # (H_below,)  the detector's row of W, U, V and b
    U_z: Tensor | None  # (H,)
    V_z: Tensor | None  # (H_above,)
    b_z: Tensor | None  # ()
    gain: Tensor | None  # (4H,)  layer normalisation of s
    gain_c: Tensor | None  # (H,)  layer normalisation of c
    bias_c: Tensor | None  # (H,)

    def map(self, f: Callable[[Tensor], Tensor]) -> LayerWeights:
        """f of every weight that the layer has."""
        return LayerWeights(*(None if weight is None else f(weight) for weight in self))  # type: ignore[arg-type]


class LayerStep(NamedTuple):
    h: Tensor  # (B, H)
    c: Tensor  # (B, H)
    z: Tensor  # (B, 1)  zero in the last layer


def layer_step(
    weights: LayerWeights,
    h: Tensor,  # (B, H)        h[t-1, l]
    c: Tensor,  # (B, H)        c[t-1, l]
    z: Tensor,  # (B, 1)        z[t-1, l], zero in the last layer
    h_below: Tensor,  # (B, H_below)  h[t, l-1], or x[t]
    z_below: Tensor,  # (B, 1)        z[t, l-1], or one
    h_above: Tensor | None,  # (B, H_above)  h[t-1, l+1]
    *,
    slope: float | Tensor,
    bound: Callable[[Tensor], Tensor],
    hold: bool,
    z_given: Tensor | None = None,  # (B, 1)  a boundary that is known, as in an HRNN
    mask_below: Tensor | None = None,  # (B, H_below)  dropout: W h[t, l-1] becomes W (mask * h[t, l-1])
) -> LayerStep:
    """h, c and z of a layer at time t.

        s      = U h[t-1,l]  +  z[t-1,l] * V h[t-1,l+1]  +  z[t,l-1] * W h[t,l-1]  +  b
        f,i,o  = sigm(s_f), sigm(s_i), sigm(s_o)      g = tanh(s_g)
        z~     = hardsigm(s_z)

        flush  = z[t-1,l]
        update = (1 - z[t-1,l]) * z[t,l-1]
        copy   = (1 - z[t-1,l]) * (1 - z[t,l-1])

        c[t,l] = flush * (i*g) + update * (f*c[t-1,l] + i*g) + copy * c[t-1,l]
        h[t,l] = (flush + update) * o*tanh(c[t,l]) + copy * h[t-1,l]
        z[t,l] = bound(z~)                          recompute
                 (flush + update) * bound(z~)       hold

    With layer normalisation, s = LN(U h + z V h + z W h) * gain + b for the gates (not for s_z),
    and tanh(c) becomes tanh(LN(c) * gain_c + bias_c).
    """
    W, U, V, b, W_z, U_z, V_z, b_z, gain, gain_c, bias_c = weights

    handed = h_below if mask_below is None else h_below * mask_below  # the detector sees h_below itself
    s = h @ U.T + z_below * (handed @ W.T)
    if V is not None and h_above is not None:
        s = s + z * (h_above @ V.T)
    s = s + b if gain is None else layer_norm(s, gain, b)
    s_f, s_i, s_o, s_g = s.chunk(4, dim=-1)
    f, i, o, g = s_f.sigmoid(), s_i.sigmoid(), s_o.sigmoid(), s_g.tanh()

    flush = z
    update = (1 - z) * z_below
    copy = (1 - z) * (1 - z_below)

    c_new = flush * (i * g) + update * (f * c + i * g) + copy * c
    squashed = (c_new if gain_c is None or bias_c is None else layer_norm(c_new, gain_c, bias_c)).tanh()
    h_new = (flush + update) * o * squashed + copy * h

    if W_z is None or U_z is None or V_z is None or b_z is None or h_above is None:
        return LayerStep(h_new, c_new, torch.zeros_like(z))

    s_z = dot(h, U_z) + z * dot(h_above, V_z) + z_below * dot(h_below, W_z) + b_z
    z_tilde = hard_sigmoid(s_z, slope)
    if z_given is not None:
        # The zero term keeps an unused detector in the graph, so that its gradient is zero and not missing.
        z_new = z_given + 0 * z_tilde
    elif hold:
        z_new = (flush + update) * bound(z_tilde)
    else:
        z_new = bound(z_tilde)
    return LayerStep(h_new, c_new, z_new)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """LN(x) * gain + bias, over the last dimension. NaN where the variance of x overflows: divided by its root, which
    is infinite, every x would be 0, and a number that is finite and wrong.
    """
    normed, _, rstd = torch.native_layer_norm(x, gain.shape, gain, bias, LAYER_NORM_EPS)
    return normed * (rstd / rstd).to(normed.dtype)  # 1, or 0 / 0


def dot(h: Tensor, w: Tensor) -> Tensor:
    """(B, H), (H,) -> (B, 1)"""
    return (h @ w).unsqueeze(-1)
