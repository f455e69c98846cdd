"""Evaluating in blocks and choosing from a menu change how numbers are made, not the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.arrays import cuts
from roofline.kernels.blocks import in_blocks, quickest

RNG = np.random.default_rng(0)
shapes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


@given(shapes, st.integers(1, 50))
def test_cuts_cover_every_element_once(shape, most):
    seen = np.zeros(shape, int)
    for cut in cuts(shape, most):
        seen[cut] += 1
        assert seen[cut].size <= most
    assert (seen == 1).all()


@given(shapes, st.integers(1, 50), st.data())
def test_inputs_keep_their_axes(shape, block, data):
    """Each input varies along some axes only; a formula of them is the one of full arrays."""
    kept = data.draw(st.lists(st.sampled_from(range(len(shape))), max_size=2))
    x = RNG.random(tuple(n if i in kept else 1 for i, n in enumerate(shape)))
    y, z = RNG.random(shape), RNG.random(shape[-1:])
    total, product = in_blocks(lambda a, b, c, d: (a + 2.0 * b - c / d, a * b), [x, y, z, 3.0], 2, block)
    assert np.array_equal(total, x + 2.0 * y - z / 3.0)
    assert np.array_equal(product, np.broadcast_to(x * y, shape))


def test_numbers_stay_numbers():
    assert in_blocks(lambda a, b: (a + b, a * b), [2.0, 3], 2) == [5.0, 6.0]


def test_no_points_no_results():
    assert [x.shape for x in in_blocks(lambda a, b: (a.max(), b), [np.empty((4, 0)), 3.0], 2)] == [(4, 0)] * 2


@pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
def test_the_quickest_is_the_first_of_the_least(shape):
    menu = np.array([(i, j) for i in range(3) for j in (2.0, 0.5, 2.0, 1.0)]).T
    x = RNG.integers(0, 4, shape).astype(float)

    def way(a, b):
        return np.where(b > 0.6, (x - a) ** 2 + np.floor(b), np.inf), a, b

    least, a, b = quickest(way, menu, (x,))
    for at in np.ndindex(shape):
        tried = [((x[at] - i) ** 2 + np.floor(j), i, j) for i, j in menu.T if j > 0.6]
        assert (least[at], a[at], b[at]) == min(tried, key=lambda t: t[0])
