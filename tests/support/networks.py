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

    def call(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        T, B, L = self.T, self.B, len(self.hidden_sizes)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)

        arguments: dict[str, Any] = {"x": normal(T, B, self.input_size), "slope": self.slope}
        arguments["lengths"] = torch.randint(0, T + 1, (B,), generator=generator) if self.padded else None
        z = torch.randint(0, 2, (B, L - 1), generator=generator).to(device, dtype)
        h, c = (tuple(normal(B, size) for size in self.hidden_sizes) for _ in "hc")
        arguments["state"] = HMLSTMState(h, c, z) if self.carried else None
        boundaries = torch.randint(0, 2, (T, B, L - 1), generator=generator)
        arguments["boundaries"] = boundaries.to(device) if self.given else None
        if self.boundary == "sample" or self.drops:
            arguments["generator"] = torch.Generator(device).manual_seed(self.seed + 2)
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


def results(
    case: Case, engine: str, dtype: torch.dtype = torch.float64, device: str = "cpu", nudged: bool = False
) -> dict[str, torch.Tensor]:
    """Outputs, final state, and the gradients of a random loss over all of them by everything that went in.

    nudged: every weight is larger or smaller by its last bit.
    """
    rnn, call = case.network(engine, dtype).to(device), case.call(dtype, device)
    if nudged:
        for weight in rnn.parameters():
            weight.data.mul_(1 + torch.finfo(dtype).eps * torch.randn_like(weight).sign())
    state = call["state"] or rnn.initial_state(case.B)
    leaves = {"x": call["x"], "z0": state.z}
    leaves |= {f"{name}0.{l}": part for name in "hc" for l, part in enumerate(getattr(state, name))}
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    h0, c0 = (tuple(leaves[f"{name}0.{l}"] for l in range(rnn.num_layers)) for name in "hc")
    call |= {"x": leaves["x"], "state": HMLSTMState(h0, c0, leaves["z0"])}
    out, end = rnn(**call)
    found = {f"h.{l}": h for l, h in enumerate(out.h)} | {"z": out.z, "z_end": end.z}
    found |= {f"{name}_end.{l}": part for name in "hc" for l, part in enumerate(getattr(end, name))}
    generator = torch.Generator().manual_seed(case.seed)
    loss = torch.zeros((), dtype=dtype, device=device)
    for value in found.values():
        weights = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        loss = loss + (weights.to(device, dtype) * value).sum()
    leaves |= dict(rnn.named_parameters())
    # a single layer has no z to differentiate by
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=rnn.num_layers == 1)
    return found | {f"d {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def can_be_held_to(case: Case, tolerance: float) -> bool:
    """Whether the reference itself stays within the tolerance when its weights move by their last bits. Where layers
    that are still zero have events, layer normalisation multiplies rounding, too: see docs/deviations.md."""
    try:
        assert_equal(results(case, "reference", nudged=True), results(case, "reference"), tolerance)
    except AssertionError:
        return False
    return True


def assert_equal(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        scale = max(1.0, value.abs().max().item() if value.numel() else 0)
        torch.testing.assert_close(ours[name], value, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}")
