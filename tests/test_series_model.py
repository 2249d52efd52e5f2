"""SeriesModel: densities with missing numbers, saving, generation, segments, and its training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import Killed, killed_at, same_weights

from hmrnn import SeriesModel, SeriesModelConfig
from hmrnn.config import TrainingConfig
from hmrnn.domains.series.config import (
    PlantedSeriesConfig,
    SeriesDataConfig,
    SeriesRunConfig,
)
from hmrnn.domains.series.data.planted import plant
from hmrnn.domains.series.data.sequences import load_series
from hmrnn.domains.series.mixture import StepDensity, StepHead
from hmrnn.domains.series.task import SeriesTask
from hmrnn.domains.vectors.evaluation import log_likelihoods
from hmrnn.training.distributed import Processes
from hmrnn.training.loop import Training
from hmrnn.training.run import train_run

SMALL = SeriesModelConfig(embedding_size=5, hidden_sizes=(8, 7, 6), output_size=9, components=3, precision="float32")
PLANTED = PlantedSeriesConfig(sequences=24, steps=60, missing=0.1)


def make_model(width: int = 3) -> SeriesModel:
    torch.manual_seed(0)
    return SeriesModel([f"x{d}" for d in range(width)], SMALL).double().eval()


def density(width: int = 2, components: int = 3, seed: int = 0) -> StepDensity:
    torch.manual_seed(seed)
    head = StepHead(5, width, components).double()
    return head.density(torch.randn(4, 5, dtype=torch.float64))._map(torch.Tensor.detach)


def test_the_density_is_that_of_torch():
    own, x = density(), torch.randn(4, 2, dtype=torch.float64)
    each = torch.distributions.Independent(torch.distributions.Normal(own.mu, own.log_sigma.exp()), 1)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=own.log_pi), each)
    torch.testing.assert_close(own.log_prob(x), mixture.log_prob(x), rtol=1e-12, atol=1e-12)
    gaussian = torch.distributions.Normal(0.0, mixture.variance.sqrt()).entropy().sum(-1)
    constant = 0.5 * (1 + math.log(2 * math.pi))
    torch.testing.assert_close(own.spread() + 2 * constant, gaussian, rtol=1e-10, atol=1e-10)


def test_a_missing_number_is_marginalised():
    own = density()
    grid = torch.linspace(-60, 60, 200_001, dtype=torch.float64)
    for step in range(4):
        points = torch.stack([torch.full_like(grid, 0.3), grid], -1)
        whole = torch.trapezoid(own[step].log_prob(points).exp(), grid)
        alone = own[step].log_prob(torch.tensor([0.3, math.nan], dtype=torch.float64)).exp()
        assert alone.item() == pytest.approx(whole.item(), rel=1e-6)
    assert own.log_prob(torch.full((4, 2), math.nan, dtype=torch.float64)).tolist() == pytest.approx([0.0] * 4)


def test_samples_have_the_mixture_s_mean_and_variance():
    own = density()[1]
    many = StepDensity(*(value.expand(100_000, *value.shape) for value in (own.log_pi, own.mu, own.log_sigma)))
    drawn = many.sample(torch.Generator().manual_seed(0))
    pi = own.log_pi.exp()[:, None]
    mean = (pi * own.mu).sum(0)
    deviation = (pi * (own.log_sigma.exp().square() + (own.mu - mean).square())).sum(0).sqrt()
    torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=0.02 * float(deviation.max()))
    torch.testing.assert_close(drawn.std(0), deviation, rtol=0.02, atol=0)


def test_what_is_missing_changes_nothing_but_that_it_is_missing():
    """Whatever number stands where NaN stood before masking: gradients are finite, and the value has no say."""
    model = make_model().train()
    points = torch.randn(6, 2, 3, dtype=torch.float64)
    points[2, 0, 1] = points[4, 1] = math.nan
    out, _ = model(points[:-1])
    loss = -out.density.log_prob(model.normalised(points[1:])).sum()
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    assert not torch.equal(model.embed(points[2, 0]), model.embed(points[2, 0].nan_to_num(0.0))), "it is told"


def test_likelihood_depends_on_no_batch_and_on_no_units():
    model, lines = make_model(), [one.values for one in plant(PLANTED)][:5]
    lines = [line[: 60 - 7 * i] for i, line in enumerate(lines)]
    nats = log_likelihoods(model, lines)
    for i, line in enumerate(lines):
        assert model.log_likelihood(line) == pytest.approx(nats[i], rel=1e-12)
    model.mean += 5.0
    model.deviation *= 4.0
    assert log_likelihoods(model, [4 * line + 5 for line in lines]) == pytest.approx(nats, rel=1e-5)


def test_saving_and_loading(tmp_path):
    model, line = make_model(), plant(PLANTED)[0].values
    model.normalise_as([line])
    model.save_pretrained(tmp_path)
    again = SeriesModel.from_pretrained(tmp_path)
    assert again.columns == ("x0", "x1", "x2")
    assert again.log_likelihood(line) == model.log_likelihood(line)
    (tmp_path / "columns.json").write_text(json.dumps({"columns": ["x0"]}))
    with pytest.raises(ValueError, match="damaged"):
        SeriesModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("content", ["[]", '{"columns": [1]}', '{"columns": []}', "{", '{"columns": "abc"}'])
def test_columns_that_are_none_are_refused(tmp_path, content):
    from hmrnn.domains.series.model import read_columns

    (tmp_path / "columns.json").write_text(content)
    with pytest.raises(ValueError, match="not the columns of a model"):
        read_columns(tmp_path)


def test_generation_from_nothing_and_from_a_start():
    model, line = make_model(), plant(PLANTED)[0].values
    made = model.generate(max_new=20, seed=3)
    assert made.shape == (20, 3)
    assert np.isfinite(made).all()
    np.testing.assert_array_equal(made, model.generate(max_new=20, seed=3))
    assert not np.array_equal(made, model.generate(line, max_new=20, seed=3))


def test_segments_tile_the_sequence_and_long_ones_are_read_in_pieces(monkeypatch):
    model, line = make_model(), plant(PLANTED)[0].values
    whole = model.segment(line)
    monkeypatch.setattr("hmrnn.domains.vectors.structure.PIECE", 7)
    parts = model.segment(line)
    assert torch.equal(whole.steps.z, parts.steps.z)
    torch.testing.assert_close(whole.steps.surprisal, parts.steps.surprisal, rtol=1e-9, atol=1e-9, equal_nan=True)
    for layer in whole.layers:
        assert [s.start for s in layer] == [0, *(s.end for s in layer[:-1])]
        assert layer[-1].end == len(line)


def run_config(**changes) -> SeriesRunConfig:
    training = {"batch_size": 8, "window": 20, "epochs": 3.0, "patience": 9, "target_rate": 0.1}
    return SeriesRunConfig(SeriesDataConfig(planted=PLANTED), SMALL, TrainingConfig(**{**training, **changes}))


def test_half_of_the_sequences_begin_with_nothing_and_others_in_the_next_epoch():
    run = run_config()
    task = SeriesTask(make_model(), load_series(run.data), run, Processes())
    hidden = []
    for update in (0, task.epochs.first):
        rows = np.arange(20)
        window, before = task_window(task, rows), task_window(task, rows).points
        task.vary(window, update, rows, start=0)
        hidden.append((window.points[0].isnan() & ~before[0].isnan()).any(-1))
        torch.testing.assert_close(window.points[1:], before[1:], rtol=0, atol=0, equal_nan=True)
    assert 4 <= hidden[0].sum() <= 16
    assert not torch.equal(*hidden)
    later = task_window(task, np.arange(20))
    task.vary(later, 0, np.arange(20), start=5)
    torch.testing.assert_close(later.points, before, rtol=0, atol=0, equal_nan=True)


def task_window(task: SeriesTask, rows):
    from hmrnn.training.batches import cut

    return cut(task.lines(rows), 1, 6)


def test_training_learns_and_resumes_to_the_same_bits(tmp_path: Path, monkeypatch):
    run = run_config()
    outcome = train_run(run, tmp_path / "whole")
    history = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    valid = [record["valid_nats"] for record in history if "valid_nats" in record]
    assert valid[-1] < valid[0]
    assert outcome.best == min(valid)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "make_update", killed_at(5))
        with pytest.raises(Killed):
            train_run(run, tmp_path / "parts")
    train_run(run, tmp_path / "parts", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_an_hrnn_has_no_boundaries_to_be_given():
    with pytest.raises(ValueError, match="hrnn"):
        SeriesModelConfig(model="hrnn")
