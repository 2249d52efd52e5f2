"""Single steps of the native engine: what they notice, what they share, and a whole text model that reads on."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from hmrnn import HMLSTM, HRNN, HMLSTMState, Piecewise, Symbols, TextModel, TextModelConfig
from hmrnn.domains.text.generation import generate
from hmrnn.domains.text.native import TextStream


def network(**options) -> HMLSTM:
    torch.manual_seed(1)
    return HMLSTM(5, [12, 9, 7], engine="native", **options)


def steps(rnn: HMLSTM, x: torch.Tensor, state: HMLSTMState | None = None) -> torch.Tensor:
    """(T, B, H) of the last layer, step by step."""
    found = []
    with torch.no_grad():
        for part in x:
            out, state = rnn.step(part, state)
            found.append(out.h[-1])
    return torch.stack(found)


def whole(rnn: HMLSTM, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return rnn(x)[0].h[-1]


X = torch.randn(9, 2, 5, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("change", ["written into", "replaced", "data", "moved", "loaded", "another layer"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_steps_notice_that_weights_have_changed(change, precision):
    rnn, other = network(precision=precision), network(precision=precision)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    steps(rnn, X)
    layer = rnn.layers[0]
    if change == "written into":
        with torch.no_grad():
            layer.U.mul_(2)
    elif change == "replaced":
        layer.U = nn.Parameter(2 * layer.U.detach())
    elif change == "data":
        layer.U.data = 2 * layer.U.data
    elif change == "moved":
        rnn.double()
    elif change == "loaded":
        rnn.load_state_dict(other.state_dict(), assign=True)
    else:
        rnn.layers[0] = other.layers[0]
    x = X.to(next(rnn.parameters()).dtype)
    tolerance = 1e-5 if precision == "float32" else 2e-2
    torch.testing.assert_close(steps(rnn, x), whole(rnn, x), rtol=0, atol=tolerance)


def test_steps_notice_settings():
    rnn = network(boundary_bias=0.1)
    steps(rnn, X)
    rnn.copy_boundary = "recompute"
    torch.testing.assert_close(steps(rnn, X), whole(rnn, X), rtol=0, atol=1e-5)
    rnn.boundary = "soft"
    torch.testing.assert_close(steps(rnn, X), whole(rnn, X), rtol=0, atol=1e-5)


def test_a_parametrized_network_steps_with_what_it_computes_with():
    rnn = network()
    nn.utils.parametrize.register_parametrization(rnn.layers[0], "U", nn.Tanh())
    torch.testing.assert_close(steps(rnn, X), whole(rnn, X), rtol=0, atol=1e-5)
    with torch.no_grad():
        rnn.layers[0].parametrizations.U.original.mul_(-3)
    torch.testing.assert_close(steps(rnn, X), whole(rnn, X), rtol=0, atol=1e-5)


def test_a_copy_of_a_network_and_of_a_state_steps_on():
    rnn = network()
    with torch.no_grad():
        _, state = rnn.step(X[0])
    expected = steps(rnn, X[1:], state)
    for copied in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
        assert torch.equal(steps(copied, X[1:], copy.deepcopy(state)), expected)
        assert torch.equal(steps(copied, X[1:], pickle.loads(pickle.dumps(state))), expected)


def test_a_state_of_another_network_is_refused():
    with torch.no_grad():
        _, state = HMLSTM(5, [30, 9, 7], engine="native").step(X[0])
        with pytest.raises(ValueError, match=r"state\.h must have shapes"):
            network().step(X[0], state)


def test_what_is_made_in_inference_mode_does_not_reach_training():
    rnn = network()
    with torch.inference_mode():
        rnn.step(X[0])
    with torch.no_grad():
        out, _ = rnn.step(X[0])
    head = nn.Linear(12, 1)
    head(out.h[0]).sum().backward()
    assert head.weight.grad is not None


def test_two_threads_step_one_network():
    rnn = network()
    xs = [torch.randn(200, 1, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: steps(rnn, x), xs))
    for x, mine in zip(xs, found, strict=True):
        assert torch.equal(mine, steps(rnn, x))


def test_steps_of_symbols_are_those_of_their_vectors():
    rnn, table = network(), nn.Parameter(torch.randn(7, 5, generator=torch.Generator().manual_seed(4)))
    index = torch.tensor([[3, 0], [6, 6], [1, 3]])
    with torch.no_grad():
        state = None
        for part, out_of_dense in zip(index, steps(rnn, table.detach()[index]), strict=True):
            out, state = rnn.step(Piecewise(table, part), state)
            torch.testing.assert_close(out.h[-1], out_of_dense, rtol=0, atol=1e-6)
        for wrong in (torch.tensor([7, 0]), torch.tensor([-1, 0])):
            with pytest.raises(IndexError):
                rnn.step(Piecewise(table, wrong), state)


@pytest.mark.parametrize("padded", [False, True])
def test_gradients_of_symbols_are_those_of_their_vectors(padded):
    """Also where the caller writes the next symbols into the same tensor before the backward pass."""
    rnn = network().double()
    table = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    index, weights = torch.randint(0, 7, (11, 3)), torch.randn(11, 3, 7, dtype=torch.float64)
    lengths = [11, 0, 6] if padded else None

    def gradients(x, after=lambda: None):
        out, _ = rnn(x, lengths=lengths)
        loss = (out.h[-1] * weights).sum() + out.z.sum() + out.h[0].square().sum()
        after()
        return torch.autograd.grad(loss, [table, *rnn.parameters()])

    expected = gradients(table[index])
    torch.testing.assert_close(gradients(Piecewise(table, index)), expected, rtol=0, atol=1e-11)
    reused = index.clone()
    found = gradients(Piecewise(table, reused), lambda: reused.fill_(-(10**8)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_an_hrnn_still_wants_boundaries():
    rnn = HRNN(5, [4, 4], engine="native")
    with torch.no_grad(), pytest.raises(ValueError, match="boundaries must be given"):
        rnn.step(X[0])


@pytest.mark.parametrize("boundary", ["step", "sample"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_text_stream_is_the_model(boundary, precision):
    torch.manual_seed(2)
    config = TextModelConfig(hidden_sizes=(24, 20, 16), output_size=18, boundary=boundary, precision=precision)
    model = TextModel(Symbols.of("abcdefgh"), config, engine="native")
    text = torch.randint(0, 8, (40,), generator=torch.Generator().manual_seed(0))
    stream = TextStream(model, model.rnn.initial_state(1), torch.Generator().manual_seed(5))
    generator, state, flips = torch.Generator().manual_seed(5), None, 0
    with torch.no_grad():
        for number in text.tolist():
            out, state = model(torch.tensor([[number]]), state, generator=generator)
            z = stream.read(number)
            flips += z != tuple(fired > 0.5 for fired in out.rnn.z[0, 0].tolist())
            torch.testing.assert_close(stream.logits, out.logits[0, 0], rtol=0, atol=1e-5)
    assert flips == 0
    torch.testing.assert_close(stream.state.h, state.h, rtol=0, atol=1e-5)
    with pytest.raises(IndexError):
        stream.read(8)


def test_two_threads_generate_from_one_model():
    torch.manual_seed(2)
    model = TextModel(
        Symbols.of("abcdefgh"), TextModelConfig(hidden_sizes=(160, 160), output_size=512), engine="native"
    )

    def text(seed: int) -> list[int]:
        return [symbol.number for symbol in generate(model, "abc", 150, seed=seed)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(text, range(6))) == [text(seed) for seed in range(6)]


def test_a_tensor_without_memory_is_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    rnn = network()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises((TypeError, RuntimeError)):
        rnn(mode.from_tensor(X))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_steps_notice_what_a_fused_optimizer_wrote(precision):
    """It leaves the version of a weight as it was."""
    torch.manual_seed(0)
    config = TextModelConfig(hidden_sizes=(32, 32), output_size=8, precision=precision)
    model = TextModel(Symbols(tuple("abcd")), config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    symbol, symbols = torch.zeros(1, 1, dtype=torch.int64), torch.randint(4, (5, 2))
    for _ in range(2):
        with torch.no_grad():
            found = model(symbol)[0].logits
            expected = model(symbol.repeat(2, 1))[0].logits[:1]  # more than a step: not prepared
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 if precision == "bfloat16" else 1e-6)
        optimizer.zero_grad()
        model(symbols)[0].logits.square().sum().backward()
        optimizer.step()


def test_steps_notice_another_parameter_in_the_same_memory():
    rnn = HMLSTM(4, [16, 16], precision="bfloat16")
    x = torch.randn(1, 4)
    with torch.no_grad():
        rnn.step(x)
        rnn.layers[0].W = torch.nn.Parameter(rnn.layers[0].W.data)
        rnn.step(x)
        rnn.layers[0].W.mul_(2)
        found = rnn.step(x)[1].h[0]
        expected = rnn(x.expand(2, 1, 4))[0].h[0][0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
