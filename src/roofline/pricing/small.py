"""Prices of what is neither a matrix product, softmax attention nor communication."""

from __future__ import annotations

import numpy as np

from roofline.calibrated import Calibrated
from roofline.kernels.elementwise import ElementwiseConstants, elementwise_time
from roofline.kernels.times import OpTime
from roofline.machine import Machine
from roofline.ops import Elementwise, Op
from roofline.pricing.common import timed

SMALL_BAND = {"all": (0.6, 1.5)}  # fixed time of a small kernel: 1.5 to 6 us over the kernels of a layer
STATE_LAUNCH_S = 4e-6  # launch, gates and reductions of a recurrent update or an index look-up
STATE_MEMORY_FRACTION = 0.75
STATE_COMPUTE_FRACTION = 0.35  # chunked scans and narrow products


def elementwise(ops: list[Elementwise], machine: Machine) -> list[OpTime]:
    constants = ElementwiseConstants(kernel_s=float(machine.engine.step.small_kernel_s))
    found = Calibrated(constants, SMALL_BAND, "transferred", "", "", None)
    out = []
    for op in ops:
        total = elementwise_time(op.moved_bytes, chip=machine.chip, constants=constants, kernels=op.kernels)
        out.append(timed(op, machine, total, op.kernels * constants.kernel_s, found, "all"))
    return out


def scans(ops: list[Op], machine: Machine) -> list[OpTime]:
    """Recurrent state updates and index scores: bytes and FLOPs at fixed shares of the peaks, and a launch.

    Formula:  4 us + max(bytes / (0.75 BW), FLOPs / (0.35 P))
    Error:    not measured kernel by kernel; the decode share agrees with served steps of gated-delta models
    Source:   step model of the development set (state update: 4 us + bytes / 0.75 BW)
    """
    found = Calibrated(None, {}, "transferred", "", "", None)
    out = []
    for op in ops:
        sheet = machine.datasheet(op)
        work = np.maximum(sheet.memory_s / STATE_MEMORY_FRACTION, sheet.compute_s / STATE_COMPUTE_FRACTION)
        out.append(timed(op, machine, STATE_LAUNCH_S + work, STATE_LAUNCH_S, found, "all"))
    return out
