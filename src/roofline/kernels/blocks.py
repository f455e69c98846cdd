"""Elementwise formulas over large tables, a block of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from roofline.arrays import Array, is_scalar

BLOCK = 4096  # rows evaluated at once, so that the candidates of a large table stay in cache


def in_blocks(formula: Callable[..., tuple], inputs: list[Array], outputs: int, block: int = BLOCK) -> list[Array]:
    """Return the `outputs` results of an elementwise formula, evaluated on blocks of rows of the broadcast inputs."""
    if is_scalar(*inputs):
        return [np.asarray(x)[()] for x in formula(*map(float, inputs))]
    shape = np.broadcast_shapes(*(np.shape(x) for x in inputs))
    arrays = [np.asarray(x, float) if np.ndim(x) else float(x) for x in inputs]
    rows = math.prod(shape)
    if rows <= block:  # what is the same for all rows stays one number
        return [np.broadcast_to(x, shape) for x in formula(*arrays)]
    columns = [np.broadcast_to(x, shape).reshape(-1) if np.ndim(x) else x for x in arrays]
    joined = [np.empty(rows) for _ in range(outputs)]
    for i in range(0, rows, block):
        part = formula(*(x if np.ndim(x) == 0 else x[i : i + block] for x in columns))
        for whole, piece in zip(joined, part, strict=True):
            whole[i : i + block] = piece
    return [x.reshape(shape) for x in joined]
