"""Elementwise formulas over large tables, a block at a time, and the quickest of a menu of ways."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from roofline.arrays import Array, cuts, is_scalar

BLOCK = 4096  # points evaluated at once, so that the candidates of a large table stay in cache

# Once an array of this size (8 MB) has been freed, glibc keeps what is freed for the next temporaries (mallopt(3), the
# dynamic M_MMAP_THRESHOLD). Having pages back from the system would cost as much as the arithmetic on them.
np.empty(1 << 20)


def in_blocks(formula: Callable[..., tuple], inputs: list[Array], outputs: int, block: int = BLOCK) -> list[Array]:
    """Return the `outputs` results of an elementwise formula of inputs that broadcast, evaluated a block at a time.

    An axis that an input does not depend on keeps length 1 in it: terms of few inputs are small arrays. The longest
    axis comes last, as numpy's inner loop.
    """
    if is_scalar(*inputs):
        return [np.asarray(x)[()] for x in formula(*map(float, inputs))]
    shape = np.broadcast_shapes(*(np.shape(x) for x in inputs))
    if 0 in shape:
        return [np.empty(shape)] * outputs
    order = sorted(range(len(shape)), key=shape.__getitem__)
    arrays = [_placed(x, len(shape)).transpose(order) if np.ndim(x) else float(x) for x in inputs]
    if math.prod(shape) <= block:
        back = np.argsort(order)
        sorted_shape = tuple(shape[i] for i in order)
        return [np.broadcast_to(x, sorted_shape).transpose(back) for x in formula(*arrays)]
    joined = [np.empty(shape) for _ in range(outputs)]
    turned = [x.transpose(order) for x in joined]
    for cut in cuts(turned[0].shape, block):
        part = formula(*(x if isinstance(x, float) else _cut(x, cut) for x in arrays))
        for whole, piece in zip(turned, part, strict=True):
            whole[cut] = piece
    return joined


def quickest(way: Callable[..., tuple], menu: tuple[np.ndarray, ...], ndim: int) -> tuple:
    """Return the results of `way(*choice)` for the choice of a menu that has the least first result, point by point.

    Args:     way: a formula of one value of each array of `menu` (these broadcast), inf for what is not possible;
              ndim: axes of its results besides those of the menu, which come first
    """
    tried = way(*(x.reshape(x.shape + (1,) * ndim) for x in menu))[0]
    every = [x.reshape(-1) for x in np.broadcast_arrays(*menu)]
    best = np.argmin(tried.reshape(-1, *tried.shape[tried.ndim - ndim :]), axis=0)
    return way(*(x[best] for x in every))


def _placed(x: Array, ndim: int) -> np.ndarray:
    x = np.asarray(x, float)
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def _cut(x: np.ndarray, cut: tuple[slice, ...]) -> np.ndarray:
    return x[tuple(c if n > 1 else slice(None) for n, c in zip(x.shape, cut))]
