"""What keeps a model from learning its text by heart, in the training loop."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.small_runs import DROPOUT, UPDATES, metrics, same_weights, settings, weights

from hmrnn.config import TrainingConfig
from hmrnn.domains import DOMAINS
from hmrnn.domains.strokes.config import (
    StrokeDataConfig,
    StrokeModelConfig,
    StrokeRunConfig,
    WritingConfig,
)
from hmrnn.domains.text.data.streams import Streams
from hmrnn.guidance.guide import Guide
from hmrnn.training import checkpoint
from hmrnn.training.checkpoint import SavedRun
from hmrnn.training.distributed import Processes
from hmrnn.training.loop import Training
from hmrnn.training.run import prepare, train_run


def prepared(run) -> Training:
    data = DOMAINS[run.kind].load(run, None)
    return prepare(SavedRun(run, data.fingerprint, None), data, "auto", Processes())


def test_weight_decay_is_that_of_adamw_on_matrices(text_file):
    training = prepared(
        settings(text_file, weight_decay=0.3, learning_rate=0.05, guided_updates=0, detector_radius=0.0)
    )
    model = training.task.model
    theirs = copy.deepcopy(model)
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() > 1], "weight_decay": 0.3},
        {"params": [p for p in theirs.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.05)
    for _ in range(3):
        training.make_update(stop=None, checkpoint=False)
        for ours, other in zip(model.parameters(), theirs.parameters(), strict=True):
            other.grad = ours.grad.clone()
        adamw.step()
    for (name, ours), other in zip(model.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6, msg=name)


def test_the_average_is_what_it_says_and_what_validation_and_best_use(text_file, tmp_path):
    run = settings(text_file, average=0.8, epochs=1.0)
    training = prepared(run)
    mean = None
    for count in range(UPDATES):
        training.watch.see(training.make_update(stop=None, checkpoint=False).rates)
        now = {name: p.detach().double().clone() for name, p in training.task.model.named_parameters()}
        decay = min(0.8, count / (10 + count))
        mean = now if mean is None else {name: decay * mean[name] + (1 - decay) * now[name] for name in now}
    for name, averaged in training.average.model.named_parameters():
        torch.testing.assert_close(averaged.double(), mean[name], rtol=1e-5, atol=1e-6, msg=name)
    train_run(run, tmp_path)
    best = weights(tmp_path / "best")
    for name in mean:
        if not name.endswith("b_z"):  # set so that detectors fire as often as the model's own
            torch.testing.assert_close(best[name].double(), mean[name], rtol=1e-5, atol=1e-6, msg=name)
    assert not same_weights(tmp_path, tmp_path / "best")
    found = [r["valid_bits"] for r in metrics(tmp_path) if "valid_bits" in r]
    assert found == [training.task.validate(training.averaged_model(), show=False).loss]


def test_detectors_of_the_average_fire_as_often_as_the_models_own(text_file):
    training = prepared(settings(text_file, average=0.9, boundary_bias=0.5))
    for _ in range(UPDATES):
        training.make_update(stop=None, checkpoint=False)
    with torch.no_grad():
        for layer in training.average.model.rnn.weights()[:-1]:
            layer.b_z.add_(3.0)  # as an average that lags far behind: it fires at every step
    task = training.task

    def rates(model):
        state, fired = None, []
        hook = model.rnn.register_forward_hook(lambda rnn, inputs, outputs: fired.append(outputs[0].z.mean((0, 1))))
        for window in range(UPDATES):
            state = task.read(model, window, state)
        hook.remove()
        return torch.stack(fired).mean(0)

    assert (rates(training.average.model) == 1).all()
    training.watch.rates = [0.3, 0.1]
    model = training.averaged_model()
    torch.testing.assert_close(rates(model), torch.tensor([0.3, 0.1]), rtol=0, atol=0.04)
    others = [n for n, _ in model.named_parameters() if not n.endswith("b_z")]
    after = dict(training.average.model.named_parameters())
    assert all(torch.equal(dict(model.named_parameters())[name], after[name]) for name in others), "biases alone"


def test_the_average_has_the_slope_of_its_model(text_file, tmp_path):
    train_run(settings(text_file, average=0.8, slope_per_epoch=0.5, epochs=2.0), tmp_path)
    assert checkpoint.read_config(tmp_path / "best")[0].slope == 1.5


def test_the_learning_rate_warms_up_and_guidance_does_not_wait_for_it(text_file, tmp_path, monkeypatch):
    strengths, step = [], Guide.step

    def recorded(self):
        strengths.append(self.strength)
        step(self)

    monkeypatch.setattr(Guide, "step", recorded)
    train_run(settings(text_file, warmup=4, learning_rate=0.01, epochs=1.0), tmp_path)
    rates = [record["learning_rate"] for record in metrics(tmp_path) if "bits" in record]
    assert rates == pytest.approx([0.002, 0.004, 0.006, 0.008, *[0.01] * (UPDATES - 4)])
    assert strengths == pytest.approx([1.0] * UPDATES)


def test_validation_tells_how_often_detectors_fire(text_file, tmp_path):
    train_run(settings(text_file, boundary_bias=9.0, guided_updates=0, epochs=0.5), tmp_path)
    assert [record["valid_rates"] for record in metrics(tmp_path) if "valid_bits" in record] == [[1.0, 1.0]]


def test_dropout_is_off_in_validation(text_file):
    training = prepared(settings(text_file, **DROPOUT))
    training.make_update(stop=None, checkpoint=False)
    model = training.task.model
    assert training.task.validate(model, show=False) == training.task.validate(model, show=False)
    assert training.task.model.training


def test_epochs_start_at_random_places_of_the_text_and_go_round(text_file):
    run = settings(text_file, seed=3)
    task = prepared(replace(run, data=replace(run.data, random_start=True))).task
    steps = task.epochs.first * task.window
    assert torch.equal(task.streams(0).read(0, steps), Streams.to_train(task.train, 4, 0, 1).read(0, steps))
    first, second = task.streams(1), task.streams(2)
    assert first.starts[0] != second.starts[0]
    assert torch.equal(first.read(0, 9), task.streams(1).read(0, 9)), "the same each time it is asked for"
    text = np.concatenate([task.train, task.train])
    for streams in (first, second):
        assert np.array_equal(np.diff(streams.starts), [streams.steps] * 3)
        for row, start in enumerate(streams.starts):
            assert np.array_equal(streams.read(0, steps)[:, row], text[start : start + steps])


def test_the_start_is_fixed_on_request_and_in_older_runs(text_file, tmp_path):
    fixed = settings(text_file)
    task = prepared(fixed).task
    assert np.array_equal(task.streams(5).starts, task.streams(0).starts)
    train_run(fixed, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["data"]["random_start"], config["checksum"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert checkpoint.load_run(tmp_path).config.data == fixed.data


def strokes(scaling: float) -> StrokeRunConfig:
    return StrokeRunConfig(
        StrokeDataConfig(writing=WritingConfig(lines=30, words=(1, 2), spacing=6.0), scaling=scaling),
        StrokeModelConfig(embedding_size=5, hidden_sizes=(8, 7), output_size=9, components=3),
        TrainingConfig(batch_size=4, window=10, uncertainty_weight=0.0),
    )


def test_lines_are_scaled_by_one_factor_an_epoch():
    task = prepared(strokes(0.1)).task
    rows = np.arange(len(task.train))
    first, later = task.scales(0, rows), task.scales(task.epochs.first - 1, rows)
    other = task.scales(task.epochs.first, rows)
    assert torch.equal(first, later)
    assert not torch.equal(first, other)
    assert 0.9 <= first.min() < 0.95
    assert 1.05 < first.max() <= 1.1
    assert torch.equal(prepared(strokes(0.0)).task.scales(0, rows), torch.ones(len(rows), 1))


def test_scaling_changes_the_offsets_and_not_the_pen(monkeypatch):
    training = prepared(strokes(0.1))
    task, seen = training.task, []
    objective = task.objective
    monkeypatch.setattr(task, "objective", lambda window, *rest: seen.append(window) or objective(window, *rest))
    training.make_update(stop=None, checkpoint=False)
    rows, start, end = task.batches.at(0)
    for column, row in enumerate(rows):
        line = torch.from_numpy(task.train[row][start : end + 1])
        found = seen[0].points[: len(line), column]
        assert torch.equal(found[:, 2], line[:, 2])
        torch.testing.assert_close(found[:, :2], line[:, :2] * task.scales(0, rows)[column])
