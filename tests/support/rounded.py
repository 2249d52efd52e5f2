"""A reference that rounds the operands of products to bfloat16, in float64 elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from hmrnn.engines import Rules, reference
from support.networks import Case


class Rounding:
    """Rounds to bfloat16, and notes how near a number came to one that is rounded the other way."""

    def __init__(self) -> None:
        self.nearest = 1.0

    def __call__(self, tensor: Tensor, exact: bool = False) -> Tensor:
        """`exact`: the number is the same in float32 and float64, so that both round it alike."""
        single = tensor.float().contiguous()
        if tensor.numel() and not exact:
            # a number halfway between two of bfloat16 has the lower half 0x8000
            self.nearest = min(self.nearest, ((single.view(torch.int32) & 0xFFFF) - 0x8000).abs().min().item() / 2**15)
        return single.bfloat16().to(tensor.dtype)


class RoundedMatrix:
    """A matrix as `equations.layer_step` multiplies with it, h @ U.T: with rounded operands, in the gradients too."""

    def __init__(self, matrix: Tensor, rounding: Rounding) -> None:
        self.matrix, self.rounding = matrix, rounding

    @property
    def T(self) -> RoundedMatrix:
        return self

    def __rmatmul__(self, rows: Tensor) -> Tensor:
        return Product.apply(rows, self.matrix, self.rounding)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, rounding):
        ctx.save_for_backward(a, b)
        ctx.rounding = rounding
        return rounding(a) @ rounding(b, exact=True).T

    @staticmethod
    def backward(ctx, grad):
        (a, b), rounding = ctx.saved_tensors, ctx.rounding
        used = grad.abs().sum(1) > 0  # rows whose product is not used are not multiplied at all
        grad = grad * used.unsqueeze(1)
        return rounding(grad) @ rounding(b, exact=True), rounding(grad).T @ rounding(a), None


def results(case: Case, engine: str, rounding: Rounding | None = None) -> dict[str, Tensor]:
    """Outputs and gradients of a random loss: of an engine in bfloat16, or of the reference in float64 that rounds."""
    dtype = torch.float64 if engine == "reference" else torch.float32
    rnn, call = case.network(engine, torch.float32).to(dtype), case.call(torch.float32)
    rnn.precision = "bfloat16"
    x = call["x"].to(dtype).requires_grad_()
    state = (call["state"] or rnn.float().initial_state(case.B)).to(dtype)
    rnn.to(dtype)
    checked = rnn._check(x, state, call["lengths"], call["boundaries"], case.slope, None)
    if engine != "reference":
        assert rnn.rounds_products
        out, end = rnn.unroll(checked)
        h, c = out.h, end.c
    else:
        rounding = rounding or Rounding()
        weights = [
            w._replace(
                W=RoundedMatrix(w.W, rounding),
                U=RoundedMatrix(w.U, rounding),
                V=None if w.V is None else RoundedMatrix(w.V, rounding),
            )
            for w in rnn.weights()
        ]
        trace = reference.run(weights, checked, Rules("step", case.options["copy_boundary"] == "hold", None))
        h, c = tuple(steps.dense() for steps in trace.steps), trace.state.c
    found = {f"h.{l}": value for l, value in enumerate(h)} | {f"c.{l}": value for l, value in enumerate(c)}
    generator = torch.Generator().manual_seed(case.seed)
    loss = sum((torch.randn(value.shape, generator=generator) * value).sum() for value in found.values())
    leaves = {"x": x, **dict(rnn.named_parameters())}
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    found |= {f"d {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return {name: value.detach().double() for name, value in found.items()}
