"""Guidance: the sums that detectors see, the biases with which they would fire as often as they should, and where."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrnn import HMLSTM
from hmrnn.config import TrainingConfig
from hmrnn.guidance.imitation import imitation
from hmrnn.guidance.steering import Seen, excesses, targets
from hmrnn.sequence import COPY


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
    excess = excesses(rnn, Seen(out, sums), [rate, rate**2])
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


def test_imitation_teaches_where_to_fire():
    """Uncertain after what the first input tells: a few hundred steps of gradient descent, and detectors say so."""
    rnn = network(1, engine="native")
    rnn.requires_grad_(False)
    detectors = [w for layer in rnn.weights()[:-1] for w in (layer.W_z, layer.U_z, layer.V_z, layer.b_z)]
    for weight in detectors:
        weight.requires_grad_(True)
    optimizer = torch.optim.Adam(detectors, lr=0.03)
    torch.manual_seed(0)
    for _ in range(300):
        x = torch.randn(20, 8, 5, dtype=torch.float64)
        out, _ = rnn(x)
        seen = Seen(out, rnn.detector_sums(x, None, out))
        loss = imitation(rnn, seen, x[..., :1], [0.3, 0.09])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rnn.shift_detectors([-0.4 * excess for excess in excesses(rnn, seen, [0.3, 0.09])])
    x = torch.randn(100, 8, 5, dtype=torch.float64)
    z = rnn(x)[0].z
    wanted = x[..., 0] > x[..., 0].quantile(0.7)
    assert ((z[..., 0] > 0.5) == wanted).double().mean() > 0.97
    assert 0.05 < z[..., 1].mean() < 0.15, "the second's inputs do not tell it where, but how often"


def test_imitation_leaves_it_to_steering_how_often_detectors_fire():
    """It does not gain by another bias, whatever the bias is. It used to, and inputs' weights grew to serve as one."""
    rnn = network(2)
    x = torch.randn(40, 8, 5, dtype=torch.float64)
    losses = []
    for shift in (0.0, 0.3, -0.6):
        rnn.shift_detectors([shift] * 2)
        boundaries = (torch.rand(40, 8, 2, generator=torch.Generator().manual_seed(0)) < 0.5).double()
        out, _ = rnn(x, boundaries=boundaries)
        loss = imitation(rnn, Seen(out, rnn.detector_sums(x, None, out)), x[..., :1], [0.3, 0.09])
        rnn.zero_grad()
        loss.backward()
        for layer in rnn.layers[:2]:
            assert abs(layer.b_z.grad.item()) < 1e-3 < layer.W_z.grad.norm().item()
        losses.append(loss.item())
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)


def test_each_detector_goes_by_its_own_kind_of_uncertainty():
    rnn = network(2)
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    out, _ = rnn(x)
    seen, rates = Seen(out, rnn.detector_sums(x, None, out)), [0.4, 0.1]
    kinds = torch.rand(6, 3, 3)
    whole = imitation(rnn, seen, kinds, rates)
    by_l = [imitation(rnn, seen, kinds[..., [l]], rates) for l in range(2)]
    assert whole.item() != pytest.approx(by_l[0].item())
    other = kinds.clone()
    other[..., 2] = -other[..., 2]  # there are two detectors: the third kind is nobody's
    assert imitation(rnn, seen, other, rates).item() == whole.item()
    first = imitation(rnn, seen, torch.stack([kinds[..., 0], kinds[..., 0]], dim=-1), rates)
    assert first.item() == pytest.approx(by_l[0].item()), "one kind is for all"


def test_targets_of_many_layers():
    assert targets([0.18], 4) == [0.18, 0.045, 0.01125, 0.01]
    assert targets([0.002], 2) == [0.002, 0.002]
    assert targets([0.19, 0.066], 3) == [0.19, 0.066, 0.0165], "what was read off the data comes first"
    assert targets([0.19, 0.066, 0.02], 1) == [0.19]


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_rate": 0.0},
        {"target_rate": 1.0},
        {"guided_updates": -1},
        {"uncertainty_weight": -1.0},
        {"cooldown": -0.1},
        {"cooldown": 1.1},
        {"cooldown": float("nan")},
    ],
)
def test_bad_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainingConfig(**wrong)
