"""Steering: the sums that detectors see, and the biases with which they would fire as often as they should."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrnn import HMLSTM
from hmrnn.baselines import HRNN, LSTM
from hmrnn.config import TrainingConfig
from hmrnn.sequence import COPY
from hmrnn.training.steering import FORCE, Steering, excesses


def network(seed: int, copy_boundary: str = "hold", engine: str = "reference") -> HMLSTM:
    torch.manual_seed(seed)
    rnn = HMLSTM(5, [7, 6, 4], copy_boundary=copy_boundary, engine=engine, dtype=torch.float64)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.normal_()
    return rnn


def asked(rnn: HMLSTM, operations: torch.Tensor, layer: int) -> torch.Tensor:
    return operations[..., layer if rnn.copy_boundary == "hold" else 0] != COPY


@given(
    st.integers(0, 10**6),
    st.sampled_from(["hold", "recompute"]),
    st.sampled_from(["reference", "events", "native"]),
    st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any),
)
@settings(max_examples=60)
def test_a_detector_fires_where_its_sum_is_positive(seed, copy_boundary, engine, lengths):
    rnn = network(seed, copy_boundary, engine)
    first, second = torch.randn(2, 9, 3, 5, dtype=torch.float64)
    _, before = rnn(first)
    out, _ = rnn(second, before.detach(), lengths)
    sums = rnn.detector_sums(second, before, out)
    for l in range(2):
        where = asked(rnn, out.operations, l)
        assert torch.equal((sums[..., l] > 0)[where], out.z[..., l][where] > 0.5)


@given(st.integers(0, 10**6), st.sampled_from(["hold", "recompute"]), st.floats(0.05, 0.95))
@settings(max_examples=60)
def test_without_the_excess_a_detector_would_have_fired_at_its_rate(seed, copy_boundary, rate):
    rnn = network(seed, copy_boundary)
    x = torch.randn(30, 4, 5, dtype=torch.float64)
    lengths = torch.tensor([30, 21, 1, 8])
    out, _ = rnn(x, lengths=lengths)
    sums = rnn.detector_sums(x, None, out)
    with torch.no_grad():
        excess = excesses(rnn, x, None, out, [rate, rate**2])
    for l in range(2):
        values = sums[..., l][asked(rnn, out.operations, l)]
        wanted = min(rate ** (l + 1) * 60, len(values))  # as many as there are steps to fire at
        # While a layer copies, its detector may say the same thing step after step: all of them fire, or none.
        assert int((values > excess[l]).sum()) <= wanted + 1
        assert int((values >= excess[l]).sum()) >= wanted - 1


def test_the_gradient_is_that_of_the_detectors_weights():
    rnn = network(3)
    x = torch.randn(6, 2, 5, dtype=torch.float64)
    out, _ = rnn(x)
    sums = rnn.detector_sums(x, None, out)
    sums[2:, :, 0].sum().backward()
    assert torch.allclose(rnn.layers[0].W_z.grad, x[2:].sum((0, 1)))
    assert torch.allclose(rnn.layers[0].U_z.grad, out.h[0][1:-1].sum((0, 1)).detach())
    assert rnn.layers[0].W.grad is None


def test_the_force_is_full_then_fades_then_ends():
    steering = Steering(TrainingConfig(target_rate=0.5, steered_updates=100), network(0))
    assert steering.targets == [0.5, 0.25]
    assert [steering.force(update) for update in (0, 49, 50)] == [FORCE] * 3
    assert steering.force(75) == pytest.approx(FORCE / 2)
    assert steering.force(100) == steering.force(1000) == 0
    before = [w.b_z.item() for w in steering.rnn.weights()[:-1]]
    steering.steer([1.0, -2.0], 100)
    assert [w.b_z.item() for w in steering.rnn.weights()[:-1]] == before
    steering.steer([1.0, -2.0], 0)
    after = [w.b_z.item() for w in steering.rnn.weights()[:-1]]
    assert after == pytest.approx([before[0] - FORCE, before[1] + 2 * FORCE])


def test_only_detectors_that_learn_are_steered():
    config = TrainingConfig(target_rate=0.5)
    for rnn in (LSTM(5, [7, 6]), HRNN(5, [7, 6])):
        steering = Steering(config, rnn)
        assert steering.force(0) == 0
        with steering.watching(0):
            rnn(torch.randn(4, 2, 5), boundaries=torch.zeros(4, 2, 1) if isinstance(rnn, HRNN) else None)
        assert steering.excess == []
    assert Steering(TrainingConfig(), network(0)).force(0) == 0


def test_it_looks_only_while_it_is_asked_to():
    steering = Steering(TrainingConfig(target_rate=0.5, steered_updates=10), network(0))
    x = torch.randn(4, 2, 5, dtype=torch.float64)
    with steering.watching(10):
        steering.rnn(x)
    steering.rnn(x)
    assert steering.excess == [0.0, 0.0]
    with steering.watching(9):
        steering.rnn(x)
    assert 0.0 not in steering.excess


@pytest.mark.parametrize("wrong", [{"target_rate": 0.0}, {"target_rate": 1.0}, {"steered_updates": -1}])
def test_bad_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainingConfig(**wrong)
