"""The gradient of a `Piecewise` that is written out: the library's one pass against operations of torch."""

from __future__ import annotations

import pytest
import torch

from hmrnn import Piecewise
from hmrnn.engines.native import expansion
from hmrnn.engines.native.library import library


def gradients(piecewise: Piecewise, gradient: torch.Tensor) -> list[torch.Tensor]:
    values, repeats = piecewise.values.clone().requires_grad_(), piecewise.repeats.clone().requires_grad_()
    dense = Piecewise(values, piecewise.index, piecewise.tangents, repeats).dense()
    return list(torch.autograd.grad(dense, [values, repeats], gradient))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (40, 9, 33), (150, 64, 130)])
@pytest.mark.parametrize("turned", [False, True])
def test_one_pass_is_what_torch_computes(shape, threads, turned, monkeypatch):
    library()
    generator = torch.Generator().manual_seed(1)
    T, B, H = shape
    rows = T * B // 3 + 1
    values, tangents = (torch.randn(rows, H, generator=generator, dtype=torch.float64) for _ in range(2))
    index = torch.randint(rows, (T, B), generator=generator)
    gradient = torch.randn(T, B, H, generator=generator, dtype=torch.float64)
    steps = Piecewise(values, index, tangents, torch.zeros(T, B, dtype=torch.float64))
    if turned:
        steps, gradient = steps.transpose(), gradient.transpose(0, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert expansion.expansion_backward(gradient, steps.index, tangents) is not None
        found = gradients(steps, gradient)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(expansion, "is_loaded", lambda: False)
    for ours, expected in zip(found, gradients(steps, gradient), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_what_the_library_can_not_read_is_left_to_torch():
    library()
    gradient, index, tangents = torch.ones(3, 2, 4), torch.zeros(3, 2, dtype=torch.int64), torch.ones(1, 4)
    assert expansion.expansion_backward(gradient, index, tangents) is not None
    assert expansion.expansion_backward(gradient.half(), index, tangents.half()) is None
    assert expansion.expansion_backward(gradient.to("meta"), index.to("meta"), tangents.to("meta")) is None
