"""The density of the next point: against torch.distributions, and against exact arithmetic where floats are at their
end."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, MixtureSameFamily, MultivariateNormal

from hmrnn.domains.strokes.mixture import RHO_BOUND, MixtureHead, PointDensity, density_of
from hmrnn.domains.vectors.mixture import FAR, LOG_SIGMA_BOUND

K = 4


def raw(*shape: int, components: int = K, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, 6 * components + 1, generator=generator, dtype=torch.float64)


def some_points(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(*shape, 3, generator=generator, dtype=torch.float64)
    points[..., 2] = (points[..., 2] > 0).double()
    return points


def by_torch(density: PointDensity, points: Tensor) -> Tensor:
    """The same from torch.distributions."""
    sx, sy = density.log_sigma.exp().unbind(-1)
    across = density.rho * sx * sy
    covariance = torch.stack([torch.stack([sx * sx, across], -1), torch.stack([across, sy * sy], -1)], -2)
    plane = MixtureSameFamily(Categorical(logits=density.log_pi), MultivariateNormal(density.mu, covariance))
    return plane.log_prob(points[..., :2]) + Bernoulli(logits=density.pen).log_prob(points[..., 2])


@given(st.integers(1, 7), st.floats(0.1, 3.0), st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_log_likelihood_is_that_of_torch_distributions(components: int, scale: float, seed: int) -> None:
    density = density_of(raw(3, 2, components=components, scale=scale, seed=seed), components)
    points = some_points(3, 2, seed=seed + 1)
    torch.testing.assert_close(density.log_prob(points), by_torch(density, points), rtol=1e-10, atol=1e-10)


def test_a_floor_raises_small_deviations_alone() -> None:
    density = density_of(raw(50, 4, components=3, scale=3.0, seed=0), 3)
    floored = density.floored(0.5)
    assert (density.log_sigma.exp() < 0.5).any()
    torch.testing.assert_close(floored.log_sigma.exp(), density.log_sigma.exp().clamp_min(0.5), rtol=1e-12, atol=0)
    assert floored.mu is density.mu


def exact(density: PointDensity, point: Tensor) -> mpmath.mpf:
    """One step's density in 60 digits, from the definition as Graves writes it."""
    with mpmath.workdps(60):
        x, y, pen = map(mpmath.mpf, point.tolist())
        total = mpmath.mpf(0)
        for k in range(len(density.rho)):
            mx, my = map(mpmath.mpf, density.mu[k].tolist())
            sx, sy = (mpmath.exp(mpmath.mpf(value)) for value in density.log_sigma[k].tolist())
            rho = mpmath.mpf(density.rho[k].item())
            u, v = (x - mx) / sx, (y - my) / sy
            z = u * u + v * v - 2 * rho * u * v
            norm = 2 * mpmath.pi * sx * sy * mpmath.sqrt(1 - rho * rho)
            total += mpmath.exp(mpmath.mpf(density.log_pi[k].item())) * mpmath.exp(-z / (2 * (1 - rho * rho))) / norm
        e = 1 / (1 + mpmath.exp(-mpmath.mpf(density.pen.item())))
        return mpmath.log(total) + mpmath.log(e if pen else 1 - e)


@given(
    st.lists(st.floats(-30.0, 30.0), min_size=6 * 2 + 1, max_size=6 * 2 + 1),
    st.tuples(st.floats(-60.0, 60.0), st.floats(-60.0, 60.0), st.sampled_from([0.0, 1.0])),
)
@settings(max_examples=150, deadline=None)
def test_extreme_scales_and_correlations_agree_with_exact_arithmetic(
    values: list[float], place: tuple[float, ...]
) -> None:
    density, point = density_of(torch.tensor(values, dtype=torch.float64), 2), torch.tensor(place, dtype=torch.float64)
    expected = float(exact(density, point))
    assert density.log_prob(point).item() == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("rho", [-1e3, 0.0, 1e3])
@pytest.mark.parametrize("sigma", [-1e3, 0.0, 1e3])
@pytest.mark.parametrize("distance", [0.0, 1e-3, 1.0, 50.0, 1e4])
def test_at_the_bounds_it_is_exact_too(rho: float, sigma: float, distance: float) -> None:
    values = torch.tensor([0.0, 0.0, 0.0, sigma, -sigma, rho, 40.0], dtype=torch.float64)
    density = density_of(values, 1)
    for point in ([distance, distance, 1.0], [distance, -distance, 0.0]):
        there = torch.tensor(point, dtype=torch.float64)
        assert density.log_prob(there).item() == pytest.approx(float(exact(density, there)), rel=1e-9)
        in_float32 = density_of(values.float(), 1).log_prob(there.float()).item()
        assert in_float32 == pytest.approx(float(exact(density, there)), rel=1e-3), "correlations cost float32 digits"


def test_the_surest_pen_that_is_wrong_is_still_a_number() -> None:
    values = torch.zeros(13)
    values[1], values[8], values[11], values[12] = 1e31, -55.0, 10.0, -3.4e38
    assert density_of(values, 2).log_prob(torch.tensor([499110232064.0, 0.0, 1.0])).isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_finite_input_gives_a_nan(dtype: torch.dtype, data: st.DataObject) -> None:
    largest = torch.finfo(dtype).max
    anything = st.one_of(st.floats(-largest, largest), st.sampled_from([0.0, largest, -largest, 1e-30, 88.0, -104.0]))
    values = data.draw(st.lists(anything, min_size=13, max_size=13))
    x, y = data.draw(anything), data.draw(anything)
    numbers = torch.tensor(values, dtype=torch.float64).clamp(-largest, largest).to(dtype).requires_grad_()
    density = density_of(numbers, 2)
    log_p = density.log_prob(torch.tensor([x, y, data.draw(st.sampled_from([0.0, 1.0]))]).to(density.mu.dtype))
    assert log_p.isfinite()
    log_p.backward()
    assert numbers.grad is not None
    assert numbers.grad.isfinite().all()
    assert density.sample(torch.Generator().manual_seed(0)).isfinite().all()


def test_scales_and_correlations_are_bounded() -> None:
    density = density_of(raw(1000, scale=1e4), K)
    assert density.log_sigma.abs().max() == LOG_SIGMA_BOUND
    assert density.rho.abs().max() == RHO_BOUND
    assert density.mu.abs().max() < FAR
    gentle = density_of(raw(1000, scale=0.1), K)
    assert gentle.log_sigma.abs().max() < 0.6, "near zero the bound is not felt"


def test_gradcheck() -> None:
    points = some_points(2, 2)
    numbers = raw(2, 2, components=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: density_of(values, 2).log_prob(points), (numbers,))


def test_head_gives_a_density_for_each_step() -> None:
    head = MixtureHead(5, K).double()
    h_e = torch.randn(7, 3, 5, dtype=torch.float64)
    density = head.density(h_e)
    assert density.log_pi.shape == (7, 3, K)
    assert density.mu.shape == (7, 3, K, 2)
    assert density.pen.shape == (7, 3)
    assert torch.equal(density[2, 1].mu, density.mu[2, 1])
    torch.testing.assert_close(density.log_pi.exp().sum(-1), torch.ones(7, 3, dtype=torch.float64))


def test_samples_have_the_moments_of_the_density() -> None:
    density = density_of(raw(components=3, seed=5), 3)
    n = 200_000
    many = PointDensity(*(value.expand(n, *value.shape) for value in vars(density).values()))
    drawn = many.sample(torch.Generator().manual_seed(0))
    pi, mu, sigma = density.log_pi.exp(), density.mu, density.log_sigma.exp()
    mean = (pi.unsqueeze(-1) * mu).sum(0)
    across = torch.stack([sigma[:, 0].square(), density.rho * sigma.prod(-1), sigma[:, 1].square()], -1)
    products = torch.stack([mu[:, 0].square(), mu.prod(-1), mu[:, 1].square()], -1)
    second = (pi.unsqueeze(-1) * (across + products)).sum(0)  # E x^2, E xy, E y^2
    x, y, pen = drawn.unbind(-1)
    found = torch.stack([x * x, x * y, y * y], -1)
    for values, expected in ((drawn[:, :2], mean), (found, second), (pen.unsqueeze(-1), density.pen.sigmoid())):
        error = values.std(0) / math.sqrt(n)
        assert ((values.mean(0) - expected).abs() < 5 * error).all()
    assert set(pen.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("rho", [0.8, -0.6])
def test_samples_are_correlated_as_the_density_says(rho: float) -> None:
    one = torch.zeros(100_000, 1, dtype=torch.float64)
    scales = torch.tensor([0.5, 3.0], dtype=torch.float64).log().expand(len(one), 1, 2)
    density = PointDensity(one, one.unsqueeze(-1).expand(-1, 1, 2), scales, torch.full_like(one, rho), one[:, 0])
    drawn = density.sample(torch.Generator().manual_seed(0))
    assert float(torch.corrcoef(drawn[:, :2].T)[0, 1]) == pytest.approx(rho, abs=0.01)


def test_samples_follow_the_generator() -> None:
    density = density_of(raw(5), K)
    one, same, other = (density.sample(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_bias_sharpens_the_weights_and_shrinks_the_deviations() -> None:
    density = density_of(raw(6), K)
    same, neat = density.biased(0.0), density.biased(2.0)
    torch.testing.assert_close(same.log_pi, density.log_pi)
    assert torch.equal(same.log_sigma, density.log_sigma)
    torch.testing.assert_close(
        neat.log_pi.exp(), density.log_pi.exp().pow(3) / density.log_pi.exp().pow(3).sum(-1, True)
    )
    torch.testing.assert_close(neat.log_sigma.exp(), density.log_sigma.exp() / math.exp(2))
    assert torch.equal(neat.mu, density.mu)
    assert torch.equal(neat.rho, density.rho)
    assert torch.equal(neat.pen, density.pen)
