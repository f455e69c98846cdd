"""Seconds of every op of a step on a machine: datasheet roofline, or the calibrated model of its kind of kernel.

Ops of one kind and array shape are priced in one call: a step of thirty ops costs a handful of array evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from operator import attrgetter

import numpy as np

from roofline.arrays import larger, shape_of
from roofline.kernels.times import OpTime, exactly
from roofline.machine import Machine
from roofline.ops import Op
from roofline.parallel import Plan
from roofline.pricing.attention import attentions, latents
from roofline.pricing.matmul import experts, gemms
from roofline.pricing.network import collectives, exchanges
from roofline.pricing.small import elementwise, scores, states
from roofline.workload import Sequences

# What makes the datasheet times of ops of one kind those of its kernels.
PRICES: dict[str, Callable[[list[OpTime], Machine], list[OpTime]]] = {
    "gemm": gemms,
    "experts": experts,
    "attention": attentions,
    "latent_attention": latents,
    "index_scores": scores,
    "state_update": states,
    "elementwise": elementwise,
    "collective": collectives,
    "exchange": exchanges,
}


def op_times(ops: list[Op], machine: Machine, plan: Plan) -> list[OpTime]:
    """The times of the ops of a step, in order; small kernels that the engine fuses into others are left out.

    Args:     ops of one rank; plan: fused kernels may depend on tp
    Returns:  list of OpTime, one per op that runs
    """
    profile = machine.engine.step
    ops = executed(ops, machine, plan)
    if profile.kernels == "datasheet":
        return [machine.datasheet(op) for op in ops]
    first: dict[tuple, int] = {}
    twins = [first.setdefault(_shapes(op), i) for i, op in enumerate(ops)]  # one of those alike is priced
    times = {i: machine.datasheet(ops[i]) for i in first.values()}
    batches: dict[tuple, list[int]] = {}
    for i, sheet in times.items():
        if _matches(sheet.op.name, profile.beside):
            times[i] = _beside(sheet, machine)
        else:
            batches.setdefault((sheet.op.kind, shape_of(sheet.total_s)), []).append(i)
    for (kind, _), indices in batches.items():
        times.update(zip(indices, PRICES[kind]([times[i] for i in indices], machine), strict=True))
    return [times[j] if i == j else replace(times[j], op=op) for i, (op, j) in enumerate(zip(ops, twins))]


def _shapes(op: Op) -> tuple:
    """All that one execution of an op depends on: two ops of which it is equal take the same time."""
    return type(op), *map(_key, _fields(type(op))(op))


@lru_cache
def _fields(kind: type) -> Callable[[object], tuple]:
    return attrgetter(*(f.name for f in fields(kind) if f.name != "count"))


def _key(value) -> object:
    """Something to compare a field of an op by: arrays by what they hold, records by being the same one."""
    if isinstance(value, (str, float, int)):
        return value
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.char, value.tobytes()
    if isinstance(value, Sequences):
        return tuple(map(_key, _fields(Sequences)(value)))
    return id(value)


def executed(ops: list[Op], machine: Machine, plan: Plan) -> list[Op]:
    """The ops of a step that run: without those that the engine has made part of others."""
    return [op for op in ops if not fused(op, machine, plan)]


def fused(op: Op, machine: Machine, plan: Plan) -> bool:
    """Whether the engine has made a small kernel part of another one."""
    if op.kind != "elementwise":
        return False
    profile = machine.engine.step
    return _matches(op.name, profile.fused) or (plan.tp > 1 and _matches(op.name, profile.fused_tp))


@lru_cache(maxsize=4096)
def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _beside(sheet: OpTime, machine: Machine) -> OpTime:
    """An op on a second stream: hidden under the main one but for the weights and FLOPs that the device has to do."""
    total = larger(sheet.op.weight_bytes / machine.chip.bandwidth_bytes_per_s, sheet.compute_s)
    return replace(sheet, total_s=total, band=partial(exactly, total), evidence="measured")
