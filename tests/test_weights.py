"""Weights that are not what an HMLSTM made: of another shape, dtype or device, missing, made by hooks and
parametrizations; and tensors that do not lie in memory as they look."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from hmrnn import HMLSTM, ClockworkRNN, HMLSTMState, Symbols, TextModel, TextModelConfig
from hmrnn.domains.text.native import TextStream
from hmrnn.engines.native.products import linear
from hmrnn.equations import LayerWeights

ENGINES = ["native", "events", "reference"]
X = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(3))


def network(engine: str = "native", **options) -> HMLSTM:
    torch.manual_seed(1)
    return HMLSTM(5, [12, 9, 7], engine=engine, **options)


def forward(rnn: HMLSTM) -> Tensor:
    return rnn(X)[0].h[-1]


@torch.no_grad()
def evaluate(rnn: HMLSTM) -> Tensor:
    return rnn(X)[0].h[-1]


@torch.no_grad()
def stepped(rnn: HMLSTM) -> Tensor:
    state, found = None, []
    for x in X:
        out, state = rnn.step(x, state)
        found.append(out.h[-1])
    return torch.stack(found)


CALLS = [forward, evaluate, stepped]
PRESENT = [(l, name) for l in range(3) for name, w in network().layers[l]()._asdict().items() if w is not None]
ABSENT = [(2, name) for name in ("V", "W_z", "U_z", "V_z", "b_z")]


@pytest.mark.parametrize("fault", ["longer", "shorter", "flat", "double", "half", "meta", "sparse", "missing"])
@pytest.mark.parametrize("call", CALLS)
def test_native_refuses_a_weight_that_is_not_as_it_should_be(call, fault):
    """Every weight of every layer: the fault is named, and nothing is read beyond the end of a tensor."""
    for l, name in PRESENT:
        rnn = network()
        w = getattr(rnn.layers[l], name).detach()
        if (fault in ("shorter", "flat", "sparse") and w.dim() == 0) or (fault == "missing" and name == "gain"):
            continue  # (a layer without gain is one without normalisation)
        new = {
            "longer": lambda w: torch.cat([w, w]) if w.dim() else w.expand(3).clone(),
            "shorter": lambda w: w[:1].clone(),
            "flat": lambda w: w.reshape(-1, 1, 1),
            "double": Tensor.double,
            "half": Tensor.bfloat16,
            "meta": lambda w: w.to("meta"),
            "sparse": Tensor.to_sparse,
            "missing": lambda w: None,
        }[fault](w)
        if fault == "missing" and name == "gain_c":
            rnn.layers[l].bias_c = nn.Parameter(torch.zeros(3, 3))  # needless then, and refused
        setattr(rnn.layers[l], name, None if new is None else nn.Parameter(new))
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            call(rnn)


@pytest.mark.parametrize(("l", "name"), ABSENT)
def test_native_refuses_a_weight_that_a_layer_has_not(l, name):
    rnn = network()
    setattr(rnn.layers[l], name, nn.Parameter(torch.zeros(7)))
    with pytest.raises(ValueError, match=f"layers\\[{l}\\].{name} must be None"):
        forward(rnn)


def imaginary(tensor: Tensor) -> Tensor:
    """The same numbers, in a tensor whose memory holds their negatives, with gaps between them."""
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


def in_one_piece(tensor: Tensor) -> Tensor:
    """The same without gaps."""
    return torch._neg_view(-tensor)


NEGATIVES = [imaginary, in_one_piece]


@pytest.mark.parametrize("what", ["x", "state", "boundaries", "weights"])
@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("negative", NEGATIVES)
def test_tensors_that_are_negated_lazily(what, one, negative):
    assert negative(X).is_neg()
    rnn, x = network(), X[0] if one else X
    generator = torch.Generator().manual_seed(2)
    sizes = rnn.hidden_sizes
    h, c = (tuple(torch.randn(2, size, generator=generator) for size in sizes) for _ in range(2))
    state, given = HMLSTMState(h, c, torch.ones(2, 2)), torch.ones(*x.shape[:-1], 2)

    @torch.no_grad()
    def outcome(x: Tensor, state: HMLSTMState, given: Tensor) -> Tensor:
        out, end = (rnn.step if one else rnn)(x, state, boundaries=given)
        return torch.cat([part.flatten() for part in (*out.h, *end.c)])

    expected = outcome(x, state, given)
    if what == "x":
        x = negative(x)
    elif what == "state":
        state = HMLSTMState(tuple(map(negative, h)), tuple(map(negative, c)), negative(state.z))
    elif what == "boundaries":
        given = negative(given)
    else:
        for layer in rnn.layers:
            for name in LayerWeights._fields:
                if (w := getattr(layer, name)) is not None:
                    setattr(layer, name, nn.Parameter(negative(w.detach())))
    torch.testing.assert_close(outcome(x, state, given), expected, rtol=0, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("negative", NEGATIVES)
def test_a_gradient_that_is_negated_lazily(engine, negative):
    rnn = network(engine).double()
    x = X.double().requires_grad_()
    out, state = rnn(x)
    outputs = [out.steps[-1].values, state.c[0]]
    gradients = [torch.ones_like(value) for value in outputs]
    expected = torch.autograd.grad(outputs, x, gradients, retain_graph=engine == "reference")
    out, state = rnn(x)
    found = torch.autograd.grad([out.steps[-1].values, state.c[0]], x, [*map(negative, gradients)])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_text_stream_refuses_a_state_of_another_shape():
    model = TextModel(Symbols(("a", "b")), TextModelConfig("hm-lstm", 4, (6, 5), 4), engine="native")
    stream = TextStream(model, model.rnn.initial_state(1))
    for state in (model.rnn.initial_state(2), model.rnn.initial_state(1).to(torch.float64)):
        with pytest.raises((ValueError, TypeError)):
            stream.set(state)


@pytest.mark.parametrize("shape", [(3, 4), (4,), (2, 3, 5)])
def test_a_linear_map_refuses_what_it_can_not_multiply(shape):
    with pytest.raises(ValueError, match="can't be multiplied"):
        linear(torch.ones(2, 5), torch.ones(shape))


class Doubled(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return 2 * w


class Halvable(Doubled):
    def right_inverse(self, w: Tensor) -> Tensor:
        return w / 2


def old_weight_norm(layer: nn.Module, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and used
        nn.utils.weight_norm(layer, name)


def fill_b(layer: nn.Module, _) -> None:
    layer.b.data.fill_(0.5)


MADE = {
    "prune": lambda layer, name: prune.random_unstructured(layer, name, amount=0.5),
    "weight_norm": old_weight_norm,
    "parametrized weight_norm": lambda layer, name: parametrizations.weight_norm(layer, name),
    "parametrized": lambda layer, name: parametrize.register_parametrization(layer, name, Doubled()),
    "hook": lambda layer, name: layer.register_forward_pre_hook(fill_b),
}


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("how", MADE)
@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_are_made_from_others(engine, how, prepared):
    """In every call, in training and after it, the weights are what their hook or parametrization makes of them."""
    rnn = network(engine)
    if prepared:
        stepped(rnn)  # steps of the native engine keep what they have prepared
    for name in ("U", "W"):
        MADE[how](rnn.layers[0], name)
    optimiser = torch.optim.SGD(rnn.parameters(), lr=0.1)
    for _ in range(3):
        plain = network("reference")
        with torch.no_grad():
            for theirs, ours in zip(plain.layers, rnn.weights(), strict=True):
                for name, w in ours._asdict().items():
                    if w is not None:
                        getattr(theirs, name).copy_(w)
        for call in CALLS:
            torch.testing.assert_close(call(rnn), call(plain), rtol=0, atol=1e-5)
        optimiser.zero_grad()
        forward(rnn).square().sum().backward()
        assert all(p.grad is not None for p in rnn.layers[0].parameters())
        optimiser.step()


@pytest.mark.parametrize(
    "how",
    [
        lambda layer: parametrize.register_parametrization(layer, "U_z", Halvable()),
        lambda layer: prune.random_unstructured(layer, "U_z", amount=0.5),
    ],
)
def test_detectors_that_are_made_from_others_are_constrained(how):
    rnn = network()
    how(rnn.layers[0])

    def detector() -> Tensor:
        w = rnn.weights()[0]
        return torch.cat([w.W_z, w.U_z, w.V_z]).detach()

    before = detector()
    rnn.constrain_detectors(0.1)
    assert detector().norm().item() == pytest.approx(0.1, rel=1e-5)
    torch.testing.assert_close(detector(), before * (0.1 / before.norm()))


def test_what_a_pruned_detector_has_lost_stays_as_it_was():
    rnn = network()
    prune.random_unstructured(rnn.layers[0], "U_z", amount=0.5)
    lost, before = rnn.layers[0].U_z_mask == 0, rnn.layers[0].U_z_orig.clone()
    rnn.constrain_detectors(0.1)
    torch.testing.assert_close(rnn.layers[0].U_z_orig[lost], before[lost], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (lambda layer: parametrize.register_parametrization(layer, "V_z", Doubled()), "right_inverse"),
        (lambda layer: old_weight_norm(layer, "V_z"), "by a hook"),
    ],
)
def test_detectors_that_can_not_be_constrained_say_so(how, why):
    """And nothing has changed then."""
    rnn = network()
    how(rnn.layers[0])
    before = [w.clone() for w in rnn.parameters()]
    with pytest.raises(RuntimeError, match=why):
        rnn.constrain_detectors(0.1)
    for w, old in zip(rnn.parameters(), before, strict=True):
        torch.testing.assert_close(w, old, rtol=0, atol=0)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("left", [0, 16])
def test_native_reads_no_storage_that_was_freed(call, left):
    """As FSDP and others free the storage of a tensor and leave its shape. Of all weights, in their order."""
    for l, name in PRESENT:
        rnn = network()
        weight = getattr(rnn.layers[l], name)
        weight.untyped_storage().resize_(min(left, weight.untyped_storage().nbytes() - 4))
        with pytest.raises(ValueError, match=rf"{name} has no memory"):
            call(rnn)


def test_native_reads_no_input_or_state_that_was_freed():
    for kind, step in itertools.product(("x", "h", "c"), (False, True)):
        rnn, x = network(), X.clone()
        state = rnn.initial_state(2)
        with torch.no_grad():
            x_at_hand = x[0].clone() if step else x
            freed = x_at_hand if kind == "x" else getattr(state, kind)[1]
            rnn.step(X[0], state)
            freed.untyped_storage().resize_(0)
            with pytest.raises(ValueError, match="no memory"):
                rnn.step(x_at_hand, state) if step else rnn(x_at_hand, state)


def test_a_bias_that_is_made_from_another_is_shifted():
    rnn = network()
    parametrize.register_parametrization(rnn.layers[0], "b_z", Halvable())
    before = rnn.layers[0].b_z.item()
    rnn.shift_detectors([0.25, 0.5])
    assert rnn.layers[0].b_z.item() == pytest.approx(before + 0.25)


@pytest.mark.parametrize("engine", [*ENGINES, "native bfloat16"])
@pytest.mark.parametrize("scale", [1e20, 1e22, 1e30, 1e37, float("inf"), float("nan")])
def test_what_overflows_in_layer_normalisation_is_not_finite(scale, engine):
    """A variance beyond float32 must not end as a finite and wrong number, whichever way a step is computed."""
    name, _, precision = engine.partition(" ")
    rnn, x = network(engine=name, precision=precision or "float32"), (X * scale).requires_grad_()
    for found in (rnn(x)[0].h[0][0], rnn.step(x.detach()[0])[0].h[0]):
        assert found.isnan().all()
    with torch.no_grad():
        assert rnn(x)[0].h[0][0].isnan().all()
        assert rnn.step(x[0])[0].h[0].isnan().all()
    rnn(x)[0].h[0].sum().backward()
    assert x.grad[0].isnan().all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("exponent", torch.arange(17.5, 19.6, 0.1).tolist())
def test_near_overflow_layer_normalisation_is_right_or_nothing(exponent, engine):
    """Where exactly the variance overflows is a matter of how an engine sums. What it puts out is not."""
    rnn, x = network(engine=engine), X[:1] * 10**exponent
    with torch.no_grad():
        found, expected = rnn(x)[0].h[0], network().double()(x.double())[0].h[0]
    nothing = found.isnan()
    assert torch.equal(nothing.any(-1), nothing.all(-1))
    torch.testing.assert_close(found.double()[~nothing], expected[~nothing], rtol=1e-4, atol=1e-5)
    assert exponent > 18.4 or not nothing.any()


@pytest.mark.parametrize("engine", [*ENGINES, "native bfloat16"])
@pytest.mark.parametrize("scale", [3e18, 1e19, 1e20, 1e30])
@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("boundary", ["step", "sample"])
def test_no_layer_is_finite_and_wrong_once_one_has_overflowed(scale, engine, stepwise, boundary):
    """A detector that sees NaN fires, so that the layers above see it, too."""
    name, _, precision = engine.partition(" ")
    rnn, x = network(name, precision=precision or "float32", boundary=boundary), X * scale
    truth = network("reference", boundary=boundary).double()
    with torch.no_grad():
        expected = truth(x.double(), generator=torch.Generator().manual_seed(4))[0].h
        if stepwise:
            found, state, generator = [], None, torch.Generator().manual_seed(4)
            for row in x:
                out, state = rnn.step(row, state, generator=generator)
                found.append(out.h)
            layers = [torch.stack(parts) for parts in zip(*found, strict=True)]
        else:
            layers = rnn(x, generator=torch.Generator().manual_seed(4))[0].h
    for layer, right in zip(layers, expected, strict=True):
        nothing = layer.isnan()
        tolerance = 0.05 if precision else 1e-4
        torch.testing.assert_close(layer.double()[~nothing], right[~nothing], rtol=tolerance, atol=tolerance)
    assert layers[-1][-1].isnan().all() or scale < 1e19


@pytest.mark.parametrize("engine", ENGINES)
def test_what_overflows_in_layer_normalisation_of_float64_is_not_finite(engine):
    rnn = network(engine=engine).double()
    with torch.no_grad():
        assert rnn(X.double() * 1e200)[0].h[0][0].isnan().all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cell_that_overflows_in_layer_normalisation_is_not_finite(engine):
    rnn = network(engine=engine)
    start = rnn.initial_state(2)
    huge = HMLSTMState(start.h, tuple(torch.randn_like(c) * 1e20 for c in start.c), start.z)
    assert rnn(X, huge)[0].h[0][0].isnan().all()
    with torch.no_grad():
        assert rnn.step(X[0], huge)[0].h[0].isnan().all()


def test_a_clockwork_network_that_overflows_is_not_finite():
    with torch.no_grad():
        assert ClockworkRNN(X.shape[-1], [4, 4])(X * 1e20)[0].h[0][0].isnan().all()
