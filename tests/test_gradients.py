"""Gradients of the reference engine: by finite differences, by hand, and of the surrogate that defines them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.networks import Case, cases

from hmrnn import HMLSTM, HMLSTMState
from hmrnn.boundary import bound, hard_sigmoid
from hmrnn.equations import LayerWeights, layer_step


def everything(out, state):
    """All that a loss may look at."""
    return (*out.h, out.z, *state.h, *state.c, state.z)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("mode", ["given", "soft-recompute", "soft-hold"])
def test_gradcheck(mode, layer_norm):
    """With boundaries given, and through soft ones: parameters, x and every part of the initial state."""
    kind, _, copy_boundary = mode.partition("-")
    options = {"layer_norm": layer_norm, "copy_boundary": copy_boundary or "hold"}
    soft = kind == "soft"
    # a soft network in both cases: only there may the initial z be moved a little, as finite differences do
    case = Case(
        2, [3, 2, 2], T=3, B=2, seed=3, boundary="soft", options=options, scale=0.7, carried=True, given=not soft
    )
    rnn, call = case.network(), case.call()
    x, state = call["x"], call["state"]
    names = [name for name, _ in rnn.named_parameters()]
    z_start = torch.rand(state.z.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.8 + 0.1

    def run(x, z, *tensors):
        h, c, parameters = tensors[:3], tensors[3:6], tensors[6:]
        arguments = {**call, "x": x, "state": HMLSTMState(h, c, z)}
        return everything(
            *torch.func.functional_call(rnn, dict(zip(names, parameters, strict=True)), kwargs=arguments, args=())
        )

    if soft:
        out, _ = rnn(**{**call, "state": HMLSTMState(state.h, state.c, z_start)})
        assert ((out.z > 0.01) & (out.z < 0.99)).any(), "no detector is where its gradient is alive"
    inputs = [x, z_start, *state.h, *state.c, *(parameter.detach() for parameter in rnn.parameters())]
    assert torch.autograd.gradcheck(run, [tensor.clone().requires_grad_() for tensor in inputs])


def sigm(v):
    return 1 / (1 + math.exp(-v))


def test_step_gradient_by_hand():
    """Two layers of one unit, two steps: UPDATE, UPDATE, then FLUSH, COPY. The backward pass derived on paper.

    Loss: A h1[2] + B h2[2] + C z1[2] + D c2[2].
    """
    rnn = HMLSTM(1, [1, 1], layer_norm=False, copy_boundary="hold", dtype=torch.float64, engine="reference")
    w1 = {
        "W": [0.3, -0.2, 0.5, 0.7],
        "U": [0.1, 0.4, -0.3, 0.2],
        "V": [-0.5, 0.6, 0.2, -0.4],
        "b": [0.1, 0.2, 0.3, -0.1],
    }
    w2 = {"W": [0.8, 0.5, -0.6, 0.9], "U": [0.2, -0.1, 0.4, 0.3], "b": [0.05, -0.15, 0.25, 0.1]}
    W_z, U_z, V_z, b_z = 0.5, -2.0, 0.4, 0.1
    with torch.no_grad():
        for layer, values in zip(rnn.layers, (w1, w2), strict=True):
            for name, value in values.items():
                parameter = getattr(layer, name)
                parameter.copy_(torch.tensor(value, dtype=torch.float64).view_as(parameter))
        for name, value in {"W_z": W_z, "U_z": U_z, "V_z": V_z, "b_z": b_z}.items():
            getattr(rnn.layers[0], name).fill_(value)
    x1, x2, a = 0.9, -1.1, 1.0
    A, B, C, D = 1.3, -0.7, 0.45, 0.6

    # forward, step 1: layer 1 UPDATE from zero
    i1, o1, g1 = (act(w1["W"][k] * x1 + w1["b"][k]) for k, act in ((1, sigm), (2, sigm), (3, math.tanh)))
    c1 = i1 * g1
    h1 = o1 * math.tanh(c1)
    assert W_z * x1 + b_z > 0, "layer 1 must fire at step 1"
    # layer 2 UPDATE from zero
    I, O, G = (act(w2["W"][k] * h1 + w2["b"][k]) for k, act in ((1, sigm), (2, sigm), (3, math.tanh)))
    c2 = I * G
    h2 = O * math.tanh(c2)
    # step 2: layer 1 FLUSH with z1[1] = 1, so that the cell of before is gone
    td = [w1["V"][k] * h2 for k in range(4)]
    s = [w1["U"][k] * h1 + td[k] + w1["W"][k] * x2 + w1["b"][k] for k in range(4)]
    f, i, o, g = sigm(s[0]), sigm(s[1]), sigm(s[2]), math.tanh(s[3])
    c = i * g
    s_z = U_z * h1 + V_z * h2 + W_z * x2 + b_z
    assert -1 < a * s_z < 0, "layer 1 must not fire at step 2, and its gradient must be alive"
    # layer 2 COPY, for z1[2] = 0 and z2 does not exist
    r = [w2["U"][k] * h2 + w2["b"][k] for k in range(4)]  # what its gates would have been
    F, I2, O2, G2 = sigm(r[0]), sigm(r[1]), sigm(r[2]), math.tanh(r[3])

    # backward, step 2, layer 2: h = (1 - z1[2]) h2 + z1[2] O2 tanh(c'), c' = (1 - z1[2]) c2 + z1[2] (F c2 + I2 G2)
    # where tanh(c') has no share in dc', as z1[2] = 0
    dz_2 = C + B * (O2 * math.tanh(c2) - h2) + D * (F * c2 + I2 * G2 - c2)
    dh2 = B
    # layer 1 at step 2: coefficients flush = z1[1], update = 1 - z1[1], copy = 0
    dh, dsz = A, dz_2 * a / 2
    dc = dh * o * (1 - math.tanh(c) ** 2)
    ds = [0.0, dc * g * i * (1 - i), dh * math.tanh(c) * o * (1 - o), dc * i * (1 - g * g)]
    # z1[1] in step 2: gates V h2; chooses between i g and f c1 + i g; flush + update stays 1
    dz_1 = sum(ds[k] * td[k] for k in range(4)) + dsz * V_z * h2 + dc * (i * g - (f * c1 + i * g))
    dh1 = sum(ds[k] * w1["U"][k] for k in range(4)) + dsz * U_z
    dh2 += sum(ds[k] * w1["V"][k] for k in range(4)) + dsz * V_z
    # step 1, layer 2: UPDATE, from h = c = 0
    dc2 = D + dh2 * O * (1 - math.tanh(c2) ** 2)
    dS = [0.0, dc2 * G * I * (1 - I), dh2 * math.tanh(c2) * O * (1 - O), dc2 * I * (1 - G * G)]
    dz_1 += sum(dS[k] * w2["W"][k] * h1 for k in range(4))  # gates W h1
    dz_1 += dh2 * O * math.tanh(c2) + dc2 * I * G  # UPDATE instead of COPY: of zeros
    dh1 += sum(dS[k] * w2["W"][k] for k in range(4))
    # step 1, layer 1: UPDATE
    dsz1 = dz_1 * a / 2
    dc1 = dh1 * o1 * (1 - math.tanh(c1) ** 2)
    ds1 = [0.0, dc1 * g1 * i1 * (1 - i1), dh1 * math.tanh(c1) * o1 * (1 - o1), dc1 * i1 * (1 - g1 * g1)]

    by_hand = {
        "layers.0.W": [ds[k] * x2 + ds1[k] * x1 for k in range(4)],
        "layers.0.U": [ds[k] * h1 for k in range(4)],
        "layers.0.V": [ds[k] * h2 for k in range(4)],
        "layers.0.b": [ds[k] + ds1[k] for k in range(4)],
        "layers.0.W_z": [dsz * x2 + dsz1 * x1],
        "layers.0.U_z": [dsz * h1],
        "layers.0.V_z": [dsz * h2],
        "layers.0.b_z": [dsz + dsz1],
        "layers.1.W": [dS[k] * h1 for k in range(4)],
        "layers.1.U": [0.0] * 4,
        "layers.1.b": dS,
    }
    out, state = rnn(torch.tensor([[[x1]], [[x2]]], dtype=torch.float64))
    assert out.operations[:, 0].tolist() == [[0, 0], [2, 1]]
    (A * out.h[0][1] + B * out.h[1][1] + C * out.z[1] + D * state.c[1]).sum().backward()
    assert set(by_hand) == {name for name, _ in rnn.named_parameters()}
    for name, parameter in rnn.named_parameters():
        expected = torch.tensor(by_hand[name], dtype=torch.float64)
        torch.testing.assert_close(parameter.grad.flatten(), expected, rtol=1e-13, atol=1e-14)


def surrogate_run(weights, call, slope, hold, frozen=None):
    """The network in which each hard z is z0 + hardsigm(s) - hardsigm(s0), with z0 and s0 of an unperturbed run."""
    T, L = len(call["x"]), len(weights)
    state = call["state"]
    h, c = list(state.h), list(state.c)
    z = [*(state.z[:, l : l + 1] for l in range(L - 1)), torch.zeros(len(state.z), 1, dtype=torch.float64)]
    record, results = [], []
    for t in range(T):
        below, z_below = call["x"][t], torch.ones_like(z[0])
        for l in range(L):

            def shifted(z_tilde, at=(t, l)):
                record.append((at, bound(z_tilde, "step").detach(), z_tilde.detach()))
                if frozen is None:
                    return bound(z_tilde, "step")
                z0, z_tilde0 = frozen[at]
                return z0 + z_tilde - z_tilde0

            above = h[l + 1] if l + 1 < L else None
            h[l], c[l], z[l] = layer_step(
                weights[l], h[l], c[l], z[l], below, z_below, above, slope=slope, bound=shifted, hold=hold
            )
            below, z_below = h[l], z[l]
            results += [h[l], z[l]]
    return torch.cat([tensor.flatten() for tensor in [*results, *h, *c]]), {at: rest for at, *rest in record}


@given(cases(boundaries=("step",), max_size=4, max_steps=5), st.integers(0, 2**31))
@settings(max_examples=40)
def test_step_gradient_is_that_of_the_surrogate(case, seed):
    case = Case(**{**case.__dict__, "carried": True, "given": False, "padded": False, "scale": 0.8})
    rnn, call = case.network(), case.call()
    hold = case.options["copy_boundary"] == "hold"
    generator = torch.Generator().manual_seed(seed)
    parameters = list(rnn.parameters())

    out, state = rnn(**call)
    length = sum(tensor.numel() for tensor in [*out.h, out.z, *state.h, *state.c])
    # the reference's outputs in the order of the surrogate's: by step and layer
    zs = [*(out.z[..., l : l + 1] for l in range(rnn.num_layers - 1)), torch.zeros(case.T, case.B, 1).double()]
    ours = [
        out.h[l][t].flatten() if k == 0 else zs[l][t].flatten()
        for t in range(case.T)
        for l in range(rnn.num_layers)
        for k in (0, 1)
    ]
    ours = torch.cat([*ours, *(v.flatten() for v in (*state.h, *state.c))])
    assert len(ours) == length + case.T * case.B  # the last layer's zero z is in it too
    loss_weights = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    gradients = torch.autograd.grad((ours * loss_weights).sum(), parameters)

    base, frozen = surrogate_run(rnn.weights(), call, case.slope, hold)
    torch.testing.assert_close(base, ours, rtol=0, atol=1e-14)

    def loss(step, direction):
        shifted = {id(p): p.detach() + step * d for p, d in zip(parameters, direction, strict=True)}
        weights = [LayerWeights(*(None if w is None else shifted[id(w)] for w in layer)) for layer in rnn.weights()]
        with torch.no_grad():
            values, record = surrogate_run(weights, call, case.slope, hold, frozen)
        return (values * loss_weights).sum().item(), {at: (z > 0) & (z < 1) for at, (_, z) in record.items()}

    for _ in range(2):
        direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        step = 1e-6
        (up, alive_up), (down, alive_down) = loss(step, direction), loss(-step, direction)
        # a corner of hardsigm inside the interval leaves no derivative to compare with
        assume(all((alive_up[at] == alive_down[at]).all() for at in alive_up))
        expected = sum((g * d).sum().item() for g, d in zip(gradients, direction, strict=True))
        measured = (up - down) / (2 * step)
        scale = max(1.0, abs(expected), abs(measured), *(abs(g).max().item() for g in gradients))
        assert abs(measured - expected) < 2e-6 * scale, (measured, expected)


def test_hard_sigmoid_has_no_derivative_at_its_corners():
    s = torch.tensor([-1.5, -0.5, -0.4999, 0.0, 0.4999, 0.5, 1.5], dtype=torch.float64, requires_grad=True)
    hard_sigmoid(s, 2.0).sum().backward()
    assert s.grad.tolist() == [0, 0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("boundary", ["step", "sample"])
def test_bound_is_exact_and_straight_through(boundary):
    s = torch.linspace(-2, 2, 101, dtype=torch.float64, requires_grad=True)
    z = bound(hard_sigmoid(s, 1.0), boundary, torch.full_like(s, 0.5))
    assert z.tolist() == [float(v > 0) for v in s.tolist()]
    z.sum().backward()
    assert s.grad.tolist() == [0.5 if abs(v) < 1 else 0.0 for v in s.tolist()]


@given(cases())
@settings(max_examples=60)
def test_every_parameter_gets_a_gradient(case):
    """Also where a layer has no event or its detector is not used: a missing one would hang distributed training."""
    rnn = case.network()
    out, _ = rnn(**case.call())
    sum(h.sum() for h in out.h).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in rnn.parameters())


def gradients_by_given(boundaries: torch.Tensor, dtype: torch.dtype, seed: int = 0) -> float:
    """The largest, of a network of three layers with layer normalisation that starts at zero."""
    torch.manual_seed(seed)
    rnn = HMLSTM(8, [16, 16, 16], dtype=torch.float64).to(dtype)
    out, _ = rnn(torch.randn(*boundaries.shape[:2], 8, dtype=torch.float64).to(dtype), boundaries=boundaries)
    found = torch.autograd.grad(sum(h.square().sum() for h in out.h), list(rnn.parameters()))
    largest = torch.stack([gradient.abs().max() for gradient in found])
    return largest.max().item() if largest.isfinite().all() else float("inf")


def test_events_of_a_layer_that_got_nothing_yet_multiply_the_gradient():
    """Where a boundary of layer 2 stands without one of layer 1, layer 3 is handed zeros. There layer normalisation has
    a derivative of 1/sqrt(eps), twice in each event: what docs/deviations.md says of boundaries that are given."""
    found = []
    for events in range(4):
        boundaries = torch.zeros(12, 1, 2)
        boundaries[:events, :, 1] = 1
        boundaries[10:] = 1
        found.append(gradients_by_given(boundaries, torch.float64))
    assert found[0] < 1e4
    assert all(after > 1e5 * before for before, after in itertools.pairwise(found))


def test_boundaries_that_are_nested_keep_gradients_finite():
    generator = torch.Generator().manual_seed(0)
    apart = [(torch.rand(100, 8, 2, generator=generator) < 0.2).float() for _ in range(20)]
    assert max(gradients_by_given(z, torch.float32, seed) for seed, z in enumerate(apart)) > 1e20
    assert max(gradients_by_given(z.cumprod(-1), torch.float32, seed) for seed, z in enumerate(apart)) < 1e6
