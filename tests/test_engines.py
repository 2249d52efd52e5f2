"""The event-driven engines against the reference: outputs, states and every gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from networks import Case, cases

from hmrnn import HMLSTMState

ENGINES = ["events", "native"]


def results(case: Case, engine: str, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Outputs, final state, and the gradients of a random loss over all of them by everything that went in."""
    rnn, call = case.network(engine, dtype), case.call(dtype)
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
    loss = torch.zeros((), dtype=dtype)
    for value in found.values():
        loss = loss + (torch.randn(value.shape, generator=generator, dtype=torch.float64).to(dtype) * value).sum()
    leaves |= dict(rnn.named_parameters())
    # a single layer has no z to differentiate by
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=rnn.num_layers == 1)
    return found | {f"d {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def assert_equal(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        scale = max(1.0, value.abs().max().item() if value.numel() else 0)
        torch.testing.assert_close(ours[name], value, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("engine", ENGINES)
@given(case=cases())
@settings(max_examples=150)
def test_engine_is_the_reference(engine, case):
    assert_equal(results(case, engine), results(case, "reference"), 1e-10)
