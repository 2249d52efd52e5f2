"""Random networks, inputs and calls for tests: seeded, with firing rates that range from never to always."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from hmrnn import HMLSTM, HMLSTMState


@dataclass(frozen=True)
class Case:
    """A network and a call of it."""

    input_size: int
    hidden_sizes: list[int]
    T: int
    B: int
    seed: int
    boundary: str = "step"
    options: dict[str, Any] = field(default_factory=dict)  # of the constructor
    slope: float = 1.0
    bias: float = 0.0
    scale: float = 2.0
    carried: bool = False
    given: bool = False
    padded: bool = False

    @property
    def drops(self) -> bool:
        return any(self.options.get(name, 0) > 0 for name in ("dropout", "weight_drop"))

    def network(self, engine: str = "reference", dtype: torch.dtype = torch.float64) -> HMLSTM:
        generator = torch.Generator().manual_seed(self.seed)
        rnn = HMLSTM(
            self.input_size,
            self.hidden_sizes,
            boundary=self.boundary,  # type: ignore[arg-type]
            boundary_bias=self.bias,
            engine=engine,
            dtype=torch.float64,
            **self.options,
        )
        with torch.no_grad():
            for name, parameter in rnn.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                if name.endswith("b_z"):
                    parameter.copy_(self.bias + 0.1 * noise)
                elif "gain" in name:
                    parameter.copy_(1 + 0.5 * noise)
                else:
                    parameter.copy_(self.scale * noise / parameter.shape[-1] ** 0.5)
        return rnn.to(dtype)

    def call(self, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        T, B, L = self.T, self.B, len(self.hidden_sizes)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        arguments: dict[str, Any] = {"x": normal(T, B, self.input_size), "slope": self.slope}
        arguments["lengths"] = torch.randint(0, T + 1, (B,), generator=generator) if self.padded else None
        z = torch.randint(0, 2, (B, L - 1), generator=generator).to(dtype)
        h, c = (tuple(normal(B, size) for size in self.hidden_sizes) for _ in "hc")
        arguments["state"] = HMLSTMState(h, c, z) if self.carried else None
        boundaries = torch.randint(0, 2, (T, B, L - 1), generator=generator)
        arguments["boundaries"] = boundaries if self.given else None
        if self.boundary == "sample" or self.drops:
            arguments["generator"] = torch.Generator().manual_seed(self.seed + 2)
        return arguments


def cases(
    boundaries: tuple[str, ...] = ("step", "sample"), max_size: int = 6, max_steps: int = 9, drops: bool = False
) -> Any:
    """Every option of the layer, at sizes where a mixed-up dimension shows. `drops`: dropout, too, in training mode."""
    shares = st.sampled_from([0.0, 0.3, 0.6] if drops else [0.0])
    sizes = st.integers(1, max_size)
    options = st.fixed_dictionaries(
        {
            "layer_norm": st.booleans(),
            "copy_boundary": st.sampled_from(["recompute", "hold"]),
            "dropout": shares,
            "weight_drop": shares,
        }
    )
    return st.builds(
        Case,
        input_size=sizes,
        hidden_sizes=st.lists(sizes, min_size=1, max_size=4),
        T=st.integers(1, max_steps),
        B=st.integers(1, 5),
        seed=st.integers(0, 2**31),
        boundary=st.sampled_from(boundaries),
        options=options,
        slope=st.sampled_from([0.3, 1.0, 2.5, 5.0]),
        bias=st.sampled_from([-50.0, -1.0, -0.3, 0.0, 0.3, 1.0, 50.0]),
        carried=st.booleans(),
        given=st.booleans(),
        padded=st.booleans(),
    )
