"""Length distributions and the occupancy of batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.errors import InputError
from roofline.serving.lengths import (
    as_lengths,
    continuous_occupancy,
    expected_static_occupancy,
    fixed,
    observed,
    static_occupancy,
    uniform,
)


def test_uniform_matches_drawn_lengths():
    """Mean and variation of a million draws (origin: the distribution itself)."""
    drawn = np.random.default_rng(0).uniform(0.8 * 1024, 1024, 1_000_000)
    lengths = uniform(1024.0, 0.8)
    assert lengths.mean == pytest.approx(drawn.mean(), rel=1e-3)
    assert lengths.cv == pytest.approx(drawn.std() / drawn.mean(), rel=1e-2)
    assert lengths.ratio_min == pytest.approx(0.8)


def test_fixed_and_observed():
    assert fixed(100.0).ratio_min == 1.0 and as_lengths(fixed(7.0)) == fixed(7.0)
    assert as_lengths(7.0).mean == 7.0 and as_lengths(7.0).ratio_min == 0.0
    seen = observed([1, 2, 3])
    assert (seen.mean, seen.longest) == (2.0, 3.0)
    for bad in ([], [0.0], [np.nan]):
        with pytest.raises(InputError):
            observed(bad)


@pytest.mark.parametrize("lengths", [(3, 7, 5, 11), (2, 5, 4, 8)])
def test_static_batching_keeps_59_percent_of_the_seats_busy(lengths):
    """Two reconstructions of a textbook figure that prints 59 % (B50, B51); continuous batching: 100 % (B52)."""
    assert 100 * static_occupancy(np.array(lengths)) == pytest.approx(59.0, abs=0.5)
    assert continuous_occupancy(backlog=7, seats=4) == 1.0


def test_expected_static_occupancy_matches_drawn_batches():
    """Ratio of means over a hundred thousand batches (origin: the draws)."""
    lengths, seats = uniform(1000.0, 0.2), 8
    batches = np.random.default_rng(1).uniform(200, 1000, (100_000, seats))
    drawn = batches.mean() / batches.max(axis=1).mean()
    assert expected_static_occupancy(lengths, seats) == pytest.approx(drawn, rel=5e-3)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=30))
def test_occupancy_is_a_share(lengths):
    share = static_occupancy(np.array(lengths))
    assert 1.0 / len(lengths) <= share <= 1.0
