"""What every price has in common: table formats, stacked shapes, regimes and bands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from roofline.arrays import Array, is_scalar, larger, smaller
from roofline.calibrated import Calibrated
from roofline.kernels.times import OpTime
from roofline.machine import Machine
from roofline.precision import Format

# The name of a storage format in kernel tables, where the hardware multiplies it natively, and where it does not.
NATIVE = {
    "fp16": "bf16",
    "int8": "w8a8_int8",
    "mxfp4": "w4a16_mxfp4",
    "mxfp4_mxfp8": "w4a8_mxfp4_mxfp8",
    "fp8_channel": "fp8_channel",
}

REGIMES = ("compute", "memory", "latency", "launch")


def stacked(values: list[Array], ndim: int) -> Array:
    """One array with a leading axis over ops, and `ndim` axes after it, from values that broadcast."""
    if is_scalar(*values):
        return np.array(values, float).reshape((len(values),) + (1,) * ndim)
    return np.stack(np.broadcast_arrays(*values))


def records(found: list[Calibrated], ndim: int) -> Any:
    """The constants of several ops as one record whose fields have a leading axis over ops."""
    first = found[0].constants
    if all(c.constants is first for c in found):
        return first
    tail = (len(found),) + (1,) * ndim
    return type(first)(
        **{f.name: np.array([getattr(c.constants, f.name) for c in found], float).reshape(tail) for f in fields(first)}
    )


def table_format(fmt: Format, machine: Machine) -> str:
    """The name under which kernel tables know weights of `fmt` on this machine.

    What the matrix unit lacks runs weight-only: 8-bit as w8a16, 4-bit as w4a16.
    """
    if fmt.bits >= 16:
        return "bf16"
    if fmt.act_bits >= 16:
        return NATIVE.get(fmt.name) or ("w8a16" if fmt.bits > 6 else "w4a16")
    if machine.accelerator.is_native(machine.operand(fmt)):
        return NATIVE.get(fmt.name, fmt.name)
    return "w8a16" if fmt.bits > 6 else "w4a16"


def timed(sheet: OpTime, total: Array, launch: Array, found: Calibrated, regime: Callable[[], Array | str]) -> OpTime:
    """An OpTime from a kernel model's seconds: never below the datasheet roofline, with the band of its regime."""
    total = larger(total, sheet.total_s)
    return OpTime(
        sheet.op, sheet.compute_s, sheet.memory_s, sheet.network_s, smaller(launch, total), total,
        partial(_band_s, total, found, regime), found.evidence,
    )  # fmt: skip


def _band_s(total: Array, found: Calibrated, regime: Callable[[], Array | str]) -> tuple[Array, Array]:
    low, high = band(found, regime())
    return total * low, total * high


# 80 % bands of measured / predicted where constants come from another device or from no device at all: held-out
# residuals of leave-one-device-out, see docs/validation.md.
TRANSFERRED_BAND = (0.75, 1.30)


def band(found: Calibrated, regime: Array | str) -> tuple[Array, Array]:
    """[p10, p90] of measured / predicted for a regime (a name, or an array of names)."""
    bands = found.bands
    everything = bands.get("all", TRANSFERRED_BAND)
    if isinstance(regime, str):
        return bands.get(regime, everything)
    low, high = np.full(np.shape(regime), everything[0]), np.full(np.shape(regime), everything[1])
    for name, (a, b) in bands.items():
        low, high = np.where(regime == name, a, low), np.where(regime == name, b, high)
    return low, high


def regime_index(terms: Any) -> Array:
    """Index into REGIMES of the longest of a kernel model's terms (GemmTerms, MoeTerms, AttentionTerms)."""
    parts = (terms.compute_s, terms.memory_s, terms.latency_s, terms.launch_s)
    return np.argmax(np.stack(np.broadcast_arrays(*parts)), axis=0)


def regime_names(terms: Any) -> Array | str:
    """The name of the longest term: text for scalars, an array of names for arrays."""
    return named(np.array(REGIMES)[regime_index(terms)])


def named(regimes: Array) -> Array | str:
    """Regimes of one op: text for scalars, an array of names for arrays."""
    return regimes if isinstance(regimes, np.ndarray) and regimes.ndim else str(regimes)
