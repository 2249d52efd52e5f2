"""The contract of the layer: steps and sequences, rows, padding, state, options, and errors that name what is wrong."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.networks import Case, cases
from torch.nn.utils.rnn import pack_sequence

from hmrnn import COPY, FLUSH, HMLSTM, HRNN, LSTM, UPDATE, ClockworkRNN, HMLSTMState, Piecewise

EXACT = {"rtol": 0, "atol": 1e-13}  # sums of a few numbers in another order


def assert_same(a, b, **tolerance):
    """Outputs and states."""
    (out_a, state_a), (out_b, state_b) = a, b
    torch.testing.assert_close(out_a.h, out_b.h, **tolerance)
    assert torch.equal(out_a.operations, out_b.operations)
    torch.testing.assert_close(out_a.z, out_b.z, **tolerance)
    for name in ("h", "c", "z"):
        torch.testing.assert_close(getattr(state_a, name), getattr(state_b, name), **tolerance)


def rows(result, select):
    out, state = result
    steps = tuple(Piecewise.from_dense(h[:, select]) for h in out.h)
    return type(out)(steps, out.z[:, select], out.operations[:, select]), state.select(select)


@given(cases(boundaries=("step", "sample", "soft")))
@settings(max_examples=60)
def test_forward_is_repeated_step(case):
    rnn, call = case.network(), {**case.call(), "lengths": None}
    whole, end = rnn(**call)
    state, generator = call["state"], case.call().get("generator")
    for t in range(case.T):
        given_z = None if call["boundaries"] is None else call["boundaries"][t]
        out, state = rnn.step(call["x"][t], state, given_z, call["slope"], generator)
        torch.testing.assert_close(out.h, tuple(h[t] for h in whole.h), **EXACT)
        torch.testing.assert_close(out.z, whole.z[t], **EXACT)
        assert torch.equal(out.operations, whole.operations[t])
    for name in ("h", "c", "z"):
        torch.testing.assert_close(getattr(state, name), getattr(end, name), **EXACT)


@given(cases(boundaries=("step", "soft")))
@settings(max_examples=60)
def test_rows_are_independent(case):
    """Permuted and dropped rows; and B = H = input_size, where a broadcast along the wrong dimension fits."""
    case = Case(**{**case.__dict__, "input_size": case.B, "hidden_sizes": [case.B] * len(case.hidden_sizes)})
    rnn, call = case.network(), case.call()
    whole = rnn(**call)
    for select in (torch.randperm(case.B), torch.tensor([case.B - 1])):
        part = {
            name: value[:, select] if name in ("x", "boundaries") and value is not None else value
            for name, value in call.items()
        }
        part["state"] = call["state"] and call["state"].select(select)
        part["lengths"] = None if call["lengths"] is None else call["lengths"][select]
        assert_same(rnn(**part), rows(whole, select), **EXACT)


@given(cases(boundaries=("step", "soft")))
@settings(max_examples=60)
def test_unequal_lengths_are_the_sequences_one_by_one(case):
    case = Case(**{**case.__dict__, "padded": True})
    rnn, call = case.network(), case.call()
    out, state = rnn(**call)
    start = call["state"] or rnn.initial_state(case.B)
    for row, length in enumerate(call["lengths"].tolist()):
        row_slice = slice(row, row + 1)
        if length == 0:
            alone_state = start.select(row_slice)
        else:
            given_z = None if call["boundaries"] is None else call["boundaries"][:length, row_slice]
            alone, alone_state = rnn(
                call["x"][:length, row_slice], start.select(row_slice), boundaries=given_z, slope=case.slope
            )
            for h, h_alone in zip(out.h, alone.h, strict=True):
                torch.testing.assert_close(h[:length, row_slice], h_alone, **EXACT)
            torch.testing.assert_close(out.z[:length, row_slice], alone.z, **EXACT)
        for name in ("h", "c", "z"):
            ours, theirs = getattr(state.select(row_slice), name), getattr(alone_state, name)
            torch.testing.assert_close(ours, theirs, **EXACT)


@given(cases(boundaries=("step", "soft")))
@settings(max_examples=60)
def test_padding_changes_nothing_and_gets_no_gradient(case):
    case = Case(**{**case.__dict__, "padded": True})
    rnn, call = case.network(), case.call()
    padding = torch.arange(case.T).unsqueeze(1) >= call["lengths"]
    results = []
    for filler in (0.0, float("nan")):
        x = call["x"].masked_fill(padding.unsqueeze(-1), filler).requires_grad_()
        out, state = rnn(**{**call, "x": x})
        assert (out.z[padding] == 0).all()
        assert (out.operations[padding] == COPY).all()
        loss = sum(h.square().sum() for h in out.h) + out.z.sum() + sum(c.sum() for c in state.c)
        gradients = torch.autograd.grad(loss, [x, *rnn.parameters()])
        assert (gradients[0][padding] == 0).all()
        results.append((loss.detach(), *gradients))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_padded_hidden_states_are_held():
    case = Case(2, [3, 2], T=5, B=1, seed=0)
    out, state = case.network()(**{**case.call(), "lengths": [2]})
    for h, last in zip(out.h, state.h, strict=True):
        assert torch.equal(h[1:], last.expand(4, 1, -1))


def test_state_carries_gradients_until_detached():
    case = Case(2, [3, 2], T=6, B=2, seed=1)
    rnn, x = case.network(), case.call()["x"]
    whole, _ = rnn(x)
    first, state = rnn(x[:3])
    second, _ = rnn(x[3:], state)
    loss, loss_parts = whole.h[1][-1].sum(), second.h[1][-1].sum()
    expected = torch.autograd.grad(loss, list(rnn.parameters()))
    torch.testing.assert_close(
        torch.autograd.grad(loss_parts, list(rnn.parameters()), retain_graph=True), expected, rtol=0, atol=1e-12
    )
    cut, _ = rnn(x[3:], state.detach())
    assert torch.equal(cut.h[1], second.h[1])
    assert not torch.allclose(torch.autograd.grad(cut.h[1][-1].sum(), rnn.layers[0].W)[0], expected[0], atol=1e-6)
    assert first.h[0].requires_grad
    assert not any(tensor.requires_grad for tensor in (*state.detach().h, *state.detach().c, state.detach().z))


def test_operations_follow_the_boundaries():
    rnn = HMLSTM(2, [3, 3, 3])
    z = torch.tensor([[1, 0], [0, 0], [1, 1], [0, 0], [0, 1], [1, 0]]).unsqueeze(1)
    out, state = rnn(torch.randn(6, 1, 2), boundaries=z)
    U, C, F = UPDATE, COPY, FLUSH
    assert out.operations[:, 0].tolist() == [[U, U, C], [F, C, C], [U, U, U], [F, F, C], [U, C, U], [U, F, C]]
    assert out.operations.dtype == torch.int8
    after, _ = rnn.step(torch.randn(1, 2), state)
    assert after.operations[0, 0] == FLUSH, "the boundary of the last step is carried"


def test_batch_first():
    case = Case(3, [4, 2], T=5, B=2, seed=0, carried=True, given=True, padded=True)
    rnn, call = case.network(), case.call()
    other = copy.deepcopy(rnn)
    other.batch_first = True
    out, state = rnn(**call)
    turned, turned_state = other(
        **{**call, "x": call["x"].transpose(0, 1), "boundaries": call["boundaries"].transpose(0, 1)}
    )
    torch.testing.assert_close(turned.h, tuple(h.transpose(0, 1) for h in out.h), rtol=0, atol=0)
    assert torch.equal(turned.z, out.z.transpose(0, 1))
    assert torch.equal(turned.operations, out.operations.transpose(0, 1))
    torch.testing.assert_close(turned_state.c, state.c, rtol=0, atol=0)


def test_slope_of_the_call_overrides_that_of_the_layer():
    case = Case(3, [4, 2], T=6, B=2, seed=0, boundary="soft")
    rnn, call = case.network(), case.call()
    call["slope"] = None
    gentle, _ = rnn(**call)
    call["slope"] = 4.0
    steep, _ = rnn(**call)
    rnn.slope = 4.0
    call["slope"] = None
    again, _ = rnn(**call)
    assert torch.equal(steep.z, again.z)
    assert not torch.equal(gentle.z, steep.z)


@pytest.mark.parametrize("kind", [HMLSTM, LSTM, HRNN, ClockworkRNN])
@pytest.mark.parametrize(
    ("error", "slope"),
    [
        *((ValueError, slope) for slope in (-1, 0.0, float("nan"), float("inf"), torch.tensor(-2.0))),
        *((TypeError, slope) for slope in ("2", None, True, torch.ones(2))),
    ],
)
def test_a_wrong_slope_is_refused_where_it_is_set(kind, error, slope):
    rnn = kind(3, [4, 2])
    with pytest.raises(error, match="slope must be"):
        rnn.slope = slope
    assert rnn.slope == 1


@pytest.mark.parametrize("slope", [torch.nn.Parameter(torch.tensor(2.0)), torch.tensor(2.0, requires_grad=True)])
def test_a_slope_that_asks_for_a_gradient_is_refused(slope):
    rnn = HMLSTM(3, [4, 2])
    with pytest.raises(ValueError, match="detach"):
        rnn.slope = slope
    assert rnn.slope == 1
    assert "slope" not in dict(rnn.named_parameters())


@pytest.mark.parametrize("engine", ["native", "events", "reference"])
@pytest.mark.parametrize("slope", [2, np.float32(2), np.float64(2), torch.tensor(2.0)], ids=lambda slope: type(slope))
def test_a_slope_may_be_any_kind_of_number(engine, slope):
    rnn = HMLSTM(3, [4, 2], boundary="soft", engine=engine)
    expected = rnn(x + 1, slope=2.0)[0].z
    rnn.slope = slope
    assert type(rnn.slope) is float
    assert torch.equal(rnn(x + 1)[0].z, expected)


def test_the_slope_of_a_network_that_was_pickled_before_it_was_checked():
    """It lay in the module's own dictionary, by this name."""
    rnn = HMLSTM(3, [4, 2], slope=1.5)
    assert rnn.__dict__["slope"] == 1.5
    again = HMLSTM.__new__(HMLSTM)
    again.__setstate__(dict(rnn.__dict__))
    assert again.slope == copy.deepcopy(rnn).slope == pickle.loads(pickle.dumps(rnn)).slope == 1.5


def test_boundary_bias():
    rnn = HMLSTM(3, [4, 4, 4], boundary_bias=[0.25, -1.5])
    assert [layer.b_z.item() for layer in list(rnn.layers)[:2]] == [0.25, -1.5]
    assert rnn.layers[2].b_z is None
    assert [layer.b_z.item() for layer in list(HMLSTM(3, [4, 4, 4], boundary_bias=0.5).layers)[:2]] == [0.5, 0.5]


def test_sampled_frequency_matches_z_tilde():
    """A detector held at z~ = (s_z + 1) / 2 fires that often: within 5 standard deviations over 40,000 draws."""
    for bias in (-0.7, -0.2, 0.4):
        rnn = HMLSTM(1, [2, 2], boundary="sample", boundary_bias=bias)
        with torch.no_grad():
            for weight in (rnn.layers[0].W_z, rnn.layers[0].U_z, rnn.layers[0].V_z):
                weight.zero_()
        out, _ = rnn(torch.zeros(40, 1000, 1), generator=torch.Generator().manual_seed(0))
        p = (bias + 1) / 2
        assert abs(out.z.mean().item() - p) < 5 * (p * (1 - p) / 40_000) ** 0.5


def test_a_generator_reproduces_samples():
    case = Case(2, [3, 3], T=30, B=4, seed=5, boundary="sample", scale=0.3)
    rnn, call = case.network(), case.call()

    def z(seed):
        return rnn(**{**call, "generator": torch.Generator().manual_seed(seed)})[0].z

    assert torch.equal(z(1), z(1))
    assert not torch.equal(z(1), z(2))
    call["generator"] = None
    torch.manual_seed(7)
    first = rnn(**call)[0].z
    torch.manual_seed(7)
    assert torch.equal(rnn(**call)[0].z, first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("boundary", ["step", "sample", "soft"])
def test_dtypes(dtype, boundary):
    rnn = HMLSTM(3, [4, 5, 2], boundary=boundary, dtype=dtype)
    out, state = rnn(torch.randn(6, 2, 3, dtype=dtype))
    assert {t.dtype for t in (*out.h, out.z, *state.h, *state.c, state.z)} == {dtype}
    sum(h.float().sum() for h in out.h).backward()
    assert all(parameter.grad.dtype == dtype and parameter.grad.isfinite().all() for parameter in rnn.parameters())


def test_to_moves_the_network_and_the_state():
    rnn = HMLSTM(3, [4, 2])
    _, state = rnn(torch.randn(2, 2, 3))
    rnn.to(torch.float64)
    out, _ = rnn(torch.randn(2, 2, 3, dtype=torch.float64), state.to(torch.float64))
    assert out.h[0].dtype == torch.float64
    meta = HMLSTM(3, [4, 2], device="meta")
    out, state = meta(torch.randn(2, 2, 3, device="meta"))
    assert (out.h[1].device.type, state.c[0].device.type, out.operations.shape) == ("meta", "meta", (2, 2, 2))


def test_deepcopy_and_state_dict_give_the_same_numbers():
    case = Case(3, [4, 3, 2], T=5, B=2, seed=2)
    rnn, call = case.network(), case.call()
    expected = rnn(**call)
    assert_same(copy.deepcopy(rnn)(**call), expected, rtol=0, atol=0)
    other = Case(**{**case.__dict__, "seed": 3}).network()
    other.load_state_dict(rnn.state_dict())
    assert_same(other(**call), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own use of it, on loading its compiler
def test_compiled_network_gives_the_same_numbers():
    case = Case(3, [4, 3], T=2, B=2, seed=2)
    rnn, call = case.network(), case.call()
    compiled = torch.compile(rnn, backend="aot_eager")  # how inductor writes code is not ours to test
    out, state = compiled(**call)
    assert_same((out, state), rnn(**call), rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(out.h[1].sum() + out.z.sum(), list(rnn.parameters()))
    out, _ = rnn(**call)
    expected = torch.autograd.grad(out.h[1].sum() + out.z.sum(), list(rnn.parameters()))
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-12)


def test_constrain_detectors_keeps_a_norm_ball():
    rnn = HMLSTM(3, [4, 5, 2], boundary_bias=9.0)
    with torch.no_grad():
        for weight in (rnn.layers[0].W_z, rnn.layers[0].U_z, rnn.layers[0].V_z):
            weight.fill_(2.0)
    small = [weight.clone() for weight in (rnn.layers[1].W_z, rnn.layers[1].U_z, rnn.layers[1].V_z)]
    gates = rnn.layers[0].W.clone()
    rnn.constrain_detectors()
    first = torch.cat([rnn.layers[0].W_z, rnn.layers[0].U_z, rnn.layers[0].V_z])
    torch.testing.assert_close(first, torch.full((12,), 1.94 / 12**0.5))
    torch.testing.assert_close((rnn.layers[1].W_z, rnn.layers[1].U_z, rnn.layers[1].V_z), tuple(small), rtol=0, atol=0)
    assert torch.equal(rnn.layers[0].W, gates)
    assert rnn.layers[0].b_z.item() == 9.0
    rnn.constrain_detectors(radius=0.5)
    assert torch.cat([rnn.layers[0].W_z, rnn.layers[0].U_z, rnn.layers[0].V_z]).norm().item() == pytest.approx(0.5)


def test_the_ball_is_smaller_for_more_units():
    rnn = HMLSTM(3, [128, 512, 2])
    norms = []
    for layer in rnn.layers[:2]:
        for weight in (layer.W_z, layer.U_z, layer.V_z):
            weight.data.fill_(2.0)
    rnn.constrain_detectors()
    for layer in rnn.layers[:2]:
        norms.append(torch.cat([layer.W_z, layer.U_z, layer.V_z]).norm().item())
    assert norms == pytest.approx([1.0, 0.5], rel=0.01)


def test_piecewise():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    steps = Piecewise(values, torch.tensor([[0], [0], [1]]))
    assert steps.dense().tolist() == [[[1, 2]], [[1, 2]], [[3, 4]]]
    calls = []

    def double(v):
        calls.append(len(v))
        return 2 * v

    assert torch.equal(steps.map(double).dense(), 2 * steps.dense())
    assert calls == [2]


x = torch.zeros(4, 2, 3)
STATE = HMLSTM(3, [5, 4]).initial_state(2)


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, ["x", "3 dimensions", "(3,)"], {"x": x[0, 0]}),
        (ValueError, ["x", "3 features", "7"], {"x": torch.zeros(4, 2, 7)}),
        (ValueError, ["x", "time step", "0"], {"x": torch.zeros(0, 2, 3)}),
        (TypeError, ["x", "float32", "float64"], {"x": x.double()}),
        (TypeError, ["x", "float32", "int64"], {"x": x.long()}),
        (ValueError, ["x", "cpu", "meta"], {"x": x.to("meta")}),
        (TypeError, ["state", "HMLSTMState", "tuple"], {"state": (x, x)}),
        (ValueError, ["state.h", "(2, 5)", "(3, 5)"], {"state": HMLSTM(3, [5, 4]).initial_state(3)}),
        (ValueError, ["state.h", "(2, 4)", "(2, 5)"], {"state": HMLSTM(3, [5]).initial_state(2)}),
        (ValueError, ["state.z", "(2, 1)", "(2, 2)"], {"state": HMLSTMState(STATE.h, STATE.c, torch.zeros(2, 2))}),
        (
            TypeError,
            ["state.c", "float32", "float64"],
            {"state": HMLSTMState(STATE.h, STATE.to(torch.float64).c, STATE.z)},
        ),
        (ValueError, ["lengths", "(2,)", "(3,)"], {"lengths": [1, 2, 3]}),
        (ValueError, ["lengths", "between 0", "4", "9"], {"lengths": [1, 9]}),
        (ValueError, ["lengths", "between 0", "-1"], {"lengths": [-1, 4]}),
        (TypeError, ["lengths", "whole", "float"], {"lengths": torch.tensor([1.0, 2.0])}),
        (ValueError, ["boundaries", "(4, 2, 1)", "(4, 2, 2)"], {"boundaries": torch.zeros(4, 2, 2)}),
        (ValueError, ["boundaries", "0 or 1", "0.5"], {"boundaries": torch.full((4, 2, 1), 0.5)}),
        (ValueError, ["boundaries", "detach"], {"boundaries": torch.zeros(4, 2, 1, requires_grad=True)}),
        (ValueError, ["state.z", "0 or 1", "0.5"], {"state": HMLSTMState(STATE.h, STATE.c, torch.full((2, 1), 0.5))}),
        *(
            (TypeError, ["x must be a tensor", type(wrong).__name__], {"x": wrong})
            for wrong in (x.numpy(), [x, x], None)
        ),
        *(
            (TypeError, ["boundaries must be a tensor", type(wrong).__name__], {"boundaries": wrong})
            for wrong in (np.zeros((4, 2, 1)), [[[0], [0]]] * 4, 1)
        ),
        (ValueError, ["slope", "positive", "-1"], {"slope": -1.0}),
        (TypeError, ["slope", "number", "str"], {"slope": "steep"}),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(error, words, arguments):
    with pytest.raises(error) as caught:
        HMLSTM(3, [5, 4])(**{"x": x, **arguments})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["boundary", "step", "hard"], {"boundary": "hard"}),
        (["copy_boundary", "hold", "keep"], {"copy_boundary": "keep"}),
        (["engine", "auto", "warp"], {"engine": "warp"}),
        (["hidden_sizes", "[]"], {"hidden_sizes": []}),
        (["hidden_sizes", "64"], {"hidden_sizes": 64}),
        (["hidden_sizes", "0"], {"hidden_sizes": [4, 0]}),
        (["hidden_sizes", "16.0"], {"hidden_sizes": 16.0, "num_layers": 2}),
        (["hidden_sizes", "None"], {"hidden_sizes": None}),
        (["input_size", "-1"], {"input_size": -1}),
        (["boundary_bias", "(1)", "[1, 2]"], {"boundary_bias": [1, 2]}),
        (["slope", "0"], {"slope": 0}),
    ],
)
def test_a_wrong_option_is_named(words, arguments):
    with pytest.raises(ValueError, match="must") as caught:
        HMLSTM(**{"input_size": 3, "hidden_sizes": [5, 4], **arguments})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("x", x[0].numpy()),
        ("x", [[0.0] * 3] * 2),
        ("x", pack_sequence([x[:, 0]])),
        ("boundaries", np.zeros((2, 1))),
        ("boundaries", [[0], [1]]),
        ("state", (x, x)),
    ],
)
def test_a_wrong_step_is_told_what_is_wrong(name, wrong, batch_first, grad):
    rnn = HMLSTM(3, [5, 4], batch_first=batch_first)
    with torch.set_grad_enabled(grad), pytest.raises(TypeError, match=f"{name} must be .*; got {type(wrong).__name__}"):
        rnn.step(**{"x": x[0], name: wrong})


def test_step_refuses_a_sequence():
    with pytest.raises(ValueError, match="2 dimensions"):
        HMLSTM(3, [5, 4]).step(x)
