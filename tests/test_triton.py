"""The Triton engine: on a GPU if there is one, else in Triton's interpreter, which runs the same kernels on the CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from support.commands import printed
from support.networks import Case, assert_equal, can_be_held_to, cases, results
from support.rounded import Rounding
from support.rounded import results as rounded

from hmrnn import HMLSTM, HMLSTMState, Symbols, TextModel, TextModelConfig, engines
from hmrnn.engines import triton as engine
from hmrnn.engines.types import Rules

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# An example takes most of a second: a failing one is shown as it was found.
UNSHRUNK = (Phase.explicit, Phase.generate)


def compare(case: Case) -> None:
    try:
        assert_equal(results(case, "triton", device=DEVICE), results(case, "reference", device=DEVICE), 1e-10)
    except AssertionError:
        assume(can_be_held_to(case, 1e-10))
        raise


@given(case=cases(drops=True, max_steps=6))
@settings(max_examples=24, phases=UNSHRUNK)
def test_engine_is_the_reference(case):
    compare(case)


@pytest.mark.gpu
@given(case=cases(drops=True))
@settings(max_examples=300, phases=UNSHRUNK)
def test_engine_is_the_reference_in_all_cases(case):
    compare(case)


@pytest.mark.parametrize("copy_boundary", ["hold", "recompute"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_sizes_that_fill_and_overflow_every_block(copy_boundary, layer_norm):
    """Powers of two, which leave no lane empty, and one more; above and below each other."""
    options = {"layer_norm": layer_norm, "copy_boundary": copy_boundary, "dropout": 0.25, "weight_drop": 0.5}
    compare(Case(17, [64, 65, 16], T=3, B=4, seed=4, bias=0.1, scale=0.7, options=options, carried=True, padded=True))


def test_the_cases_fire_at_all_rates():
    """So that the tests above have seen UPDATE, COPY and FLUSH."""
    case = Case(4, [6, 5, 4], T=6, B=4, seed=5, scale=0.8, bias=0.1, options={"copy_boundary": "recompute"})
    out, _ = case.network("triton").to(DEVICE)(**case.call(device=DEVICE))
    assert sorted(set(out.operations.flatten().tolist())) == [0, 1, 2]
    compare(case)


@given(case=cases(max_steps=5))
@settings(max_examples=8, phases=UNSHRUNK)
def test_evaluation_is_the_reference(case):
    with torch.no_grad():
        (out, end), (expected, expected_end) = (
            case.network(name).to(DEVICE)(**case.call(device=DEVICE)) for name in ("triton", "reference")
        )
    torch.testing.assert_close(out.h, expected.h, rtol=0, atol=1e-12)
    assert torch.equal(out.z, expected.z)
    assert torch.equal(out.operations, expected.operations)
    for name in ("h", "c", "z"):
        torch.testing.assert_close(getattr(end, name), getattr(expected_end, name), rtol=0, atol=1e-12)


def test_batch_first_strides_and_a_graph_over_two_calls():
    case = Case(3, [5, 4, 3], T=6, B=3, seed=8, scale=0.8, carried=True, options={"copy_boundary": "recompute"})

    def gradients(name, strided):
        rnn, call = case.network(name).to(DEVICE), case.call(device=DEVICE)
        rnn.batch_first = True
        x = call["x"].transpose(0, 1)
        x = (torch.stack([x, x], dim=-1)[..., 0] if strided else x.contiguous()).requires_grad_()
        if strided:
            with torch.no_grad():
                for layer in rnn.layers:
                    layer.U.data = layer.U.data.T.contiguous().T
        state = call["state"]
        strange = HMLSTMState(tuple(h.T.contiguous().T for h in state.h), state.c, state.z.T.contiguous().T)
        _, between = rnn(x[:, :2], strange if strided else state)
        out, end = rnn(x[:, 2:], between)
        loss = sum(h.square().sum() for h in out.h) + out.z.sum() + sum(c.sum() for c in end.c)
        return torch.autograd.grad(loss, [x, *rnn.parameters()])

    torch.testing.assert_close(gradients("triton", True), gradients("reference", False), rtol=1e-10, atol=1e-10)


def test_the_slope_may_be_a_tensor():
    case = Case(3, [5, 4], T=5, B=3, seed=8, scale=0.8, bias=0.2)
    for name in ("triton", "reference"):
        rnn, x = case.network(name).to(DEVICE), case.call(device=DEVICE)["x"]
        by_number, by_tensor = (
            torch.autograd.grad(rnn(x, slope=slope)[0].h[1].sum(), rnn.layers[0].U)[0]
            for slope in (2.5, torch.full((), 2.5, dtype=torch.float64, device=DEVICE))
        )
        assert torch.equal(by_number, by_tensor)


@pytest.mark.parametrize("what", ["x", "c"])
def test_what_overflows_in_layer_normalisation_is_not_finite(what):
    """As in the other engines: see test_weights.py."""
    rnn = HMLSTM(3, [4, 4], engine="triton", device=DEVICE)
    x, state = torch.randn(2, 2, 3, device=DEVICE), rnn.initial_state(2)
    if what == "x":
        x *= 1e20
    else:
        state = HMLSTMState(state.h, tuple(torch.randn_like(c) * 1e20 for c in state.c), state.z)
    x.requires_grad_()
    with np.errstate(over="ignore", invalid="ignore"):  # numpy is Triton's interpreter
        out, _ = rnn(x, state)
        out.h[0].sum().backward()
    assert out.h[0].isnan().all()
    assert x.grad.isnan().all()
    assert out.z[1].eq(1).all(), "a detector that sees NaN fires"
    assert out.h[1][1].isnan().all()


def test_the_same_input_gives_the_same_bits():
    case = Case(4, [20, 9, 6], T=4, B=4, seed=1, scale=0.8, padded=True, carried=True)
    first, second = (results(case, "triton", torch.float32, DEVICE) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@given(case=cases(boundaries=("step",), max_size=3, max_steps=3))
@settings(max_examples=8, phases=UNSHRUNK, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@pytest.mark.skipif(DEVICE != "cpu", reason="this reference rounds on the CPU")
def test_bfloat16_rounds_operands_alone(case):
    """As the native engine does: see test_bfloat16.py."""
    sizes = [size + 2 for size in case.hidden_sizes]
    case = Case(**{**case.__dict__, "hidden_sizes": sizes, "given": True, "scale": 0.7})
    rounding = Rounding()
    expected = rounded(case, "reference", rounding)
    largest = max(value.abs().max().item() for value in expected.values() if value.numel())
    assume(rounding.nearest > 1e-3 and largest < 1e3)
    assert_equal(rounded(case, "triton"), expected, 1e-5)


def test_autocast_rounds_products():
    case = Case(5, [12, 9], T=4, B=3, seed=2, scale=0.7, given=True, options={"layer_norm": True})
    rnn, call = case.network("triton", torch.float32).to(DEVICE), case.call(torch.float32, DEVICE)
    whole, _ = rnn(**call)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert rnn.rounds_products
        rounded, _ = rnn(**call)
    off = (rounded.h[1] - whole.h[1]).abs().max().item()
    assert rounded.h[1].dtype == torch.float32
    assert 1e-4 < off < 0.1


def test_tanh_keeps_its_digits_and_saturates():
    rnn = HMLSTM(1, [1], layer_norm=False, engine="triton", device=DEVICE)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.zero_()
        for bias in (1e-6, -1e-6, 0.1249, 0.1251, 3.0, -200.0):
            rnn.layers[0].b[3] = bias
            out, _ = rnn(torch.zeros(1, 1, 1, device=DEVICE))
            expected = 0.5 * math.tanh(0.5 * math.tanh(bias))  # sigm(0) * tanh(sigm(0) * tanh(bias))
            assert out.h[0].item() == pytest.approx(expected, rel=2e-6)


def test_a_text_model_has_the_gradients_of_the_reference():
    text = "how much"

    def gradients(name):
        torch.manual_seed(0)
        config = TextModelConfig(hidden_sizes=(12, 10, 8), output_size=11, embedding_size=6, boundary_bias=(0.0, -0.1))
        model = TextModel(Symbols.of(text), config, engine=name).double().to(DEVICE)
        out, _ = model(model.symbols.encode(text).view(-1, 1).repeat(1, 3).to(DEVICE))
        assert 0 < out.rnn.z.mean() < 1
        assert model.rnn.engine == name
        return torch.autograd.grad(out.logits.square().sum(), list(model.parameters()))

    torch.testing.assert_close(gradients("triton"), gradients("reference"), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("changed", ["x", "a weight", "hidden states"])
def test_a_change_in_place_before_backward_is_noticed(changed):
    rnn, x = HMLSTM(3, [4, 4], engine="triton", device=DEVICE), torch.randn(3, 2, 3, device=DEVICE)
    out, _ = rnn(x)
    loss = out.h[1].square().sum()
    with torch.no_grad():
        {"x": x, "a weight": rnn.layers[0].U, "hidden states": out.steps[0].values}[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_backward_is_refused():
    rnn = HMLSTM(3, [4, 4], engine="triton", device=DEVICE)
    out, _ = rnn(torch.randn(3, 2, 3, device=DEVICE))
    loss = out.h[1].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward\\(\\) twice"):
        loss.backward()


def test_a_kind_of_boundary_that_it_does_not_compute_is_refused():
    rnn = HMLSTM(2, [3, 3], device=DEVICE)
    call = rnn._check(torch.randn(4, 2, 2, device=DEVICE), None, None, None, None, None)
    for kind in ("soft", "sample", "noisy"):
        with pytest.raises(ValueError, match="boundary"):
            engine.run(rnn.weights(), call, Rules(kind, True, None))


def test_the_choice_and_its_reason(monkeypatch):
    rnn = HMLSTM(2, [3, 3], engine="triton", device=DEVICE)
    assert (rnn.engine, rnn.engine_reason) == ("triton", "asked for")
    assert HMLSTM(2, [3, 3]).engine == "native"
    soft = HMLSTM(2, [3, 3], engine="triton", boundary="soft")
    assert (soft.engine, "soft" in soft.engine_reason) == ("reference", True)
    on_cpu = HMLSTM(2, [3, 3], engine="triton")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert on_cpu.engine == "native"
    assert "pip install 'hmrnn[gpu]'" in on_cpu.engine_reason
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "TRITON_INTERPRET=1" in on_cpu.engine_reason


def test_triton_is_not_imported_before_it_is_asked_for():
    code = "import sys, torch, hmrnn; hmrnn.HMLSTM(2, [3, 3])(torch.randn(4, 2, 2)); assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestSelfCheck:
    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path, monkeypatch):
        from hmrnn.engines.triton import selfcheck

        monkeypatch.setenv("HMRNN_CACHE", str(tmp_path))
        self.check, self.device, self.cache = selfcheck, torch.device(DEVICE), tmp_path / "triton"
        selfcheck.failure.cache_clear()
        yield
        selfcheck.failure.cache_clear()

    def test_it_passes_and_is_not_done_again(self, monkeypatch):
        assert self.check.failure(self.device) == ""
        (kept,) = self.cache.iterdir()
        assert json.loads(kept.read_text())["torch"] == torch.__version__
        self.check.failure.cache_clear()
        monkeypatch.setattr(self.check, "disagreement", lambda device: "asked again")
        assert self.check.failure(self.device) == ""
        # by someone else, or another version of anything: checked anew
        kept.chmod(0o666)
        self.check.failure.cache_clear()
        assert "asked again" in self.check.failure(self.device)
        kept.chmod(0o600)
        monkeypatch.setattr(torch, "__version__", "99.0")
        self.check.failure.cache_clear()
        assert "asked again" in self.check.failure(self.device)

    @pytest.mark.parametrize("wrong", ["a gradient", "no number", "a failure"])
    def test_a_wrong_kernel_is_found_and_not_used(self, wrong, monkeypatch):
        from hmrnn.engines.triton import buffers

        right = buffers.launch

        def launch(kernel, rows, t, tensors, constants):
            if wrong == "a failure":
                raise RuntimeError("no kernel image is available\nand more")
            right(kernel, rows, t, tensors, constants)
            if "d_operand" in kernel.arg_names and t == 0:
                tensors[kernel.arg_names.index("ds") - 2].mul_(1.0001 if wrong == "a gradient" else math.nan)

        monkeypatch.setattr(buffers, "launch", launch)
        reason = self.check.failure(self.device)
        assert reason.startswith(f"the triton engine failed its self-check on {DEVICE}: ")
        assert ("no kernel image" in reason) if wrong == "a failure" else ("gradient by" in reason)
        assert "\n" not in reason
        assert not self.cache.exists()
        declared = replace(engine.ENGINE, missing=lambda device, dtype: reason)
        monkeypatch.setitem(engines.ENGINES, "triton", declared)
        rnn = HMLSTM(2, [3, 3], engine="triton", device=DEVICE)
        assert (rnn.engine, rnn.engine_reason) == ("native" if DEVICE == "cpu" else "reference", reason)


class Captured(torch.autograd.Function):
    """What a CUDA graph does, without one: reads from and writes to places that were fixed when it was made."""

    @staticmethod
    def forward(ctx, graph, *tensors):
        with torch.no_grad():
            for place, tensor in zip(graph.places, tensors, strict=True):
                place.copy_(tensor)
        with torch.enable_grad():
            graph.outputs = graph.window(*graph.places)
        ctx.graph = graph
        return tuple(output.detach() for output in graph.outputs)

    @staticmethod
    def backward(ctx, *grads):
        graph = ctx.graph
        wanted = [place for place in graph.places if place.requires_grad]
        found = iter(torch.autograd.grad(graph.outputs, wanted, grads, allow_unused=True))
        return None, *(next(found) if place.requires_grad else None for place in graph.places)


class Capture:
    def __init__(self, window, places, allow_unused_input):
        assert allow_unused_input
        self.window, self.places, self.made = window, places, 0

    def __call__(self, *tensors):
        return Captured.apply(self, *tensors)


class TestGraphs:
    @pytest.fixture(autouse=True)
    def _captured(self, monkeypatch):
        from hmrnn.engines.triton import graphs

        self.made = []

        def capture(*arguments, **options):
            self.made.append(Capture(*arguments, **options))
            return self.made[-1]

        if DEVICE == "cpu":
            monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
            monkeypatch.setattr(graphs, "wanted", lambda device: os.environ.get("HMRNN_CUDA_GRAPHS") == "1")
        monkeypatch.setenv("HMRNN_CUDA_GRAPHS", "1")
        graphs.graphs.clear()
        yield
        graphs.graphs.clear()

    def test_a_graph_computes_what_its_launches_do(self, monkeypatch):
        options = {"dropout": 0.5, "weight_drop": 0.5}
        case = Case(4, [6, 5, 4], 3, 2, 1, "sample", options, scale=0.8, carried=True, padded=True)
        later = Case(**{**case.__dict__, "seed": 2, "slope": 3.0})  # other weights, other inputs: the same graph
        captured = [results(each, "triton", device=DEVICE) for each in (case, later)]
        assert len(self.made) == (1 if DEVICE == "cpu" else 0)
        monkeypatch.setenv("HMRNN_CUDA_GRAPHS", "0")
        for found, each in zip(captured, (case, later), strict=True):
            assert_equal(found, results(each, "triton", device=DEVICE), 1e-12)

    def test_each_shape_has_its_own(self):
        rnn = HMLSTM(3, [4, 4], engine="triton", device=DEVICE)
        for T in (2, 3, 2):
            rnn(torch.randn(T, 2, 3, device=DEVICE))[0].h[1].sum().backward()
        with torch.no_grad():
            out, _ = rnn(torch.randn(2, 2, 3, device=DEVICE))
            kept = out.h[0].clone()
            rnn(torch.randn(2, 2, 3, device=DEVICE))
        assert torch.equal(out.h[0], kept), "the next call does not write into what the last one gave"
        assert len(self.made) == (3 if DEVICE == "cpu" else 0)

    def test_a_window_that_was_overwritten_is_noticed(self):
        rnn = HMLSTM(3, [4, 4], engine="triton", device=DEVICE)
        x = torch.randn(2, 2, 3, device=DEVICE)
        first, second = rnn(x)[0].h[1].sum(), rnn(x)[0].h[1].sum()
        second.backward()
        with pytest.raises(RuntimeError, match="one window"):
            first.backward()


class TestOnAFakeGpu:
    def test_nothing_waits_for_it(self):
        (found,) = printed("fake_gpu.py", "no_wait")
        assert found["launches"] == 360  # 8 windows twice forward and once backward, 3 layers, 5 steps

    def test_nothing_waits_for_it_with_graphs(self):
        """A carried, padded window: two replays forward and one backward, and no launch beside them."""
        (found,) = printed("fake_gpu.py", "no_wait_with_graphs")
        assert found == {"float32": {"replay": 3}, "bfloat16": {"replay": 3}, "graphs": 2}

    def test_waiting_would_be_noticed(self):
        assert printed("fake_gpu.py", "a_wait_is_noticed") == [{"noticed": ["item", "nonzero", "cpu"]}]

    def test_a_step_is_twelve_launches(self):
        (found,) = printed("fake_gpu.py", "launches_of_a_step")
        kernels = {f"{way}_row of layer {l}": 1 for way in ("forward", "backward") for l in range(3)}
        assert found.pop("prim.device.default", 0) >= 0  # a tensor is asked where it is: no launch
        assert found == {"aten.mm.out": 6, **kernels}

    def test_auto_stays_with_the_reference_and_names_triton(self):
        (found,) = printed("fake_gpu.py", "auto_names_triton")
        assert found["engine"] == "reference"
        assert "engine='triton' can be asked for" in found["reason"]


def assert_compiles(units: str, targets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = printed("triton_targets.py", units, targets)
    assert len(found) == 2 * len(units.split(",")) * len(targets.split(","))
    assert [kernel for kernel in found if kernel["spilled"] > 0] == []


def test_kernels_compile_without_spills(tmp_path, monkeypatch):
    assert_compiles("512", "sm_80,gfx942", tmp_path, monkeypatch)


@pytest.mark.gpu
def test_kernels_compile_for_all_targets_without_spills(tmp_path, monkeypatch):
    assert_compiles("128,512,1024", "sm_75,sm_80,sm_90,sm_120,gfx942,gfx1100", tmp_path, monkeypatch)
