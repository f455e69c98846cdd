"""How many kernels the host launches for a step; what launching costs is said by `elementwise.host_gap_time`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
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


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """What launching a decode step takes the host, by how many sequences of a rank are in it."""

    held_s: float = 0.0  # where graphs hold it: none of its time, or that of the pieces between graphs
    eager_s: float = 0.0  # where none does
    most: float = np.inf  # sequences in the largest step that was captured

    def seconds(self, batch: Array) -> Array:
        """Least seconds of a step of `batch` sequences.

        Formula:  t_held up to the largest captured batch, launches x t_launch beyond
        Args:     batch [-] sequences of one rank
        Returns:  [s]
        Source:   engines replay a graph where one was captured for the batch and else run the model's code: vLLM
                  CudagraphDispatcher, SGLang CudaGraphRunner.can_run

        >>> [float(DecodeLaunch(0.0, 0.03, 160.0).seconds(b)) for b in (160.0, 161.0)]
        [0.0, 0.03]
        """
        return np.where(batch > self.most, self.eager_s, self.held_s)

    @property
    def never(self) -> bool:
        """Whether no step waits for it."""
        return self.held_s == 0.0 and (self.eager_s == 0.0 or self.most == np.inf)
