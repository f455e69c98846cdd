"""The type of every number in a formula, the larger and smaller of two of them, and arrays in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

Array = float | np.ndarray  # a float or an array; formulas broadcast and never ask which


def larger(a: Array, b: Array) -> Array:
    """np.maximum, at the price of a comparison where both are plain numbers (a step has hundreds of them).

    >>> larger(1.0, 2.0)
    2.0
    """
    if isinstance(a, float) and isinstance(b, float):
        return a if a >= b else b
    return np.maximum(a, b)


def smaller(a: Array, b: Array) -> Array:
    """np.minimum, in the same way."""
    if isinstance(a, float) and isinstance(b, float):
        return a if a <= b else b
    return np.minimum(a, b)


def where(condition: Array, a: Array, b: Array) -> Array:
    """np.where, in the same way: a choice of Python's where the condition is a plain number or truth value.

    >>> where(1.0, 2.0, 3.0), where(np.array([True, False]), 2.0, 3.0)
    (2.0, array([2., 3.]))
    """
    if isinstance(condition, (float, int, np.bool_)):
        return a if condition else b
    return np.where(condition, a, b)


def shape_of(x: Array) -> tuple[int, ...]:
    """np.shape, in the same way."""
    return () if isinstance(x, (float, int)) else np.shape(x)


def is_scalar(*values: Array) -> bool:
    """Whether all are plain numbers."""
    for v in values:  # a loop, as all() of a generator costs twice as much, and a step asks hundreds of times
        if not isinstance(v, (float, int)) and np.ndim(v):
            return False
    return True


def cuts(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cover an array of `shape` in order, of at most `most` elements each (the last axis fastest).

    >>> [tuple((s.start, s.stop) for s in cut) for cut in cuts((2, 3), 2)]
    [((0, 1), (0, 2)), ((0, 1), (2, 3)), ((1, 2), (0, 2)), ((1, 2), (2, 3))]
    """
    tail, axis = 1, len(shape)
    while axis > 0 and tail * shape[axis - 1] <= most:
        axis -= 1
        tail *= shape[axis]
    # axes from `axis` on are taken whole, the one before it in pieces, those before that one by one
    pieces = [[slice(i, i + 1) for i in range(n)] for n in shape[: max(axis - 1, 0)]]
    if axis > 0:
        n, step = shape[axis - 1], max(most // tail, 1)
        pieces.append([slice(i, min(i + step, n)) for i in range(0, n, step)])
    whole = tuple(slice(0, n) for n in shape[axis:])
    return ((*cut, *whole) for cut in product(*pieces))
