"""Prices of matrix products: plain, absorbed per head, and the routed experts of a MoE layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from roofline.arrays import Array, shape_of
from roofline.calibrated import Calibrated
from roofline.kernels.elementwise import WARM_SHARE
from roofline.kernels.gemm import UNTILED, GemmConstants, GemmTerms, gemm_terms
from roofline.kernels.mla import AbsorbConstants, absorb_terms
from roofline.kernels.moe import MoeConstants, MoeTerms, fastest_moe_terms
from roofline.kernels.routing import uniform_loads
from roofline.kernels.times import OpTime
from roofline.machine import Machine
from roofline.ops import Experts, Gemm
from roofline.precision import Format
from roofline.pricing.common import (
    REGIMES,
    band,
    named,
    records,
    regime_index,
    regime_names,
    stacked,
    table_format,
    timed,
)

# Experts on processors whose matrix units are not fed block by block: weights stream, nothing waits for blocks.
STREAMED = MoeConstants(k_latency_s=0.0, block_s=0.0, expert_s=0.0, padding=0.0)
ABSORBED = ("absorb_q", "absorb_v")  # per-head products of MLA, which have a kernel model of their own


def gemms(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    """Matrix products of one shape class, in one evaluation; products per head go to their own model."""
    plain = [sheet for sheet in sheets if sheet.op.name.rpartition(".")[2] not in ABSORBED]
    times = dict(zip(map(id, plain), _plain(plain, machine) if plain else ()))
    return [times.get(id(sheet)) or _absorbed(sheet, machine) for sheet in sheets]


def _absorbed(sheet: OpTime, machine: Machine) -> OpTime:
    """One absorbing product for all heads of a rank."""
    op: Gemm = sheet.op
    found = machine.constants(
        "mla_absorb", table_format(op.weight, machine), AbsorbConstants(), op.name.rpartition(".")[2]
    )
    terms = absorb_terms(
        op.m, op.batch, chip=machine.chip, peak_flops_per_s=machine.peak_flops_per_s(op), head_dim=op.k, rank=op.n,
        weight_bytes_per_el=op.weight.element_bytes, constants=found.constants,
    )  # fmt: skip
    return timed(sheet, terms.time_s, terms.launch_s, found, partial(regime_names, terms))


def _plain(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    """Plain matrix products; independent products (`batch`) run one after another inside one launch."""
    ops: list[Gemm] = [sheet.op for sheet in sheets]
    rules = {id(op.weight): op.weight for op in ops}
    rules = {key: _multiplied(weight, machine) for key, weight in rules.items()}
    each = [rules[id(op.weight)] for op in ops]
    shape = shape_of(sheets[0].total_s)
    terms = gemm_terms(
        *(stacked([getattr(op, side) for op in ops], len(shape)) for side in ("m", "n", "k")),
        chip=machine.chip,
        peak_flops_per_s=stacked([r.peak_flops_per_s for r in each], len(shape)),
        weight_bytes_per_el=stacked([_weight_bytes_per_el(op) for op in ops], len(shape)),
        act_bytes_per_el=stacked([r.act_bytes_per_el for r in each], len(shape)),
        quantise=stacked([float(r.quantises and not op.static_scales) for r, op in zip(each, ops)], len(shape)),
        constants=records([r.found for r in each], len(shape)),
    )  # fmt: skip
    regimes = Regimes(terms)
    seconds, launches = terms.time_s, terms.launch_s
    if not shape:  # plain numbers are added up faster
        seconds, launches = seconds.tolist(), launches.tolist()
    out = []
    for i, (sheet, op, r) in enumerate(zip(sheets, ops, each)):
        total = launches[i] + (seconds[i] - launches[i]) * op.batch
        out.append(timed(sheet, total, launches[i], r.found, partial(regimes.of, i)))
    return out


@dataclass(frozen=True, slots=True)
class Multiplied:
    """How a machine multiplies weights of one format."""

    found: Calibrated
    peak_flops_per_s: float
    act_bytes_per_el: float
    quantises: bool  # 16-bit activations have to be quantised first, in a kernel of its own


def _multiplied(weight: Format, machine: Machine) -> Multiplied:
    native = machine.accelerator.is_native(machine.operand(weight))
    return Multiplied(
        machine.constants("gemm", table_format(weight, machine), GemmConstants() if _tiled(machine) else UNTILED),
        machine.matmul_flops_per_s(weight),
        weight.act_bits / 8.0 if native else 2.0,
        native and weight.act_bits < 16 and weight.name not in machine.engine.step.fused_quantisers,
    )


@dataclass(frozen=True)
class Regimes:
    """The regimes of products that were priced together."""

    terms: GemmTerms

    @cached_property
    def names(self) -> np.ndarray:
        """Names, with a leading axis over the products."""
        return np.array(REGIMES)[regime_index(self.terms)]

    def of(self, index: int) -> Array | str:
        """Those of one product."""
        return named(self.names[index])


def _tiled(machine: Machine) -> bool:
    """Whether matrix units are fed block by block; Apple's GPUs stream vectors of weights at decode sizes instead."""
    a = machine.accelerator
    return a.kind.startswith(("gpu", "soc")) and not a.architecture.startswith("Apple")


def _weight_bytes_per_el(op: Gemm) -> Array:
    """Bytes of a weight as far as they take time: what lies in the cache moves in `WARM_SHARE` of it."""
    return op.weight.element_bytes * (1.0 - (1.0 - WARM_SHARE) * op.cached)


def experts(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    return [_moe(sheet, machine) for sheet in sheets]


GATHERED = 8  # ranks up to which engines hand every token to every rank; beyond, each gets the tokens that use it


def received(op: Experts) -> Array:
    """Tokens that enter the expert kernels of one rank.

    Formula:  T up to 8 ranks, beyond T (1 - (1 - 1/ep)^k): an all-to-all sends a token only to ranks it uses
    Args:     op: tokens T over all ranks, top_k k, ep
    Returns:  [tokens]
    Assumes:  uniform routing
    Source:   DeepEP and its users: wide expert parallelism dispatches; inside a node tokens are gathered
    """
    if op.ep <= GATHERED:
        return op.tokens
    return op.tokens * (1.0 - (1.0 - 1.0 / op.ep) ** op.top_k)


def _moe(sheet: OpTime, machine: Machine) -> OpTime:
    """Routed experts with the fastest kernel that the engine has (any engine's, where it has none of its own)."""
    op: Experts = sheet.op
    fmt = table_format(op.weight, machine)
    if fmt == "fp8_channel":  # runs in the kernels of block-scaled experts; per-tensor fp8 has kernels of its own
        fmt = "fp8_block"
    native = machine.accelerator.is_native(machine.operand(op.weight))
    found = machine.kernels("moe", fmt, MoeConstants() if _tiled(machine) else STREAMED)
    terms, winner = fastest_moe_terms(
        [c.constants for c in found], received(op), op.hidden, op.inter, op.experts, op.top_k,
        chip=machine.chip, peak_flops_per_s=machine.peak_flops_per_s(op), tp=op.tp, ep=op.ep, matrices=op.matrices,
        weight_bytes_per_el=op.weight.element_bytes,
        act_bytes_per_el=op.weight.act_bits / 8.0 if native else 2.0,
        loads=uniform_loads(op.tokens, op.experts, op.top_k, op.ep, op.imbalance),
    )  # fmt: skip
    total = np.maximum(terms.time_s, sheet.total_s)
    return OpTime(
        op, sheet.compute_s, sheet.memory_s, sheet.network_s, np.minimum(terms.launch_s, total), total,
        partial(_moe_band, total, found, winner, terms), found[0].evidence,
    )  # fmt: skip


def _moe_band(total: Array, found: list[Calibrated], winner: Array, terms: MoeTerms) -> tuple[Array, Array]:
    bands = np.array([[band(c, regime) for regime in REGIMES] for c in found])  # [kernel, regime, 2]
    low, high = np.moveaxis(bands[winner, regime_index(terms)], -1, 0)
    return total * low, total * high
