"""Seconds of every op of a step on a machine: datasheet roofline, or the calibrated model of its kind of kernel.

Ops of one kind and array shape are priced in one call: a step of thirty ops costs a handful of array evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from roofline.arrays import Array
from roofline.calibrated import Calibrated
from roofline.kernels.collective import CollectiveConstants, collective_latency, collective_time
from roofline.kernels.elementwise import ElementwiseConstants, elementwise_time
from roofline.kernels.gemm import UNTILED, GemmConstants, GemmTerms, gemm_terms
from roofline.kernels.moe import MoeConstants, MoeTerms, fastest_moe_terms
from roofline.kernels.times import OpTime
from roofline.machine import Machine
from roofline.ops import Collective, Elementwise, Exchange, Experts, Gemm, Op
from roofline.parallel import Plan
from roofline.precision import Format

# The name of a storage format in kernel tables, where the hardware multiplies it natively, and where it does not.
NATIVE = {
    "fp16": "bf16",
    "int8": "w8a8_int8",
    "mxfp4": "w4a16_mxfp4",
    "mxfp4_mxfp8": "w4a8_mxfp4_mxfp8",
    "fp8_channel": "fp8_channel",
}


def op_times(ops: list[Op], machine: Machine, plan: Plan) -> list[OpTime]:
    """The times of the ops of a step, in order; small kernels that the engine fuses into others are left out.

    Args:     ops of one rank; plan: fused kernels may depend on tp
    Returns:  list of OpTime, one per op that runs
    """
    profile = machine.engine.step
    fused = profile.fused + (profile.fused_tp if plan.tp > 1 else ())
    ops = [op for op in ops if not (op.kind == "elementwise" and any(fnmatchcase(op.name, f) for f in fused))]
    if profile.kernels == "datasheet":
        return [machine.datasheet(op) for op in ops]
    times: list[OpTime | None] = [None] * len(ops)
    batches: dict[tuple, list[int]] = {}
    for i, op in enumerate(ops):
        if any(fnmatchcase(op.name, f) for f in profile.beside):
            times[i] = _beside(op, machine)
            continue
        batches.setdefault((op.kind, _shape(op)), []).append(i)
    for (kind, _), indices in batches.items():
        price = PRICES.get(kind, _datasheet)
        for i, time in zip(indices, price([ops[i] for i in indices], machine), strict=True):
            times[i] = time
    return times


def _shape(op: Op) -> tuple[int, ...]:
    """Broadcast shape of what an op costs."""
    return np.broadcast_shapes(np.shape(op.flops), np.shape(op.bytes), np.shape(op.wire_bytes))


def stacked(values: list[Array], ndim: int) -> Array:
    """One array with a leading axis over ops, and `ndim` axes after it, from values that broadcast."""
    if all(np.ndim(v) == 0 for v in values):
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


def timed(op: Op, machine: Machine, total: Array, launch: Array, found: Calibrated, regime: Array | str) -> OpTime:
    """An OpTime from a kernel model's seconds: never below the datasheet roofline, with the band of its regime."""
    sheet = machine.datasheet(op)
    total = np.maximum(total, sheet.total_s)
    low, high = band(found, regime)
    return OpTime(
        op, sheet.compute_s, sheet.memory_s, sheet.network_s, np.minimum(launch, total),
        total, total * low, total * high, found.evidence,
    )  # fmt: skip


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


def _beside(op: Op, machine: Machine) -> OpTime:
    """An op on a second stream: hidden under the main one but for the bytes that both have to move."""
    sheet = machine.datasheet(op)
    total = op.weight_bytes / machine.chip.bandwidth_bytes_per_s + 0.0 * sheet.total_s
    return replace(sheet, total_s=total, low_s=total, high_s=total, evidence="measured")


REGIMES = ("compute", "memory", "latency", "launch")


def regime_index(terms: GemmTerms | MoeTerms) -> Array:
    """Index into REGIMES of the longest of a kernel's terms."""
    parts = (terms.compute_s, terms.memory_s, terms.latency_s, terms.launch_s)
    return np.argmax(np.stack(np.broadcast_arrays(*parts)), axis=0)


def _datasheet(ops: list[Op], machine: Machine) -> list[OpTime]:
    return [machine.datasheet(op) for op in ops]


def _gemms(ops: list[Gemm], machine: Machine) -> list[OpTime]:
    """Plain matrix products; independent products (`batch`) run one after another inside one launch."""
    kind = machine.accelerator.kind
    default = GemmConstants() if kind.startswith(("gpu", "soc")) else UNTILED
    found = [machine.constants("gemm", table_format(op.weight, machine), default) for op in ops]
    quantised = [_quantises(op, machine) for op in ops]
    shape = _shape(ops[0])
    tail = (len(ops),) + (1,) * len(shape)
    native = [machine.accelerator.is_native(machine.operand(op.weight)) for op in ops]
    terms = gemm_terms(
        *(stacked([getattr(op, side) for op in ops], len(shape)) for side in ("m", "n", "k")),
        chip=machine.chip,
        peak_flops_per_s=np.array([machine.peak_flops_per_s(op) for op in ops]).reshape(tail),
        weight_bytes_per_el=np.array([op.weight.element_bytes for op in ops]).reshape(tail),
        act_bytes_per_el=np.array([op.weight.act_bits / 8.0 if n else 2.0 for op, n in zip(ops, native)]).reshape(tail),
        quantise=np.array(quantised, float).reshape(tail),
        constants=records(found, len(shape)),
    )  # fmt: skip
    regimes = np.array(REGIMES)[regime_index(terms)]
    launches = np.broadcast_to(terms.launch_s, np.shape(terms.time_s))
    out = []
    for i, op in enumerate(ops):
        total = launches[i] + (terms.time_s[i] - launches[i]) * op.batch
        regime = str(regimes[i]) if regimes.ndim == 1 else regimes[i]
        out.append(timed(op, machine, total, launches[i], found[i], regime))
    return out


def _quantises(op: Gemm, machine: Machine) -> bool:
    """Whether a kernel quantises the 16-bit activations before the product."""
    return (
        op.weight.act_bits < 16 and not op.static_scales and machine.accelerator.is_native(machine.operand(op.weight))
    )


def _elementwise(ops: list[Elementwise], machine: Machine) -> list[OpTime]:
    constants = ElementwiseConstants(kernel_s=float(machine.engine.step.small_kernel_s))
    found = Calibrated(constants, {"all": (0.6, 1.5)}, "transferred", "", "", None)
    out = []
    for op in ops:
        total = elementwise_time(op.moved_bytes, chip=machine.chip, constants=constants, kernels=op.kernels)
        out.append(timed(op, machine, total, op.kernels * constants.kernel_s, found, "all"))
    return out


def _experts(ops: list[Experts], machine: Machine) -> list[OpTime]:
    return [_moe(op, machine) for op in ops]


def _moe(op: Experts, machine: Machine) -> OpTime:
    """Routed experts with the fastest kernel that the engine has (any engine's, where it has none of its own)."""
    fmt = table_format(op.weight, machine)
    if fmt == "fp8_channel":  # runs in the kernels of block-scaled experts; per-tensor fp8 has kernels of its own
        fmt = "fp8_block"
    native = machine.accelerator.is_native(machine.operand(op.weight))
    found = machine.kernels("moe", fmt, MoeConstants())
    terms, winner = fastest_moe_terms(
        [c.constants for c in found], op.tokens, op.hidden, op.inter, op.experts, op.top_k,
        chip=machine.chip, peak_flops_per_s=machine.peak_flops_per_s(op), tp=op.tp, ep=op.ep, matrices=op.matrices,
        weight_bytes_per_el=op.weight.element_bytes,
        act_bytes_per_el=op.weight.act_bits / 8.0 if native else 2.0,
    )  # fmt: skip
    bands = np.array([[band(c, regime) for regime in REGIMES] for c in found])  # [kernel, regime, 2]
    low, high = np.moveaxis(bands[winner, regime_index(terms)], -1, 0)
    sheet = machine.datasheet(op)
    total = np.maximum(terms.time_s, sheet.total_s)
    return OpTime(
        op, sheet.compute_s, sheet.memory_s, sheet.network_s, np.minimum(terms.launch_s, total),
        total, total * low, total * high, found[0].evidence,
    )  # fmt: skip


# The pattern of a collective as the kernel model and its tables name it.
_PATTERNS = {"all_to_all": "alltoall"}


def _collectives(ops: list[Collective], machine: Machine) -> list[OpTime]:
    return [_collective(op, machine) for op in ops]


def _collective(op: Collective, machine: Machine) -> OpTime:
    """One collective: over the scale-up links with the engine's library, between domains over the network."""
    kind = _PATTERNS.get(op.pattern, op.pattern)
    inside = machine.inside_domain(op)
    found = machine.constants("collective", "any", CollectiveConstants(), kind)
    chip = machine.chip
    if not inside:
        found = Calibrated(CollectiveConstants(), {}, "transferred", "", "any", None)
        link = machine.link_bytes_per_s(op)
        chip = replace(chip, link_bytes_per_s=link, pair_bytes_per_s=link)
    price = {"chip": chip, "constants": found.constants, "in_switch": inside and machine.reduces_in_switch}
    total = collective_time(kind, op.payload_bytes, op.ranks, **price)
    launch = collective_latency(kind, op.payload_bytes, op.ranks, **price)
    regime = np.where(np.asarray(launch) > 0.5 * total, "launch", "link")
    return timed(op, machine, total, launch, found, str(regime) if regime.ndim == 0 else regime)


def _exchanges(ops: list[Exchange], machine: Machine) -> list[OpTime]:
    """Dispatch and combine in the way that takes least time, point by point."""
    out = []
    for op in ops:
        ways = [[_collective(c, machine) for c in way] for way in op.alternatives]
        totals = [sum(t.op.count * t.total_s for t in way) for way in ways]
        best = np.argmin(np.stack(np.broadcast_arrays(*totals)), axis=0)

        def pick(term: Callable[[OpTime], Array], ways=ways, best=best) -> Array:
            sums = [sum(t.op.count * term(t) for t in way) for way in ways]
            return np.choose(best, np.broadcast_arrays(*sums))[()]

        sheet = machine.datasheet(op)
        out.append(
            OpTime(
                op, sheet.compute_s, sheet.memory_s, sheet.network_s, pick(lambda t: t.launch_s),
                pick(lambda t: t.total_s), pick(lambda t: t.low_s), pick(lambda t: t.high_s), ways[0][0].evidence,
            )
        )  # fmt: skip
    return out


PRICES: dict[str, Callable[[list, Machine], list[OpTime]]] = {
    "gemm": _gemms,
    "elementwise": _elementwise,
    "experts": _experts,
    "collective": _collectives,
    "exchange": _exchanges,
}
