"""Kernels that only move bytes: norms, RoPE, activations, quantisers; and the cost of launching anything at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from roofline.arrays import larger, where
from roofline.kernels.chip import Array, Chip

L2_SHARE = 0.7  # [-] part of the L2 that a buffer can count on between two calls
WARM_SHARE = 0.3  # [-] time of a pass over bytes that are in L2, as a share of the same pass over HBM


@dataclass(frozen=True, slots=True)
class ElementwiseConstants:
    """How well byte-moving kernels do; the defaults serve any GPU."""

    memory_fraction: Array = 0.70  # [-] of datasheet bandwidth, reads and writes together
    kernel_s: Array = 3.6e-6  # [s] fixed time of one small kernel inside a CUDA graph: start, one latency, drain

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {"memory_fraction": (0.2, 1.0), "kernel_s": (0.0, 2e-5)}


IDENTITY = ElementwiseConstants(memory_fraction=1.0, kernel_s=0.0)


def warm_share(footprint_bytes: Array, l2_bytes: Array, cold: Array = True) -> Array:
    """Return the share of a footprint that is found in L2 when the same buffers are used again.

    Formula:  1 / (1 + (Y / (0.7 L2))^4), and 0 where `cold`
    Args:     footprint_bytes Y [B], l2_bytes L2 [B], cold: True when other data pass through L2 in between (serving)
    Returns:  [-] 0 to 1
    Assumes:  least-recently-used replacement; the fourth power stands for imperfect hashing over slices
    Error:    part of the kernels that use it
    Source:   form of LRU miss curves, exponent and 0.7 chosen on the kernel tables

    >>> float(warm_share(35e6, 50e6, cold=False))
    0.5
    """
    y = footprint_bytes / (L2_SHARE * larger(l2_bytes, 1.0))
    y = y * y
    return where(cold, 0.0, 1.0 / (1.0 + y * y))


def elementwise_time(
    moved_bytes: Array, *, chip: Chip, constants: ElementwiseConstants | None = None, kernels: Array = 1.0
) -> Array:
    """Return seconds of `kernels` small kernels that together read and write `moved_bytes`.

    Formula:  kernels t_kernel + Y / (f BW)
    Args:     moved_bytes Y [B]; chip.bandwidth_bytes_per_s BW [B/s]; constants f [-], t_kernel [s]; kernels [-] may be
              fractional (an average over layers); floats or arrays that broadcast
    Returns:  [s]
    Assumes:  launched from a graph; each kernel makes one pass over its operands
    Error:    not measured alone; 3.6 us per kernel is the value at which 1,272 served decode steps agree best with the
              sum of their kernels (3.3-4.1 us over left-out models, systems and engines)
    Source:   derivation
    """
    c = ElementwiseConstants() if constants is None else constants
    return kernels * c.kernel_s + moved_bytes / (chip.bandwidth_bytes_per_s * c.memory_fraction)


def quantise_time(
    rows: Array,
    columns: Array,
    *,
    chip: Chip,
    act_bytes_per_el: Array,
    kernel_s: Array,
    row_s: Array,
    memory_fraction: Array,
    in_bytes_per_el: Array = 2.0,
    cold: Array = True,
) -> Array:
    """Return seconds of quantising `rows` x `columns` activations just before a matmul.

    Formula:  t_kernel + rows/SM t_row + rows columns (in + out) (1 - 0.7 h) / (f BW),  h = warm_share
    Args:     rows, columns [-]; act_bytes_per_el out [B]; in_bytes_per_el in [B]; kernel_s, row_s [s] (row_s: time one
              SM spends on one row beyond its bytes, the reduction for the row's scale); memory_fraction f [-]; cold
    Returns:  [s]
    Assumes:  one block per row (token), rows dealt evenly to SMs
    Error:    held out with the fp8 and nvfp4 GEMMs that contain it: see `gemm_time`
    Source:   derivation; the row term is what separates per-token from per-tensor quantisers
    """
    moved = rows * columns * (in_bytes_per_el + act_bytes_per_el)
    passes = 1.0 - (1.0 - WARM_SHARE) * warm_share(moved, chip.l2_bytes, cold)
    return kernel_s + rows / chip.sms * row_s + moved * passes / (chip.bandwidth_bytes_per_s * memory_fraction)


def host_gap_time(kernels: Array, device_s: Array, *, launch_s: Array = 4e-6) -> Array:
    """Return seconds by which launching one kernel after another from the host outlasts the device's own work.

    Formula:  max(0, kernels t_launch - t_device)
    Args:     kernels [-] launches of the step, device_s [s] sum of their times, launch_s [s] host time per launch
    Returns:  [s] 0 inside a CUDA graph, where the host launches once
    Assumes:  launches are asynchronous and the queue never fills
    Error:    not measured; the launch time depends on the host and the framework (2-10 us)
    Source:   derivation

    >>> round(float(host_gap_time(1000, 2.5e-3)) * 1e3, 3)
    1.5
    """
    return np.maximum(0.0, kernels * launch_s - device_s)
