"""bfloat16 products of the native engine: against a reference that rounds the same operands, in float64 elsewhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from support.networks import Case, cases
from support.rounded import Rounding, results

from hmrnn import HMLSTM, TextModel
from hmrnn.domains.text.data.corpora import builtin_text
from hmrnn.engines.native.library import library
from hmrnn.engines.native.products import linear

KERNELS = ["widen", "dot", "amx"]


@pytest.fixture(params=KERNELS)
def kernel(request):
    """One kernel for bfloat16 after the other."""
    fastest = library().hmrnn_bfloat16_kernel()
    if not library().hmrnn_bfloat16_use(request.param.encode()):
        pytest.skip(f"this processor has no instructions for {request.param}")
    yield request.param
    library().hmrnn_bfloat16_use(fastest)


@given(case=cases(boundaries=("step",), max_size=3, max_steps=4))
@settings(max_examples=100, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_outputs_and_gradients_are_those_of_rounded_operands(case):
    """With boundaries given, since one that rounding turns over would be no error; and where no operand lies so near
    the middle between two numbers that float32 and float64 round it differently."""
    sizes = [size + 2 for size in case.hidden_sizes]
    case = Case(**{**case.__dict__, "hidden_sizes": sizes, "given": True, "scale": 0.7})
    rounding = Rounding()
    expected = results(case, "reference", rounding)
    largest = max(value.abs().max().item() for value in expected.values() if value.numel())
    assume(rounding.nearest > 1e-3 and largest < 1e3)
    ours = results(case, "native")
    for name, value in expected.items():
        scale = max(1.0, value.abs().max().item() if value.numel() else 0)
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 33, 65), (40, 70, 131), (129, 17, 600), (3, 2, 700)])
def test_a_linear_map_by_every_kernel(kernel, sizes):
    """Sizes that fill and overflow every block: 32 columns, 16 rows, 32 and 512 in depth."""
    generator = torch.Generator().manual_seed(1)
    rows, outputs, inputs = sizes
    x, weight, grad = (
        torch.randn(shape, generator=generator) for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
    )
    x.requires_grad_()
    weight.requires_grad_()
    y = linear(x, weight)
    ours = (y, *torch.autograd.grad(y, [x, weight], grad))
    x_, weight_, grad_ = (tensor.detach().bfloat16().double() for tensor in (x, weight, grad))
    for found, expected in zip(ours, (x_ @ weight_.T, grad_ @ weight_, grad_.T @ x_), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


def test_what_is_not_a_number_stays_so(kernel):
    x = torch.tensor([[1.0, float("nan")], [float("inf"), 1.0], [1.0, 2.0]])
    found = linear(x, torch.ones(3, 2))
    assert found.isnan().tolist() == [[True] * 3, [False] * 3, [False] * 3]
    assert found.isinf().tolist() == [[False] * 3, [True] * 3, [False] * 3]


def test_every_kernel_computes_the_same_network(kernel):
    """Wider than a panel, a tile and a block: forward to rounding, backward to what rounding does to operands."""
    case = Case(37, [70, 131, 5], T=3, B=40, seed=4, scale=0.7, carried=True, padded=True, given=True)
    case = Case(**{**case.__dict__, "options": {"layer_norm": False, "copy_boundary": "hold"}})
    ours, expected = results(case, "native"), results(case, "reference")
    for name, value in expected.items():
        error = (ours[name] - value).norm() / max(1e-6, value.norm().item())
        assert error < (1e-3 if value.numel() else 1), name


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing_but_the_last_bits(threads):
    case = Case(5, [40, 36, 24], T=12, B=37, seed=8, scale=0.8, given=True, options={"copy_boundary": "recompute"})
    before, expected = torch.get_num_threads(), results(case, "native")
    try:
        torch.set_num_threads(threads)
        found = results(case, "native")
    finally:
        torch.set_num_threads(before)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=2e-5 * max(1.0, value.abs().max().item()))


def test_autocast_and_the_setting():
    rnn, x = HMLSTM(3, [40, 36], engine="native"), torch.randn(5, 2, 3)
    exact = rnn(x)[0].h[1]
    with torch.autocast("cpu", torch.bfloat16):
        assert rnn.rounds_products
        out, _ = rnn(x)
        out.h[1].sum().backward()
    rnn.precision = "bfloat16"
    assert torch.equal(rnn(x)[0].h[1], out.h[1])
    assert not torch.equal(exact, out.h[1])
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in rnn.parameters())
    rnn.precision = "float32"
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rnn(x)[0].h[1], exact)
    with pytest.raises(ValueError, match="precision must be one of"):
        HMLSTM(3, [4], precision="float16")


def test_only_native_and_float32_weights_are_rounded():
    assert not HMLSTM(3, [4], precision="bfloat16", engine="events").rounds_products
    assert not HMLSTM(3, [4], precision="bfloat16", engine="native", dtype=torch.float64).rounds_products
    assert HMLSTM(3, [4], precision="bfloat16", engine="native").rounds_products


def test_the_shipped_model_in_bfloat16():
    """Hardly a boundary turns over, and the bits per character stay what they are."""
    text = builtin_text()[-8_000:]
    exact, ours = (TextModel.from_pretrained("builtin", precision=p) for p in ("float32", "bfloat16"))
    symbols = exact.symbols.encode(text).view(-1, 1)
    with torch.no_grad():
        z, z_ours = (model(symbols)[0].rnn.z for model in (exact, ours))
    flips = (z != z_ours).double().mean((0, 1)).tolist()
    assert flips[0] <= 0.001
    assert flips[1] <= 0.003
    assert abs(exact.bits_per_character(text) - ours.bits_per_character(text)) <= 0.003


def test_a_stream_in_bfloat16_is_the_forward_pass():
    """To a step of bfloat16: sums in another order may round an operand to the other side."""
    torch.manual_seed(0)
    rnn = HMLSTM(6, [40, 36, 24], precision="bfloat16", engine="native")
    x = torch.randn(12, 2, 6, generator=torch.Generator().manual_seed(0))
    boundaries = torch.randint(0, 2, (12, 2, 2), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole, end = rnn(x, boundaries=boundaries)
        state = None
        for t in range(len(x)):
            out, state = rnn.step(x[t], state, boundaries[t])
            for l in range(3):
                torch.testing.assert_close(out.h[l], whole.h[l][t], rtol=0, atol=2e-3)
        torch.testing.assert_close(state.c, end.c, rtol=0, atol=1e-2)
