"""How the times of ops combine to the time of a step: serial kernels, overlapped streams, or one megakernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from roofline.arrays import Array, is_scalar
from roofline.errors import InputError
from roofline.kernels.elementwise import host_gap_time
from roofline.kernels.host import step_launches
from roofline.kernels.times import OpTime
from roofline.ops import MATMULS, NETWORK

PARTS = ("weights", "kv", "activations", "compute", "network", "overhead")
SCHEDULES = ("serial", "overlapped", "megakernel")


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, and on demand where they go; every number broadcasts like the shapes of the ops."""

    times: tuple[OpTime, ...]
    total_s: Array
    scale: Array  # what overlap leaves of the serial sum
    host_gap_s: Array

    def __repr__(self) -> str:
        return f"<StepTime: {len(self.times)} kinds of ops, {self.total_s} s>"

    def _sum(self, term: Callable[[OpTime], Array]) -> Array:
        return sum(t.op.count * term(t) for t in self.times)

    @cached_property
    def parts_s(self) -> dict[str, Array]:
        """Seconds by what they are spent on; they add up to `total_s`.

        Each op's time goes to what bounds it (a memory-bound op's to weights, KV and activations by their bytes);
        launch floors, small kernels and host gaps are overhead.
        """
        shares = [t.parts_s for t in self.times]
        parts = {n: sum(t.op.count * s[n] for t, s in zip(self.times, shares)) * self.scale for n in PARTS}
        parts["overhead"] = parts["overhead"] + self.host_gap_s * self.scale
        return parts

    def waiting(self, more_s: Array, least_s: Array) -> StepTime:
        """The same step where the host needs `more_s` more before the next one, and at least `least_s` in all."""
        total = np.maximum(self.total_s + more_s, least_s)
        return replace(self, total_s=total, host_gap_s=self.host_gap_s + (total - self.total_s) / self.scale)

    def busy_s(self, lane: str) -> Array:
        """Seconds of it in which compute, memory or network is busy, whether or not it sets the pace."""
        return self._sum(lambda t: t.lane_s(lane)) * self.scale

    @cached_property
    def band_s(self) -> tuple[Array, Array]:
        """80 % band of `total_s`.

        Formula:  within a kind of op deviations add up (one kernel model errs the same way in every layer); between
                  kinds they add in quadrature
        Assumes:  errors of different kinds of kernel are independent, those of one kind fully dependent
        Error:    coverage of whole steps is measured in the validation of serving
        """
        down: dict[str, Array] = {}
        up: dict[str, Array] = {}
        for t in self.times:
            low, high = t.band_s
            down[t.op.kind] = down.get(t.op.kind, 0.0) + t.op.count * (t.total_s - low)
            up[t.op.kind] = up.get(t.op.kind, 0.0) + t.op.count * (high - t.total_s)
        below = np.sqrt(sum(np.square(v) for v in down.values())) * self.scale
        above = np.sqrt(sum(np.square(v) for v in up.values())) * self.scale
        return self.total_s - below, self.total_s + above

    @cached_property
    def flops(self) -> Array:
        """FLOPs of one rank."""
        return self._sum(lambda t: t.op.flops)

    @cached_property
    def matmul_flops(self) -> Array:
        """FLOPs of one rank in products with weights: 2 per active weight and token."""
        return sum(t.op.count * t.op.flops for t in self.times if t.op.kind in MATMULS)

    @cached_property
    def bytes(self) -> Array:
        """Bytes over the memory bus of one rank."""
        return self._sum(lambda t: t.op.bytes)

    @cached_property
    def weight_bytes(self) -> Array:
        """Weight bytes read by one rank."""
        return self._sum(lambda t: t.op.weight_bytes)

    @cached_property
    def kv_bytes(self) -> Array:
        """KV bytes read and written by one rank."""
        return self._sum(lambda t: t.op.kv_bytes)

    @cached_property
    def evidence(self) -> str:
        """The weakest evidence among the ops that take at least 1 % of the step."""
        worst = 0
        for t in self.times:
            if _RANK[t.evidence] > worst and self._matters(t):
                worst = _RANK[t.evidence]
        return next(name for name, rank in _RANK.items() if rank == worst)

    def _matters(self, t: OpTime) -> bool:
        matters = t.op.count * t.total_s > 0.01 * self.total_s
        return bool(matters) if is_scalar(matters) else bool(np.any(matters))


_RANK = {"measured": 0, "transferred": 1, "datasheet": 2}


def compose(
    times: list[OpTime], *, schedule: str = "serial", host_gap_s: Array = 0.0, launch_s: float = 0.0
) -> StepTime:
    """The time of a step from the times of its ops on one rank.

    Formula:  serial: sum of t; overlapped: max(sum of on-device t, sum of network t);
              megakernel: max(sum of memory t, sum of compute t, sum of network t) + one launch;
              without a graph the first two wait for the host: at least launches x t_launch
    Args:     times; schedule "serial" | "overlapped" | "megakernel"; host_gap_s [s] once per step; launch_s t_launch
              [s] host time per kernel, 0 where a graph holds them
    Returns:  StepTime
    Assumes:  serial: kernels of one stream wait for each other (CUDA graphs remove gaps, not dependencies);
              megakernel: the loads of the next op are issued while this one computes, at the bandwidth that the
              op's own kernel reaches
    Source:   serial, overlapped: definitions; megakernel: Hazy Research, "Look Ma, No Bubbles!", May 2025
    """
    if schedule not in SCHEDULES:
        raise InputError(f"schedule: '{schedule}' is not one of {', '.join(SCHEDULES)}")
    serial = sum(t.op.count * t.total_s for t in times) + host_gap_s
    scale: Array = 1.0
    if schedule == "overlapped":
        network = sum(t.op.count * t.total_s for t in times if t.op.kind in NETWORK)
        scale = np.maximum(serial - network, network) / serial
    elif schedule == "megakernel":
        lanes = [sum(t.op.count * t.lane_s(lane) for t in times) for lane in ("compute", "memory", "network")]
        launch = max((np.max(t.launch_s) for t in times), default=0.0)
        scale = np.minimum((np.maximum(np.maximum(*lanes[:2]), lanes[2]) + launch + host_gap_s) / serial, 1.0)
    if launch_s and schedule != "megakernel":  # a megakernel is one launch
        waiting = host_gap_time(step_launches(t.op for t in times), serial * scale, launch_s=launch_s)
        host_gap_s, serial = host_gap_s + waiting / scale, serial + waiting / scale
    return StepTime(tuple(times), serial * scale, scale, host_gap_s)
