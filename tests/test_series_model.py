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

SMALL = SeriesModelConfig(
    embedding_size=5, hidden_sizes=(8, 7, 6), output_size=9, components=3, rank=1, precision="float32"
)
PLANTED = PlantedSeriesConfig(sequences=24, steps=60, missing=0.1)


def make_model(width: int = 3) -> SeriesModel:
    torch.manual_seed(0)
    return SeriesModel([f"x{d}" for d in range(width)], SMALL).double().eval()


RANKS = pytest.mark.parametrize("rank", [0, 2])


def density(width: int = 2, components: int = 3, rank: int = 0) -> StepDensity:
    torch.manual_seed(0)
    head = StepHead(5, width, components, rank=rank).double()
    return head.density(3 * torch.randn(4, 5, dtype=torch.float64))._map(torch.Tensor.detach)


def of_torch(own: StepDensity, columns: list[int]) -> torch.distributions.Distribution:
    """The same density of some columns alone."""
    mu, sigma = own.mu[..., columns], own.log_sigma[..., columns].exp()
    if own.factors.shape[-1] > 0:
        factors = sigma.unsqueeze(-1) * own.factors[..., columns, :]
        each = torch.distributions.LowRankMultivariateNormal(mu, factors, sigma.square())
    else:
        each = torch.distributions.Independent(torch.distributions.Normal(mu, sigma), 1)
    return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=own.log_pi), each)


@RANKS
def test_the_density_is_that_of_torch(rank):
    own, x = density(rank=rank), torch.randn(4, 2, dtype=torch.float64)
    mixture = of_torch(own, [0, 1])
    torch.testing.assert_close(own.log_prob(x), mixture.log_prob(x), rtol=1e-12, atol=1e-12)
    gaussian = torch.distributions.Normal(0.0, mixture.variance.sqrt()).entropy().sum(-1)
    constant = 0.5 * (1 + math.log(2 * math.pi))
    torch.testing.assert_close(own.spread() + 2 * constant, gaussian, rtol=1e-10, atol=1e-10)


@RANKS
def test_a_missing_number_is_marginalised(rank):
    own, x = density(4, rank=rank), torch.randn(4, 4, dtype=torch.float64)
    for present in ([0, 1, 3], [2], [1, 2]):
        points = torch.full_like(x, math.nan)
        points[:, present] = x[:, present]
        alone = of_torch(own, present).log_prob(x[:, present])
        torch.testing.assert_close(own.log_prob(points), alone, rtol=1e-12, atol=1e-12)
    assert own.log_prob(torch.full((4, 4), math.nan, dtype=torch.float64)).tolist() == pytest.approx([0.0] * 4)


def test_gradients_where_numbers_are_missing():
    own = density(3, rank=2)
    x = torch.tensor([[0.1, math.nan, -0.4], [math.nan] * 3, [1.0, 2.0, 0.5], [0.0, 0.0, math.nan]]).double()
    values = tuple(value.requires_grad_() for value in (own.log_pi, own.mu, own.log_sigma, own.factors))
    assert torch.autograd.gradcheck(lambda *own: StepDensity(*own).log_prob(x), values)


def test_a_step_as_wide_as_can_be_is_finite():
    head = StepHead(1, 40, 2, rank=3)
    torch.nn.init.constant_(head.weight, 1e4)
    far = head.density(torch.ones(1, 1)).log_prob(torch.full((1, 40), 1e9))
    assert far.isfinite().all()


@RANKS
def test_samples_have_the_mixture_s_mean_and_covariance(rank):
    own = density(rank=rank)[1]
    many = own._map(lambda value: value.expand(100_000, *value.shape))
    drawn = many.sample(torch.Generator().manual_seed(0))
    pi, sigma = own.log_pi.exp(), own.log_sigma.exp()
    mean = (pi[:, None] * own.mu).sum(0)
    scaled, apart = sigma.unsqueeze(-1) * own.factors, (own.mu - mean).unsqueeze(-1)
    covariance = torch.diag_embed(sigma.square()) + scaled @ scaled.mT + apart @ apart.mT
    covariance = (pi[:, None, None] * covariance).sum(0)
    size = float(covariance.diagonal().max())
    torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=0.02 * math.sqrt(size))
    torch.testing.assert_close(drawn.T.cov(), covariance, rtol=0, atol=0.02 * size)


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


@pytest.mark.parametrize(
    "content",
    ["[]", '{"columns": [1]}', '{"columns": []}', "{", '{"columns": "abc"}', "[" * 100_000],
    ids=lambda own: own[:20],
)
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
    run = run_config(checkpoint_minutes=1e-9)
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


@pytest.mark.parametrize("columns", [[], ["a", "a"], [1, 2], ["a", None]])
def test_columns_that_can_not_be(columns):
    """Such a model could be saved, and not loaded again."""
    with pytest.raises(ValueError, match="columns must be different names"):
        SeriesModel(columns, SMALL)


ODD = [
    np.zeros(5),
    np.zeros((5, 9)),
    np.zeros((2, 5, 3)),
    np.zeros((5, 3), complex),
    np.array([["a", "b", "c"]]),
    torch.zeros(5, 3, dtype=torch.cfloat),
    [[1]],
    [[1, 2, 3], [4]],
    [[1, 2, 3], 4],
    ((1, 2, 3), (4,)),
    [["a", "b", "c"]],
    [[{}, 1, 2]],
    [[10**400, 1, 2]],
    [np.full(3, 1j)],
]


@pytest.mark.parametrize("points", ODD, ids=lambda points: repr(points)[:20])
def test_a_sequence_of_another_shape_is_refused(points):
    model = make_model()
    for ask in (model.segment, model.log_likelihood, model.generate):
        with pytest.raises(ValueError, match=r"numbers of shape \(T, 3\)"):
            ask(points)


def test_a_sequence_is_an_array_a_tensor_or_a_list():
    model, points = make_model(), np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    expected = model.log_likelihood(points)
    negated = torch._neg_view(torch.from_numpy(-points))
    for same in (torch.from_numpy(points), negated, points.tolist(), points.astype(np.float64)):
        assert model.log_likelihood(same) == expected
        assert len(model.segment(same).layers) == len(model.segment(points).layers)
    for empty in ([None] * 3, (None,) * 3):
        assert model.log_likelihood([empty, *points.tolist()]) < expected, "one more is predicted"
    assert model.log_likelihood(((None,) * 3, *points.tolist())) < expected
    assert np.isfinite(model.log_likelihood(np.full((4, 3), 1e300)))
