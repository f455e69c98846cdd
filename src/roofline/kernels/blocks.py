"""Elementwise formulas over large tables, a block at a time, and the quickest of a menu of ways."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from roofline.arrays import Array, cuts, is_scalar, shape_of

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
        return [float(x) for x in formula(*map(float, inputs))]
    arrays = [float(x) if is_scalar(x) else np.asarray(x, float) for x in inputs]
    shape = np.broadcast_shapes(*(x.shape for x in arrays if not isinstance(x, float)))
    if 0 in shape:
        return [np.empty(shape)] * outputs
    if math.prod(shape) <= block:
        return [x if shape_of(x) == shape else np.broadcast_to(x, shape) for x in formula(*arrays)]
    order = sorted(range(len(shape)), key=shape.__getitem__)
    arrays = [x if isinstance(x, float) else _placed(x, len(shape)).transpose(order) for x in arrays]
    joined = [np.empty(shape) for _ in range(outputs)]
    turned = [x.transpose(order) for x in joined]
    for cut in cuts(turned[0].shape, block):
        part = formula(*(x if isinstance(x, float) else _cut(x, cut) for x in arrays))
        for whole, piece in zip(turned, part, strict=True):
            whole[cut] = piece
    return joined


def quickest(way: Callable[..., tuple], menu: np.ndarray, inputs: tuple[Array, ...]) -> tuple:
    """Return the results of `way(*choice)` for the choice of a menu that has the least first result, point by point.

    Args:     way: a formula of one value of each row of `menu`, inf for what is not possible; menu [field, choice];
              inputs: what its results depend on besides; the axis of choices comes before theirs
    """
    ndim = max(len(shape_of(x)) for x in inputs)
    best = np.argmin(way(*menu.reshape(menu.shape + (1,) * ndim))[0], axis=0)
    return way(*menu[:, best])


def _placed(x: np.ndarray, ndim: int) -> np.ndarray:
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def _cut(x: np.ndarray, cut: tuple[slice, ...]) -> np.ndarray:
    return x[tuple(c if n > 1 else slice(None) for n, c in zip(x.shape, cut))]
