"""Waiting lines against exact results and simulated queues."""

import numpy as np
import pytest

from roofline.serving.queueing import (
    Spread,
    full_share,
    gamma_quantile,
    mixed_quantile,
    normal_quantile,
    queue_wait,
)
from roofline.serving.rhythm import clump, lone, together


def test_normal_quantile_against_scipy():
    from scipy.stats import norm

    q = np.linspace(0.001, 0.999, 201)
    assert np.abs(normal_quantile(q) - norm.ppf(q)).max() < 4e-3


def test_gamma_quantile_against_scipy():
    from scipy.stats import gamma

    q = np.array([0.05, 0.5, 0.9, 0.99])
    for cv in (0.1, 0.5, 0.9):
        exact = gamma.ppf(q, 1 / cv**2, scale=cv**2)
        assert np.abs(gamma_quantile(q, 1.0, cv) - exact).max() < 0.02


def test_single_server_waits_are_exact():
    """M/M/1: rho/(1 - rho) T; M/D/1: half of it (Pollaczek-Khinchine)."""
    rho = np.array([0.1, 0.5, 0.9])
    assert queue_wait(rho, 2.0, 1.0, 1.0, 1.0) == pytest.approx(2.0 * rho / (1 - rho))
    assert queue_wait(rho, 2.0, 1.0, 1.0, 0.0) == pytest.approx(rho / (1 - rho))
    assert np.isinf(queue_wait(1.0, 1.0))


def test_many_servers_against_erlang_c():
    """M/M/c: Erlang C; Sakasegawa is within a tenth where waits matter."""
    c, rho = 16, 0.9
    a = c * rho
    terms = np.cumprod(np.concatenate(([1.0], a / np.arange(1, c))))
    last = terms[-1] * a / c / (1 - rho)
    exact = last / (terms.sum() + last) / (c * (1 - rho))
    assert queue_wait(rho, 1.0, c, 1.0, 1.0) == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("seats", [8, 32, 128, 512])
@pytest.mark.parametrize("fixed", [1.0, 0.5, 0.1])
def test_full_seats_against_the_exact_sums(seats, fixed):
    """Everybody goes on at a pace of 1/(fixed + (1 - fixed) n/seats); fixed = 1 is Erlang C."""
    n = np.arange(1, seats + 1)
    pace = fixed + (1 - fixed) * n / seats
    for rho in (0.6, 0.8, 0.9, 0.97):
        rate = rho * seats  # at full seats the pace is 1
        weights = np.concatenate(([0.0], np.cumsum(np.log(rate * pace / n))))
        weights = np.exp(weights - weights.max())
        above = weights[-1] / (1 - rho)
        exact = above / (weights[:-1].sum() + above)
        level = rate * fixed / (1.0 - rho * (1 - fixed))  # b = rate x pace(b)
        assert float(full_share(seats - level, rho)) == pytest.approx(exact, abs=0.04, rel=0.4), (rho, exact)


def test_full_seats_are_rare_in_calm_and_sure_in_jams():
    assert full_share(100.0, 1e-9) < 1e-9 and full_share(0.0, 1.0) == 1.0
    free = np.linspace(0.0, 50.0, 20)
    assert np.all(np.diff(full_share(free, 0.8)) < 0)
    assert np.all(full_share(free[1:], 0.8, 4.0) > full_share(free[1:], 0.8))


def test_late_requests_are_a_part_of_the_mixture():
    """A tenth waits ten seconds more: mean, quantiles and shares, against draws."""
    rng = np.random.default_rng(3)
    spread = Spread(1.0, 0.5, 0.2, late_share=0.1, late_s=10.0)
    draws = 1.0 + rng.gamma(6.25, 0.08, 400_000)
    late = rng.random(draws.size) < 0.1
    draws[late] = 1.5 + rng.exponential(10.0, late.sum())
    assert spread.mean == pytest.approx(draws.mean(), rel=0.01)
    for q in (0.5, 0.9, 0.99):
        assert spread.at(q) == pytest.approx(np.quantile(draws, q), rel=0.05), q
    assert spread.within(2.0) == pytest.approx((draws <= 2.0).mean(), abs=0.01)
    calm = Spread(1.0, 0.5, 0.2)
    assert mixed_quantile([spread, calm], [0.5, 0.5], 0.97) == pytest.approx(
        np.quantile(np.concatenate((draws, 1.0 + rng.gamma(6.25, 0.08, 400_000))), 0.97), rel=0.05
    )


def test_mixture_quantiles_against_draws():
    rng = np.random.default_rng(0)
    spread = Spread(0.5, 1.0, 0.5, 0.2, 2.0, 4.0)
    n = 400_000
    burst = rng.random(n) < 0.2
    drawn = np.where(burst, rng.uniform(2, 4, n), 0.5 + rng.gamma(4.0, 0.25, n))
    assert spread.mean == pytest.approx(drawn.mean(), rel=5e-3)
    for q in (0.5, 0.9, 0.99):
        assert spread.at(q) == pytest.approx(np.quantile(drawn, q), rel=0.03)
    other = Spread(10.0, 1.0, 0.1)
    assert mixed_quantile([spread, other], [0.5, 0.5], 0.9) > 10.0 > mixed_quantile([spread, other], [0.9, 0.1], 0.5)


def test_quantiles_broadcast():
    spread = Spread(np.array([0.0, 1.0]), 1.0, np.array([[0.1], [0.2]]), 0.1, 0.0, 1.0)
    assert spread.at(0.9).shape == (2, 2)


def test_clumps_of_gamma_gaps_against_draws():
    """Arrivals that follow one within an exponential time, beyond the mean number, and that one among them."""
    rng = np.random.default_rng(0)
    for cv2 in (0.5, 1.0, 4.0):
        at = np.cumsum(rng.gamma(1.0 / cv2, cv2, 400_000))
        for x in (0.1, 1.0, 10.0):
            ends = at[:300_000] + rng.exponential(x, 300_000)
            followed = np.searchsorted(at, ends) - np.arange(300_000)  # that one among them
            assert float(clump(x, cv2)) == pytest.approx(followed.mean() - x, abs=0.03 * (1 + x)), (cv2, x)
    assert clump(np.array([0.01, 3.0]), 1.0) == pytest.approx([1.0, 1.0])


def test_poisson_numbers_that_are_not_zero():
    rng = np.random.default_rng(0)
    for x in (0.1, 1.0, 5.0):
        n = rng.poisson(x, 400_000)
        n = n[n > 0]
        assert float(together(x)) == pytest.approx(n.mean(), rel=0.01)
        assert float(lone(x)) == pytest.approx((n == 1).mean(), abs=0.004)
