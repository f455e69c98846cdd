"""Waiting lines against exact results and simulated queues."""

import numpy as np
import pytest

from roofline.serving.queueing import Spread, gamma_quantile, mixed_quantile, normal_quantile, queue_wait


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
