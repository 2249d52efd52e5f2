"""StrokeModel: likelihood, saving, generation, segments, and its training."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import recorded_updates
from support.small_runs import Killed, killed_at, metrics, same_weights, torchrun

from hmrnn import StrokeModel, StrokeModelConfig
from hmrnn.config import TrainingConfig
from hmrnn.domains.strokes.config import (
    PRESETS,
    StrokeDataConfig,
    StrokeRunConfig,
    WritingConfig,
)
from hmrnn.domains.strokes.data.lines import load_strokes
from hmrnn.domains.strokes.data.points import Points
from hmrnn.domains.strokes.data.writing import write_lines
from hmrnn.domains.strokes.density import predicted_density
from hmrnn.domains.vectors.evaluation import log_likelihoods
from hmrnn.domains.vectors.generation import generate_points
from hmrnn.errors import UsageError
from hmrnn.sequence import COPY
from hmrnn.training.batches import NO_LINE, LineBatches, cut
from hmrnn.training.checkpoint import SavedRun
from hmrnn.training.distributed import Processes
from hmrnn.training.loop import Training
from hmrnn.training.run import prepare, train_run

SMALL = StrokeModelConfig(embedding_size=5, hidden_sizes=(8, 7, 6), output_size=9, components=3)
WRITING = WritingConfig(lines=40, words=(1, 2), spacing=6.0)


def lines_of(*lengths: int, seed: int = 0) -> list[Points]:
    random = np.random.default_rng(seed)
    lines = []
    for length in lengths:
        line = random.normal(3, 10, size=(length, 3)).astype(np.float32)
        line[:, 2] = random.random(length) < 0.1
        line[0, :2] = 0
        lines.append(line)
    return lines


def make_model(seed: int = 0, **changes) -> StrokeModel:
    torch.manual_seed(seed)
    model = StrokeModel(replace(SMALL, **changes)).double()
    model.normalise_as(lines_of(50, 60))
    return model


# Likelihood


def by_definition(model: StrokeModel, line: Points) -> float:
    """One step after the other, one row, nothing padded."""
    points = torch.from_numpy(line).double()
    nats, state = 0.0, None
    for t in range(len(line) - 1):
        out, state = model(points[t].view(1, 1, 3), state)
        scaled = (points[t + 1] - model.mean) / model.deviation
        nats += out.density[0, 0].log_prob(scaled).item()
    return nats


@pytest.mark.parametrize("model", ["hm-lstm", "lstm", "clockwork"])
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 1000))
@settings(max_examples=12)
def test_a_lines_likelihood_depends_on_the_line_alone(model, lengths, seed):
    network, lines = make_model(seed, model=model), lines_of(*lengths, seed=seed)
    together = log_likelihoods(network, lines)
    assert together == pytest.approx([by_definition(network, line) for line in lines], rel=1e-10, abs=1e-10)


def test_windows_and_batches_change_nothing(monkeypatch):
    network, lines = make_model(), lines_of(*range(2, 90, 7))
    whole = log_likelihoods(network, lines)
    monkeypatch.setattr("hmrnn.domains.vectors.evaluation.LINES_AT_ONCE", 3)
    monkeypatch.setattr("hmrnn.domains.vectors.evaluation.POINTS_AT_ONCE", 4)
    assert log_likelihoods(network, lines) == pytest.approx(whole, rel=1e-12)
    assert network.log_likelihood(lines[4]) == pytest.approx(whole[4], rel=1e-12)


def test_nothing_in_the_padding_reaches_loss_or_gradient():
    network = make_model()
    window = cut(lines_of(9, 4, 6), 0, 8)
    grads = []
    for filler in (0.0, 123.0):
        points = window.points.double().clone()
        for row, length in enumerate(window.lengths.tolist()):
            points[length + 1 :, row] = filler
        out, _ = network(points[:-1], None, window.lengths)
        loss = -out.density.log_prob(network.normalised(points[1:])).where(window.counted, 0.0).sum()
        grads.append(torch.autograd.grad(loss, list(network.parameters())))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


def test_units_do_not_matter():
    """Twice as large a hand, with the normalisation that belongs to it: the same likelihood."""
    network, lines = make_model(), lines_of(30, 40)
    large = [line * np.array([4, 2, 1], dtype=np.float32) for line in lines]
    network.normalise_as(lines)
    own = log_likelihoods(network, lines)
    network.normalise_as(large)
    assert log_likelihoods(network, large) == pytest.approx(own, rel=1e-6)
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(network.in_units(network.normalised(x)), x)
    offsets = np.concatenate([line[1:, :2] for line in large]).astype(np.float64)
    assert network.mean.tolist() == pytest.approx([*offsets.mean(0), 0])
    assert network.deviation.tolist() == pytest.approx([*offsets.std(0), 1])


def test_flat_lines_are_refused():
    flat = [np.array([[0, 0, 0], [1, 0, 0], [2, 0, 1]], dtype=np.float32)]
    with pytest.raises(ValueError, match="nothing to predict"):
        StrokeModel(SMALL).normalise_as(flat)


def test_hrnn_gets_the_strokes_of_the_pen():
    network = make_model(model="hrnn", hidden_sizes=(8, 7))
    line = lines_of(30)[0]
    found = network.segment(line)
    assert np.array_equal(found.steps.z[:, 0].numpy(), line[:, 2] > 0.5)
    with pytest.raises(ValueError, match="hidden_sizes must be two numbers"):
        make_model(model="hrnn")


def test_gradients_are_of_a_size_that_can_be_learnt_from():
    """Most points are near the mean: that alone must not make gradients explode, as it did without an embedding."""
    torch.manual_seed(0)
    network = StrokeModel(PRESETS["iam-ondb"].model)
    lines = lines_of(*[101] * 8)
    for line in lines:
        line[:, :2] *= np.where(np.random.default_rng(0).random((101, 1)) < 0.05, 10, 0.5)
    network.normalise_as(lines)
    window = cut(lines, 0, 100)
    out, _ = network(window.points[:-1], None, window.lengths)
    (-out.density.log_prob(network.normalised(window.points[1:])).mean()).backward()
    assert torch.cat([p.grad.flatten() for p in network.parameters()]).norm() < 1e4


# On disk


@pytest.mark.parametrize("model", ["hm-lstm", "lstm", "clockwork"])
def test_saved_and_loaded_it_is_the_same(tmp_path, model):
    network, lines = make_model(model=model).float(), lines_of(20, 30)
    network.save_pretrained(tmp_path)
    again = StrokeModel.from_pretrained(tmp_path)
    assert again.config == network.config
    assert np.array_equal(log_likelihoods(again, lines), log_likelihoods(network, lines))
    assert json.loads((tmp_path / "config.json").read_text())["kind"] == "strokes"
    assert not (tmp_path / "symbols.json").exists()


def test_a_model_of_another_kind_is_refused(tmp_path):
    from hmrnn import Symbols, TextModel, TextModelConfig

    make_model().save_pretrained(tmp_path / "strokes")
    TextModel(Symbols.of("ab"), TextModelConfig(hidden_sizes=(4, 4), output_size=4)).save_pretrained(tmp_path / "text")
    with pytest.raises(ValueError, match="a model of kind 'strokes', not 'text'"):
        TextModel.from_pretrained(tmp_path / "strokes")
    with pytest.raises(ValueError, match="a model of kind 'text', not 'strokes'"):
        StrokeModel.from_pretrained(tmp_path / "text")


# Generation


def test_generation_follows_the_seed():
    network = make_model()
    one, same, other = (network.generate(max_new=40, seed=seed) for seed in (1, 1, 2))
    assert one.shape == (40, 3)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.isfinite(one).all()
    assert set(np.unique(one[:, 2])) <= {0.0, 1.0}
    assert network.generate(max_new=0).shape == (0, 3)


def test_a_primed_line_goes_on_from_what_was_read():
    network, line = make_model(), lines_of(25)[0]
    points = list(generate_points(network, line, 10, 0.0, 3))
    assert [point.new for point in points] == [False] * 25 + [True] * 10
    assert np.array_equal(np.array([point.point for point in points[:25]], dtype=np.float32), line)
    # The first new point is drawn from the density after the line's last.
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        out, state = network(torch.from_numpy(line).unsqueeze(1))
        first = network.in_units(out.density[-1, 0].sample(generator))
        assert points[25].point == pytest.approx(first.tolist(), rel=1e-6)
        out, _ = network(torch.tensor([points[25].point]).unsqueeze(1), state)
        second = network.in_units(out.density[-1, 0].sample(generator))
    assert points[26].point == pytest.approx(second.tolist(), rel=1e-6)


def test_bias_writes_neater():
    network = make_model()
    spread = [network.generate(max_new=300, bias=bias, seed=0)[:, :2].std() for bias in (0.0, 1.0, 4.0)]
    assert spread[0] > spread[1] > spread[2]


def test_a_huge_bias_takes_the_likeliest():
    made = make_model().generate(max_new=20, bias=1e40, seed=0)
    assert np.isfinite(made).all()


def test_weights_that_are_not_finite_predict_nothing():
    network = make_model()
    with torch.no_grad():
        network.head.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="its weights are not finite"):
        network.generate(max_new=3)


def test_steering_leaves_an_hrnn_alone(tmp_path):
    train_run(run_settings(model="hrnn", epochs=0.5), tmp_path)
    assert StrokeModel.from_pretrained(tmp_path).rnn.layers[0].b_z == 0


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"max_new": -1}, "max_new"),
        ({"bias": -1.0}, "bias"),
        ({"bias": math.nan}, "bias"),
        ({"bias": math.inf}, "bias"),
    ],
)
def test_what_can_not_be_generated(wrong, what):
    with pytest.raises(ValueError, match=what):
        make_model().generate(**wrong)
    with pytest.raises(ValueError, match="no point to go on from"):
        make_model().generate(lines_of(5)[0][:0])


# Structure


def test_segments_are_what_the_network_did():
    network, line = make_model(3), lines_of(80)[0]
    found = network.segment(line, vectors=True)
    out, _ = network(torch.from_numpy(line).unsqueeze(1))
    assert torch.equal(found.steps.z, out.rnn.z[:, 0] > 0.5)
    assert torch.equal(found.steps.operations, out.rnn.operations[:, 0])
    for l, layer in enumerate(found.layers):
        assert [s.end - 1 for s in layer if s.closed] == found.steps.z[:, l].nonzero()[:, 0].tolist()
        assert "".join(str(s.start) for s in layer[:1]) == "0"
        for s in layer:
            assert s.text is None
            if s.closed:
                assert torch.equal(s.vector, out.rnn.h[l][s.end - 1, 0])
    assert found.updates.layers[0] == 80
    log_p = -found.steps.surprisal[1:].sum().item()
    assert log_p == pytest.approx(network.log_likelihood(line), rel=1e-10)
    assert math.isnan(found.steps.surprisal[0])
    events = found.steps.operations[:, :-1] != COPY
    assert torch.equal((found.steps.z_tilde > 0.5) & events, found.steps.z), "hold: nothing while a layer copies"


def test_predicted_density_is_that_of_every_step():
    """Over the plane it sums to the number of steps, and at single places to the densities of all steps there."""
    network, line = make_model(), lines_of(12)[0]
    line[:, 1] *= 3
    network.normalise_as([line, *lines_of(50)])
    with torch.no_grad():
        network.head.bias[3 : 3 + 6] = torch.tensor([0.03, -0.02, 0.0, 0.02, -0.03, 0.01])  # means
        network.head.bias[3 + 6 : 3 + 6 + 6] = -3.5  # narrow: nearly all of it within the grid
    x, y, density, weights = predicted_density(network, line)
    assert density.shape == (len(y), len(x))
    total = density.sum() * (x[1] - x[0]) * (y[1] - y[0])
    assert len(line) - 1 < total < len(line), "what is expected after the last point may lie outside"
    assert weights.sum(1) == pytest.approx(np.ones(len(line)))
    points = torch.from_numpy(line).double()
    out, _ = network(points.unsqueeze(1))
    places = points[:, :2].cumsum(0)
    for row, column in ((len(y) // 2, len(x) // 2), (len(y) // 3, len(x) // 2), (len(y) // 2, 2 * len(x) // 3)):
        there = torch.tensor([x[column], y[row]]) - places
        offset = torch.cat([there, torch.zeros(len(line), 1)], 1)
        both = [network.normalised(offset + torch.tensor([0, 0, pen])) for pen in (0.0, 1.0)]
        expected = sum(out.density[:, 0].log_prob(scaled).exp().sum() for scaled in both) / network.deviation.prod()
        assert density[row, column] == pytest.approx(expected.item(), rel=0.01, abs=1e-6)


# Training


def run_settings(**changes) -> StrokeRunConfig:
    kind = changes.pop("model", "hm-lstm")
    sizes = (8, 7) if kind == "hrnn" else SMALL.hidden_sizes
    model = replace(SMALL, model=kind, hidden_sizes=sizes, boundary=changes.pop("boundary", "step"))
    defaults = {"batch_size": 8, "window": 20, "learning_rate": 0.01, "epochs": 2.0, "patience": 9}
    defaults |= {"target_rate": 0.3, "uncertainty_weight": 0.0}
    return StrokeRunConfig(StrokeDataConfig(writing=WRITING), model, TrainingConfig(**{**defaults, **changes}))


def updates_in_an_epoch() -> int:
    run = run_settings()
    data = load_strokes(run.data)
    return prepare(SavedRun(run, data.fingerprint, None), data, "auto", Processes()).task.epochs.first


def test_it_learns_and_keeps_the_best(tmp_path):
    run = run_settings(epochs=6.0)
    outcome = train_run(run, tmp_path)
    records = metrics(tmp_path)
    validations = [record["valid_nats"] for record in records if "valid_nats" in record]
    assert validations[-1] < validations[0] - 0.3
    assert outcome.best == min(validations)
    data, best = load_strokes(run.data), StrokeModel.from_pretrained(tmp_path / "best")
    lines = data.split("valid")
    points = sum(len(line) - 1 for line in lines)
    assert -log_likelihoods(best, lines).sum() / points == outcome.best
    offsets = np.concatenate([line[1:, :2] for line in data.split("train")])
    assert best.mean[:2].tolist() == pytest.approx(offsets.mean(0).tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("model", "boundary"), [("hm-lstm", "step"), ("hm-lstm", "sample"), ("lstm", "step"), ("hrnn", "step")]
)
@pytest.mark.parametrize("checkpoint_minutes", [1e-9, 99.0])
def test_a_killed_run_goes_on_exactly(tmp_path, monkeypatch, model, boundary, checkpoint_minutes):
    run = run_settings(model=model, boundary=boundary, checkpoint_minutes=checkpoint_minutes, validate_every=0.5)
    train_run(run, tmp_path / "straight")
    n, resume = updates_in_an_epoch(), False
    for update in (1, n // 2 + 1, n, n + 3):
        with monkeypatch.context() as patch:
            patch.setattr(Training, "make_update", killed_at(update))
            with pytest.raises(Killed):
                train_run(run, tmp_path / "killed", resume=resume)
        resume = True
    assert train_run(run, tmp_path / "killed", resume=True).update == 2 * n
    assert same_weights(tmp_path / "straight", tmp_path / "killed")
    assert same_weights(tmp_path / "straight" / "best", tmp_path / "killed" / "best")
    assert without_speed(tmp_path / "straight") == without_speed(tmp_path / "killed")


def without_speed(directory: Path) -> list[dict]:
    return [{name: v for name, v in record.items() if name != "points_per_second"} for record in metrics(directory)]


def test_a_run_on_strokes_can_not_go_on_as_one_on_text(tmp_path):
    from hmrnn.domains.text.config import TextRunConfig

    train_run(run_settings(epochs=0.2), tmp_path)
    with pytest.raises(UsageError, match="is a run on strokes"):
        train_run(TextRunConfig(), tmp_path, resume=True)


def test_two_processes_take_the_steps_of_one(tmp_path):
    """2 x 4 lines against 1 x 8, in float64: every gradient of every update, and the weights after them.

    A whole epoch: in one batch the second process has no line at all, and lines end at different steps, so that the
    points of the processes are not alike in number.
    """
    lengths = np.array([len(line.points) for line in write_lines(WritingConfig(lines=30, words=(1, 2), spacing=6.0))])
    assert (LineBatches(lengths[:27], 8, 10, 0).batches[-1, 3:] == NO_LINE).all()
    script = recorded_updates.__file__
    subprocess.run([sys.executable, script, "strokes", str(tmp_path / "one.pt"), "8", "0.0", "0"], check=True)
    done = torchrun(script, "strokes", str(tmp_path / "two.pt"), "4", "0.0", "0")
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("one.pt", "two.pt"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def test_steering_brings_the_rates_to_their_targets(tmp_path):
    """From biases at which detectors never fire, and at which they always do."""
    for bias in (-3.0, 3.0):
        run = run_settings(epochs=8.0, target_rate=0.4, guided_updates=10_000, learning_rate=0.003)
        run = replace(run, model=replace(run.model, boundary_bias=bias))
        train_run(run, tmp_path / str(bias))
        rates = [record["rates"] for record in metrics(tmp_path / str(bias)) if "rates" in record]
        assert np.mean(rates[-20:], axis=0) == pytest.approx([0.4, 0.1], abs=0.08)
        assert abs(rates[0][0] - 0.4) > 0.3
