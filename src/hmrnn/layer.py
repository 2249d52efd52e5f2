"""The parameters of one layer of an HM-LSTM."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from hmrnn.equations import LayerWeights


class HMLSTMLayer(nn.Module):
    """The parameters of one layer, under the names of `LayerWeights`."""

    def __init__(
        self,
        below: int,
        size: int,
        above: int | None,
        *,
        layer_norm: bool,
        boundary_bias: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.boundary_bias = boundary_bias

        def parameter(present: bool, *shape: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if present else None

        detects = above is not None
        self.W = parameter(True, 4 * size, below)
        self.U = parameter(True, 4 * size, size)
        self.V = parameter(detects, 4 * size, above or 0)
        self.b = parameter(True, 4 * size)
        self.W_z = parameter(detects, below)
        self.U_z = parameter(detects, size)
        self.V_z = parameter(detects, above or 0)
        self.b_z = parameter(detects)
        self.gain = parameter(layer_norm, 4 * size)
        self.gain_c = parameter(layer_norm, size)
        self.bias_c = parameter(layer_norm, size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Matrices uniform as in `torch.nn.LSTM`, gains one, biases zero but for the detector's."""
        assert self.U is not None
        scale = 1 / math.sqrt(self.U.shape[1])
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name[0] in "WUV":
                    parameter.uniform_(-scale, scale)
                elif name.startswith("gain"):
                    parameter.fill_(1)
                else:
                    parameter.fill_(self.boundary_bias if name == "b_z" else 0)

    def forward(self) -> LayerWeights:
        """The weights. A call, so that hooks run: `prune` and the old `weight_norm` compute weights in them."""
        return LayerWeights(*(getattr(self, name) for name in LayerWeights._fields))

    def rewrite(self, name: str, value: Tensor) -> None:
        """Gives a weight another value: itself, or what it is computed from, if that can be found."""
        own, pruned = self._parameters.get(name), self._parameters.get(f"{name}_orig")
        if own is not None:
            own.copy_(value)
        elif is_parametrized(self, name):
            try:
                setattr(self, name, value)
            except Exception as error:  # whatever the parametrization's right_inverse raises
                raise RuntimeError(
                    f"{name} of an HMLSTM layer is parametrized and can't be set: does the parametrization have a "
                    f"right_inverse? ({error})"
                ) from error
        elif pruned is not None and f"{name}_mask" in self._buffers:
            pruned.copy_(torch.where(self.get_buffer(f"{name}_mask") != 0, value, pruned))
        else:
            raise RuntimeError(
                f"{name} of an HMLSTM layer is computed by a hook and can't be set: use torch.nn.utils.parametrize"
            )
