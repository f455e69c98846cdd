"""Expert loads: counting arguments they must satisfy, and agreement with routing that is sampled."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.kernels import routing
from roofline.kernels.routing import (
    busiest_rank_factor,
    even_loads,
    normal_quantile,
    power_law_loads,
    uniform_loads,
)

layouts = st.sampled_from([(8, 2), (128, 8), (256, 8), (384, 6), (512, 10), (16, 1)])
tokens = st.integers(1, 40_000)
ranks = st.sampled_from([1, 2, 4, 8])
KINDS = {
    "even": even_loads,
    "uniform": uniform_loads,
    "skewed": lambda *a: power_law_loads(*a, exponent=1.2),
}


def test_doctests():
    result = doctest.testmod(routing, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 6 and not result.failed


@pytest.mark.parametrize("kind", KINDS)
@given(tokens, layouts, ranks)
def test_loads_count_every_pair_once(kind, t, layout, ep):
    experts, top_k = layout
    loads = KINDS[kind](t, experts, top_k, ep)
    assert loads.weight.sum() == pytest.approx(1.0)
    assert 1.0 <= loads.active <= experts / ep * (1 + 1e-12)
    assert loads.active <= loads.pairs * (1 + 1e-12)
    assert loads.pairs <= max(1.0, t * min(top_k, experts / ep)) * (1 + 1e-12)
    assert loads.pairs >= t * top_k / ep * (1 - 1e-12)
    if ep == 1:
        assert loads.pairs == pytest.approx(t * top_k)
    if kind != "uniform":  # normal loads are cut at one token, which shifts their mean where it is near one
        assert loads.active * np.sum(loads.tokens * loads.weight) == pytest.approx(loads.pairs, rel=1e-9)
    for rows in (1, 8, 128):
        blocks = loads.blocks(rows)
        assert blocks >= loads.active * (1 - 1e-9)
        assert blocks * rows >= loads.active * np.sum(loads.tokens * loads.weight) * (1 - 1e-9)
    assert loads.blocks(8) >= loads.blocks(128) * (1 - 1e-9)


@given(tokens, layouts, ranks, st.integers(1, 200))
def test_more_tokens_never_fill_fewer_blocks(t, layout, ep, more):
    for kind in (even_loads, uniform_loads):
        before, after = kind(t, *layout, ep), kind(t + more, *layout, ep)
        assert after.active >= before.active * (1 - 1e-12)
        for rows in (8, 32, 128):
            assert after.blocks(rows) >= before.blocks(rows) * (1 - 1e-9)


def test_every_expert_of_a_dense_layer_sees_every_token():
    loads = uniform_loads(100, 8, 8)
    assert (loads.pairs, loads.active) == (800.0, 8.0)
    assert loads.tokens == pytest.approx(np.full(routing.UNIFORM_NODES, 100.0))


def test_arrays_equal_scalars():
    t, e, k, ep = np.array([1.0, 64.0, 4096.0]), np.array([8, 256, 128]), np.array([2, 8, 8]), np.array([1, 8, 4])
    for kind in KINDS.values():
        together = kind(t, e, k, ep)
        for i in range(3):
            alone = kind(t[i], e[i], k[i], ep[i])
            assert together.pairs[i] == pytest.approx(float(alone.pairs))
            assert together.blocks(32)[i] == pytest.approx(float(alone.blocks(32)))


def sampled_uniform(t, experts, top_k, ep, rng, draws=60):
    """Loads of rank 0 when every token draws top_k distinct experts."""
    scores = rng.random((draws, t, experts))
    picked = np.argpartition(scores, top_k, axis=-1)[..., :top_k]
    counts = np.zeros((draws, experts), int)
    for d in range(draws):
        counts[d] = np.bincount(picked[d].ravel(), minlength=experts)
    return counts[:, : experts // ep]


@pytest.mark.parametrize(("t", "experts", "top_k", "ep"), [(16, 128, 8, 1), (200, 64, 4, 2), (64, 256, 8, 4)])
def test_uniform_loads_agree_with_sampling(t, experts, top_k, ep):
    counts = sampled_uniform(t, experts, top_k, ep, np.random.default_rng(0))
    loads = uniform_loads(t, experts, top_k, ep)
    assert loads.pairs == pytest.approx(counts.sum(1).mean(), rel=0.05)
    assert loads.active == pytest.approx((counts > 0).sum(1).mean(), rel=0.03)
    for rows in (8, 16):
        assert loads.blocks(rows) == pytest.approx(np.ceil(counts / rows).sum(1).mean(), rel=0.08)


def sampled_power_law(t, experts, top_k, ep, a, rng, draws=400):
    """Loads of the busiest rank: popularity by inverse transform, scaled to t top_k pairs, capped at t."""
    low, high = (1.0, 0.8 * t) if t * top_k > experts else (0.01, 2.0)
    u = rng.random((draws, experts))
    x = ((high ** (1 - a) - low ** (1 - a)) * u + low ** (1 - a)) ** (1 / (1 - a))
    counts = np.minimum(np.rint(t * top_k * x / x.sum(1, keepdims=True)), t).reshape(draws, ep, -1)
    return counts[np.arange(draws), counts.sum(2).argmax(1)]


@pytest.mark.parametrize(
    ("t", "experts", "top_k", "ep", "a"),
    [(4096, 256, 8, 1, 1.2), (4096, 256, 8, 8, 1.2), (1024, 128, 8, 16, 1.01), (256, 384, 6, 4, 1.01)],
)
def test_power_law_loads_agree_with_sampling(t, experts, top_k, ep, a):
    counts = sampled_power_law(t, experts, top_k, ep, a, np.random.default_rng(1))
    loads = power_law_loads(t, experts, top_k, ep, a)
    assert loads.pairs == pytest.approx(counts.sum(1).mean(), rel=0.10)
    assert loads.active == pytest.approx((counts > 0).sum(1).mean(), rel=0.10)
    for rows in (8, 128):
        assert loads.blocks(rows) == pytest.approx(np.ceil(counts / rows).sum(1).mean(), rel=0.12)


def test_the_busiest_rank():
    assert busiest_rank_factor(2.0, 16, 1) == 1.0
    assert busiest_rank_factor(0.0, 16, 8) == 1.0
    assert busiest_rank_factor(1.0, 16, 8) > busiest_rank_factor(1.0, 64, 8) > 1.0
    assert uniform_loads(512, 256, 8, 8, imbalance=1.5).pairs == pytest.approx(1.5 * 512)  # mean 512 x 8 / 8
    assert normal_quantile(0.1587) == pytest.approx(1.0, abs=3e-3)  # one sigma
