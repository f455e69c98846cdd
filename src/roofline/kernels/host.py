"""How many kernels the host launches for a step; what launching costs is said by `elementwise.host_gap_time`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roofline.ops import Op

# Kernels that one execution of an op launches where they are not captured in a graph; every other kind launches one.
LAUNCHES = {"experts": 5.0, "exchange": 2.0}


def launches(op: Op) -> float:
    """Kernels that one execution of an op launches.

    Formula:  elementwise: its kernels; gemm: 2 where activations are quantised first, else 1; experts 5 (permute, two
              grouped products, activation, combine); exchange 2; others 1
    Returns:  [-]
    Source:   counts of kernels in the engines' layers

    >>> from roofline.ops import Gemm, Elementwise
    >>> launches(Gemm("q", 1.0, 8.0, 8.0)), launches(Elementwise("norm", 64.0, kernels=2.0))
    (1.0, 2.0)
    """
    if op.kind == "elementwise":
        return float(np.max(op.kernels))
    if op.kind == "gemm" and op.weight.act_bits < 16 and not op.static_scales:
        return 2.0
    return LAUNCHES.get(op.kind, 1.0)


def step_launches(ops: Iterable[Op]) -> float:
    """Kernels that a step launches.

    Formula:  sum of count x launches
    Returns:  [-]
    Source:   definition
    """
    return sum(float(np.max(op.count)) * launches(op) for op in ops)
