"""The event-driven engines against the reference: outputs, states and every gradient."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from support.networks import Case, assert_equal, cases, results

from hmrnn import COPY, HMLSTM, UPDATE, HMLSTMState, Symbols, TextModel, TextModelConfig, engines
from hmrnn.engines import reference
from hmrnn.recurrent import Call

ENGINES = ["events", "native"]


@pytest.mark.parametrize("engine", ENGINES)
@given(case=cases(drops=True))
@settings(max_examples=300)
def test_engine_is_the_reference(engine, case):
    assert_equal(results(case, engine), results(case, "reference"), 1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("copy_boundary", ["hold", "recompute"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_sizes_that_fill_and_overflow_every_block(engine, copy_boundary, layer_norm):
    """Wider than a panel, a tile and a depth block of the matrix products, and one more."""
    options = {"layer_norm": layer_norm, "copy_boundary": copy_boundary, "dropout": 0.25, "weight_drop": 0.5}
    case = Case(37, [70, 131, 5], T=7, B=14, seed=4, bias=0.1, scale=0.7, options=options, carried=True, padded=True)
    assert_equal(results(case, engine), results(case, "reference"), 1e-10)
    wide = Case(3, [140, 3], T=2, B=3, seed=4, bias=0.1, scale=0.7, options=options)  # backward depth 560
    assert_equal(results(wide, engine), results(wide, "reference"), 1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_layer_of_another_network_as_input(engine):
    """Which of its values are repeated has a gradient, unlike a table of embedded symbols."""

    def gradients(engine: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        lower, upper = (HMLSTM(*sizes, engine=engine, dtype=torch.float64) for sizes in ((4, [6, 6]), (6, [5, 5])))
        out, _ = lower(torch.randn(9, 3, 4, dtype=torch.float64))
        out, _ = upper(out.steps[1])
        weights = torch.randn(9, 3, 5, dtype=torch.float64)
        sum((h * weights).sum() for h in out.h).backward()
        both = [*lower.named_parameters("lower"), *upper.named_parameters("upper")]
        return {name: parameter.grad for name, parameter in both}

    assert_equal(gradients(engine), gradients("reference"), 1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@given(case=cases())
@settings(max_examples=50)
def test_engine_in_float32(engine, case):
    """To rounding, against the reference in float64.

    A sum of n products in float32 is off by some n * 2^-24 of its terms' size; n is at most 40 here, and a step passes
    its error on to the next, of at most 9. Layer normalisation magnifies that, by up to 1/sqrt(eps) for a vector of
    nearly equal numbers: layers have at least 5 units, and the reference's own error is allowed on top. Boundaries are
    given: one that rounding turns over would be no error.
    """
    sizes = [size + 4 for size in case.hidden_sizes]
    case = Case(**{**case.__dict__, "hidden_sizes": sizes, "given": True, "scale": 1.0})
    truth, ours, reference = (
        results(case, *how) for how in (("reference",), (engine, torch.float32), ("reference", torch.float32))
    )
    scale = max(1.0, *(value.abs().max().item() for value in truth.values() if value.numel()))
    magnified = max((reference[name] - value).abs().max().item() for name, value in truth.items() if value.numel())
    assert_equal(
        {name: value.double() for name, value in ours.items()}, truth, 24 * 9 * 2**-24 + 20 * magnified / scale
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_gradcheck_with_given_boundaries(engine):
    case = Case(2, [3, 2, 2], T=4, B=2, seed=3, options={"layer_norm": True}, scale=0.7, carried=True, given=True)
    rnn, call = case.network(engine), case.call()
    names = [name for name, _ in rnn.named_parameters()]

    def run(x, *parameters):
        arguments = {**call, "x": x}
        out, end = torch.func.functional_call(rnn, dict(zip(names, parameters, strict=True)), (), arguments)
        return (*out.h, *end.c, *end.h)

    class Rerun(torch.autograd.Function):
        """gradcheck goes backward through one graph many times, which these engines refuse: a new graph for each."""

        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            with torch.no_grad():
                return run(*inputs)

        @staticmethod
        def backward(ctx, *grads):
            inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            with torch.enable_grad():
                return torch.autograd.grad(run(*inputs), inputs, grads, materialize_grads=True)

    inputs = [call["x"].requires_grad_(), *(parameter.detach().requires_grad_() for parameter in rnn.parameters())]
    assert torch.autograd.gradcheck(Rerun.apply, inputs)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_native_with_any_number_of_threads(threads):
    case = Case(5, [20, 18, 6], T=12, B=7, seed=8, scale=0.8, carried=True, options={"copy_boundary": "recompute"})
    expected = results(case, "reference")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert_equal(results(case, "native"), expected, 1e-10)
    finally:
        torch.set_num_threads(before)


@given(case=cases())
@settings(max_examples=100)
def test_a_stream_of_single_steps_is_the_reference(case):
    """Without a gradient, native takes another path for a single step."""
    case = Case(**{**case.__dict__, "padded": False})
    call = case.call()
    rnn = case.network("native")
    with torch.no_grad():
        whole, end = case.network("reference")(**call)
        state, generator = call["state"], case.call().get("generator")
        for t in range(case.T):
            given_z = None if call["boundaries"] is None else call["boundaries"][t]
            out, state = rnn.step(call["x"][t], state, given_z, call["slope"], generator)
            torch.testing.assert_close(out.h, tuple(h[t] for h in whole.h), rtol=0, atol=1e-12)
            assert torch.equal(out.z, whole.z[t])
            assert torch.equal(out.operations, whole.operations[t])
    for name in ("h", "c", "z"):
        torch.testing.assert_close(getattr(state, name), getattr(end, name), rtol=0, atol=1e-12)


def test_a_layer_that_copies_is_not_touched_in_a_stream():
    rnn = HMLSTM(3, [4, 4, 4], boundary_bias=-9.0, engine="native")
    with torch.no_grad():
        _, before = rnn.step(torch.randn(1, 3))
        out, after = rnn.step(torch.randn(1, 3), before)
    assert out.operations.tolist() == [[UPDATE, COPY, COPY]]
    assert after.h[1] is before.h[1] or after.h[1].data_ptr() == before.h[1].data_ptr()
    assert after.h[0].data_ptr() != before.h[0].data_ptr()


@pytest.mark.parametrize("engine", ENGINES)
@given(case=cases())
@settings(max_examples=80)
def test_evaluation_is_the_reference(engine, case):
    """Without a graph the engines keep less and skip more."""
    with torch.no_grad():
        (out, end), (expected, expected_end) = (case.network(name)(**case.call()) for name in (engine, "reference"))
    torch.testing.assert_close(out.h, expected.h, rtol=0, atol=1e-12)
    assert torch.equal(out.z, expected.z)
    assert torch.equal(out.operations, expected.operations)
    for name in ("h", "c", "z"):
        torch.testing.assert_close(getattr(end, name), getattr(expected_end, name), rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_first_and_tensors_that_are_not_contiguous(engine):
    case = Case(
        5, [9, 8, 6], T=12, B=7, seed=8, scale=0.8, carried=True, padded=True, options={"copy_boundary": "recompute"}
    )

    def gradients(name, strided):
        rnn, call = case.network(name), case.call()
        rnn.batch_first = True
        x = call["x"].transpose(0, 1)
        x = (torch.stack([x, x], dim=-1)[..., 0] if strided else x.contiguous()).requires_grad_()
        if strided:
            with torch.no_grad():
                for layer in rnn.layers:
                    layer.U.data = layer.U.data.T.contiguous().T
            call["state"] = HMLSTMState(
                tuple(h.T.contiguous().T for h in call["state"].h), call["state"].c, call["state"].z.T.contiguous().T
            )
        out, end = rnn(**{**call, "x": x})
        assert out.h[1].shape == (7, 12, 8)
        weights = torch.linspace(-1, 1, 12, dtype=torch.float64).view(1, 12, 1)
        loss = sum((h * weights).sum() for h in out.h) + out.z.sum() + sum(c.sum() for c in end.c)
        return torch.autograd.grad(loss, [x, *rnn.parameters()])

    expected = gradients("reference", strided=False)
    torch.testing.assert_close(gradients(engine, strided=True), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("wanted", ["x", "state", "some parameters"])
def test_gradients_of_a_part(engine, wanted):
    case = Case(3, [5, 4, 3], T=8, B=3, seed=8, scale=0.8, carried=True)

    def gradients(name):
        rnn, call = case.network(name).requires_grad_(False), case.call()
        leaves = {
            "x": [call["x"]],
            "state": [*call["state"].h],
            "some parameters": [rnn.layers[0].U, rnn.layers[1].b_z],
        }
        for leaf in leaves[wanted]:
            leaf.requires_grad_()
        out, _ = rnn(**call)
        return torch.autograd.grad(out.h[2].sum() + out.z.sum(), leaves[wanted])

    torch.testing.assert_close(gradients(engine), gradients("reference"), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_graph_over_two_calls(engine):
    case = Case(3, [5, 4, 3], T=9, B=3, seed=8, scale=0.8, options={"copy_boundary": "recompute"})

    def gradients(name, cut):
        rnn, x = case.network(name), case.call()["x"]
        _, state = rnn(x[:cut])
        out, _ = rnn(x[cut:], state)
        return torch.autograd.grad(out.h[2][-1].sum() + out.z[-1].sum(), list(rnn.parameters()))

    torch.testing.assert_close(gradients(engine, 4), gradients("reference", 4), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("changed", ["x", "a weight", "hidden states"])
def test_a_change_in_place_before_backward_is_noticed(engine, changed):
    rnn, x = HMLSTM(3, [4, 4], engine=engine), torch.randn(5, 2, 3)
    out, _ = rnn(x)
    loss = out.h[1].sum()
    with torch.no_grad():
        {"x": x, "a weight": rnn.layers[0].U, "hidden states": out.steps[0].values}[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("engine", ENGINES)
def test_boundaries_that_are_written_into_change_no_gradient(engine):
    def gradient(write):
        rnn = Case(3, [5, 4, 3], T=9, B=3, seed=8).network(engine)
        out, _ = rnn(torch.linspace(-1, 1, 81, dtype=torch.float64).view(9, 3, 3))
        if write:
            out.z.detach().zero_()
        return torch.autograd.grad(out.h[2].sum(), rnn.layers[0].W)[0]

    assert torch.equal(gradient(True), gradient(False))


def test_a_stream_leaves_the_graph():
    rnn = HMLSTM(3, [4, 4, 4], boundary_bias=-9.0, engine="native")
    _, state = rnn(torch.randn(5, 2, 3))
    with torch.no_grad():
        out, state = rnn.step(torch.randn(2, 3), state)
    assert not any(t.requires_grad for t in (*out.h, out.z, *state.h, *state.c, state.z))
    out.z.fill_(7)
    assert (state.z != 7).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_under_autocast_and_with_another_default_device(engine):
    """`native` rounds operands under autocast (test_bfloat16.py) unless it is told not to; `events` does not."""
    case = Case(3, [5, 4, 3], T=6, B=3, seed=8)
    rnn, x = case.network(engine, torch.float32), case.call(torch.float32)["x"]
    rnn.precision = "float32"
    expected, _ = rnn(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = rnn(x)
        out.h[2].sum().backward()
    torch.testing.assert_close(out.h, expected.h, rtol=0, atol=0)
    with torch.device("meta"), torch.no_grad():
        out, state = rnn(x)
        step, _ = rnn.step(x[0], state)
    torch.testing.assert_close(out.h, expected.h, rtol=0, atol=0)
    assert step.h[0].device.type == "cpu"


def test_tanh_keeps_its_digits_near_zero():
    rnn = HMLSTM(1, [1], layer_norm=False, engine="native")
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.zero_()
        rnn.layers[0].b[3] = 1e-6
        out, _ = rnn(torch.zeros(2, 1, 1))
    assert out.h[0][0].item() == pytest.approx(0.25e-6, rel=1e-5)  # sigm(0) * tanh(sigm(0) * tanh(1e-6))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_map_over_distinct_values_has_the_gradient_of_one_over_all_steps(engine):
    """Also where the map is not linear: the boundaries' gradient goes through its derivative."""
    case = Case(4, [6, 5, 5], T=14, B=4, seed=2, bias=-0.2, scale=0.8, options={"copy_boundary": "recompute"})
    weight = torch.randn(3, 5, dtype=torch.float64)

    def gradients(name, apply):
        rnn = case.network(name)
        out, _ = rnn(**case.call())
        loss = (apply(out.steps[1]) * torch.linspace(-1, 1, 3, dtype=torch.float64)).square().sum()
        return torch.autograd.grad(loss, list(rnn.parameters()), materialize_grads=True)

    def f(h):
        return (h @ weight.T).tanh() ** 3

    expected = gradients("reference", lambda steps: f(steps.dense()))
    for apply in (lambda steps: f(steps.dense()), lambda steps: steps.map(f).dense()):
        torch.testing.assert_close(gradients(engine, apply), expected, rtol=0, atol=1e-10)
    assert max(g.abs().max() for g in expected) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_model_has_the_gradients_of_the_reference(engine):
    text = "how much wood would a woodchuck chuck"

    def gradients(name):
        torch.manual_seed(0)
        config = TextModelConfig(hidden_sizes=(12, 10, 8), output_size=11, embedding_size=6, boundary_bias=(0.0, -0.1))
        model = TextModel(Symbols.of(text), config, engine=name).double()
        out, _ = model(model.symbols.encode(text).view(-1, 1).repeat(1, 3))
        assert 0 < out.rnn.z.mean() < 1
        assert model.rnn.engine == name
        return torch.autograd.grad(out.logits.square().sum(), list(model.parameters()))

    torch.testing.assert_close(gradients(engine), gradients("reference"), rtol=1e-10, atol=1e-10)


def test_the_output_module_works_once_an_event():
    model = TextModel(Symbols.of("ab"), TextModelConfig(hidden_sizes=(8, 8), output_size=8, boundary_bias=-9.0))
    rows = []
    model.output.embeddings[1].register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    with torch.no_grad():
        model(torch.zeros(50, 4, dtype=torch.int64))
    assert rows == [4], "the second layer never had an event: only its initial state is there"


def test_two_hundred_training_steps_give_the_same_losses():
    def losses(engine):
        rnn = Case(4, [10, 8, 6], T=9, B=5, seed=1, scale=0.7, options={"layer_norm": True}).network(engine)
        optimizer = torch.optim.SGD(rnn.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(0)
        state, found = None, []
        for _ in range(200):
            x = torch.randn(9, 5, 4, generator=generator, dtype=torch.float64)
            out, state = rnn(x, None if state is None else state.detach())
            loss = (sum(h.sum(-1) for h in out.h) - x[..., 0]).square().mean() + 0.1 * out.z.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rnn.constrain_detectors()
            found.append(loss.item())
        return torch.tensor(found, dtype=torch.float64)

    expected = losses("reference")
    assert expected[-20:].mean() < 0.9 * expected[:20].mean(), "it learns"
    for engine in ENGINES:
        torch.testing.assert_close(losses(engine), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_backward_is_refused(engine):
    rnn = HMLSTM(3, [4, 4], engine=engine)
    out, _ = rnn(torch.randn(5, 2, 3))
    loss = out.h[1].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward\\(\\) twice"):
        loss.backward()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_derivative_is_refused(engine):
    """Torch would take it for 0, and a penalty on a gradient would have none without a word."""
    rnn, x = HMLSTM(3, [4, 4], engine=engine), torch.randn(5, 2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(rnn(x)[0].last.sum(), x, create_graph=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_backward_lets_go_of_the_tables(engine):
    rnn = HMLSTM(3, [4, 4], engine=engine)
    out, state = rnn(torch.randn(5, 2, 3))
    context = out.z.grad_fn
    assert context.saved is not None
    (out.h[1].sum() + state.c[0].sum()).backward()
    assert context.saved is None


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("engine", ENGINES)
def test_no_leak_over_500_steps(engine):
    rnn = HMLSTM(16, [128, 128, 128], engine=engine)
    x = torch.randn(4, 8, 16)

    def steps(count):
        for step in range(count):
            out, _ = rnn(x)
            if step % 2:  # a graph that is dropped without a backward pass must go, too
                sum(h.sum() for h in out.h).backward()
                rnn.zero_grad()

    steps(50)
    before = resident()
    steps(500)
    # one step's tables are about 0.3 MB: 500 of them would be 150
    assert resident() - before < 20e6


def test_the_choice_and_its_reason():
    def chosen(**options):
        rnn = HMLSTM(2, [3, 3], **options)
        return rnn.engine, rnn.engine_reason

    assert chosen() == ("native", "the fastest on a CPU")
    assert chosen(engine="native") == ("native", "asked for")
    assert chosen(engine="events") == ("events", "asked for")
    assert chosen(engine="reference") == ("reference", "asked for")
    for options, word in (
        ({"boundary": "soft"}, "soft"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
        ({"device": "meta"}, "meta"),
        ({"boundary": "soft", "engine": "native"}, "soft"),
    ):
        engine, reason = chosen(**options)
        assert engine == "reference"
        assert word in reason
        assert "\n" not in reason


@pytest.mark.parametrize("engine", ["native", "events", "triton"])
def test_an_engine_that_was_asked_for_on_a_device_that_it_never_runs_on(engine):
    """As after `.to("cuda")`; a machine without a GPU has a device without numbers to try it on."""
    rnn = HMLSTM(2, [3, 3], engine=engine).to("meta")
    for use in (lambda: rnn.engine, lambda: rnn(torch.zeros(4, 2, 2, device="meta"))):
        with pytest.raises(ValueError, match=f"the {engine} engine .*cpu.*on meta: move"):
            use()
    assert HMLSTM(2, [3, 3]).to("meta").engine == "reference"


def test_a_new_kind_of_boundary_is_computed_by_no_engine_that_does_not_declare_it(monkeypatch):
    cpu = torch.device("cpu")
    for name in ("auto", "native", "events"):
        with pytest.raises(ValueError, match="and these are noisy"):
            engines.choose(name, "noisy", cpu, torch.float32)
    declared = {**engines.ENGINES, "reference": replace(reference.ENGINE, boundaries=frozenset({"noisy"}))}
    monkeypatch.setattr(engines, "ENGINES", declared)
    engine, reason = engines.choose("native", "noisy", cpu, torch.float32)
    assert (engine, reason) == (
        "reference",
        "the native engine computes sample and step boundaries, and these are noisy",
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_refuses_a_kind_that_it_does_not_compute(engine):
    """Though nothing but the kind itself says so: there are no random numbers, as with `step`."""
    rnn = HMLSTM(2, [3, 3])
    call = Call(torch.randn(4, 2, 2), rnn.initial_state(2), None, None, 1.0, None)
    for kind in ("soft", "sample", "noisy"):
        with pytest.raises(ValueError, match="boundary"):
            engines.ENGINES[engine].run(rnn.weights(), call, engines.Rules(kind, True, None))
