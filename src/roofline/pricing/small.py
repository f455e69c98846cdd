"""Prices of what is neither a matrix product, softmax attention nor communication."""

from __future__ import annotations

from functools import partial

import numpy as np

from roofline.calibrated import Calibrated
from roofline.kernels.elementwise import ElementwiseConstants, elementwise_time
from roofline.kernels.state import StateConstants, index_scores_time, state_update_time
from roofline.kernels.times import OpTime
from roofline.machine import Machine
from roofline.ops import Elementwise, IndexScores, StateUpdate
from roofline.pricing.common import timed

SMALL_BAND = {"all": (0.6, 1.5)}  # fixed time of a small kernel: 1.5 to 6 us over the kernels of a layer
STATE = StateConstants()
ANY = partial(str, "all")  # the regime of kernels that have but one
UNMEASURED = Calibrated(STATE, {}, "transferred", "", "", None)


def elementwise(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    constants = ElementwiseConstants(kernel_s=float(machine.engine.step.small_kernel_s))
    # the fixed time was fitted to served steps of the devices that have kernel constants of their own
    evidence = "measured" if machine.accelerator.achieved else "transferred"
    found = Calibrated(constants, SMALL_BAND, evidence, "", "", None)
    out = []
    for sheet in sheets:
        op: Elementwise = sheet.op
        total = elementwise_time(op.moved_bytes, chip=machine.chip, constants=constants, kernels=op.kernels)
        out.append(timed(sheet, total, op.kernels * constants.kernel_s, found, ANY))
    return out


def states(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    """Recurrent states of linear attention and state-space layers."""
    out = []
    for sheet in sheets:
        op: StateUpdate = sheet.op
        s = op.sequences
        total = state_update_time(
            s.count, s.new, op.heads, op.key_dim, op.value_dim, chip=machine.chip, state_bytes=op.state_bytes,
            peak_flops_per_s=machine.peak_flops_per_s(op), flops_per_element=op.flops_per_element,
        )  # fmt: skip
        out.append(timed(sheet, total, STATE.launch_s, UNMEASURED, ANY))
    return out


def scores(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    """Scores of a sparse indexer; a compressed cache has one key for `ratio` positions."""
    out = []
    for sheet in sheets:
        op: IndexScores = sheet.op
        s = op.sequences
        total = index_scores_time(
            s.count, s.new, np.asarray(s.past, float) / op.ratio, op.heads, op.dim, chip=machine.chip,
            peak_flops_per_s=machine.peak_flops_per_s(op), key_bytes=op.key_bytes,
        )  # fmt: skip
        out.append(timed(sheet, total, STATE.launch_s, UNMEASURED, ANY))
    return out
