"""Seconds of one op, and which resource they are spent on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.ops import Op

BOUNDS = ("compute", "memory", "network", "overhead")


def exactly(total_s: Array) -> tuple[Array, Array]:
    """The band of a time that is not in doubt.

    Formula:  both ends are the time itself
    Source:   definition
    """
    return total_s, total_s


@dataclass(frozen=True, slots=True)
class OpTime:
    """One op's seconds (one execution): datasheet terms, prediction, 80 % band, and the evidence behind it.

    `compute_s`, `memory_s` and `network_s` are at datasheet peaks; `total_s` is what the kernel model says and never
    less than the largest of them; `launch_s` is the part of it that does not shrink with the shape. `band` makes the
    two ends of the band: a sweep does without them.
    """

    op: Op
    compute_s: Array
    memory_s: Array
    network_s: Array
    launch_s: Array
    total_s: Array
    band: Callable[[], tuple[Array, Array]]
    evidence: str  # measured | transferred | datasheet

    @property
    def band_s(self) -> tuple[Array, Array]:
        """80 % band of `total_s`, evaluated when it is asked for."""
        return self.band()

    @property
    def low_s(self) -> Array:
        """The lower end of the band."""
        return self.band()[0]

    @property
    def high_s(self) -> Array:
        """The upper end of the band."""
        return self.band()[1]

    @property
    def bound(self) -> Array:
        """What the op waits for, one of BOUNDS (an array of names where shapes are arrays)."""
        stacked = np.stack(np.broadcast_arrays(self.compute_s, self.memory_s, self.network_s, self.launch_s))
        names = np.array(BOUNDS)[np.argmax(stacked, axis=0)]
        return str(names) if np.ndim(names) == 0 else names

    @property
    def parts_s(self) -> dict[str, Array]:
        """`total_s` by what it is spent on: the launch floor, and the rest to what bounds it.

        A memory-bound op's time is divided among weights, KV and activations by their bytes.
        """
        launch = np.minimum(self.launch_s, self.total_s)
        work = self.total_s - launch
        network = np.asarray(self.network_s) > 0
        memory = ~network & (np.asarray(self.memory_s) >= self.compute_s)
        moved = np.asarray(self.op.bytes, float)
        per_byte = np.where(memory, work / np.where(moved > 0, moved, 1.0), 0.0)
        return {
            "weights": per_byte * self.op.weight_bytes,
            "kv": per_byte * self.op.kv_bytes,
            "activations": np.where(moved > 0, per_byte * self.op.activation_bytes, np.where(memory, work, 0.0)),
            "compute": np.where(network | memory, 0.0, work),
            "network": np.where(network, work, 0.0),
            "overhead": launch,
        }

    def lane_s(self, lane: str) -> Array:
        """Seconds that one of compute, memory, network is busy, at the efficiency that this op's kernel reaches.

        Formula:  datasheet seconds of the lane x (total - launch) / largest datasheet seconds
        """
        lanes = {"compute": self.compute_s, "memory": self.memory_s, "network": self.network_s}
        top = np.maximum(np.maximum(self.compute_s, self.memory_s), self.network_s)
        stretch = (self.total_s - np.minimum(self.launch_s, self.total_s)) / np.where(top > 0, top, 1.0)
        return lanes[lane] * stretch
