"""The type of every number in a formula, and the larger and smaller of two of them."""

from __future__ import annotations

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


def is_scalar(*values: Array) -> bool:
    """Whether all are plain numbers."""
    for v in values:  # a loop, as all() of a generator costs twice as much, and a step asks hundreds of times
        if not isinstance(v, (float, int)) and np.ndim(v):
            return False
    return True
