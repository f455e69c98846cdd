"""Prices of communication: collectives inside a domain and between nodes, and the exchange of tokens with experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from roofline.arrays import Array, is_scalar
from roofline.calibrated import Calibrated
from roofline.kernels.collective import GATHERED, STAGED, STAGED_BANDS, CollectiveConstants, collective_terms
from roofline.kernels.times import OpTime
from roofline.machine import Machine
from roofline.ops import Collective, Exchange
from roofline.pricing.common import named, timed


def collectives(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    found: dict[tuple, OpTime] = {}  # a layer has the same one after attention and after its feed-forward block
    out = []
    for sheet in sheets:
        op: Collective = sheet.op
        key = (op.pattern, op.ranks, op.across_nodes, op.payload_bytes) if is_scalar(op.payload_bytes) else id(op)
        if key not in found:
            found[key] = _collective(sheet, machine)
        out.append(found[key] if found[key].op is op else replace(found[key], op=op))
    return out


def _collective(sheet: OpTime, machine: Machine) -> OpTime:
    """One collective: over the scale-up links with the engine's library, through the host, or over the network."""
    op: Collective = sheet.op
    kind, chip = op.pattern, machine.chip
    inside, staged = machine.inside_domain(op), machine.staged(op)
    if staged:
        constants = GATHERED if kind == "host_gather" else STAGED
        found = Calibrated(constants, STAGED_BANDS, "transferred", "", "any", None)
    elif inside:
        found = machine.constants("collective", "any", CollectiveConstants(), kind)
    else:
        found = Calibrated(CollectiveConstants(), {}, "transferred", "", "any", None)
    if staged or not inside:
        link = machine.link_bytes_per_s(op)
        chip = replace(chip, link_bytes_per_s=link, pair_bytes_per_s=link)
    in_switch = inside and not staged and machine.reduces_in_switch
    price = {"chip": chip, "constants": found.constants, "in_switch": in_switch}
    total, launch = collective_terms(kind, op.payload_bytes, op.ranks, **price)
    return timed(sheet, total, launch, found, partial(_regime, total, launch))


def _regime(total: Array, launch: Array) -> Array | str:
    return named(np.where(np.asarray(launch) > 0.5 * total, "launch", "link"))


def exchanges(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    """Dispatch and combine in the way that takes least time, point by point."""
    out = []
    for sheet in sheets:
        op: Exchange = sheet.op
        ways = [[_collective(machine.datasheet(c), machine) for c in way] for way in op.alternatives]
        totals = [sum(t.op.count * t.total_s for t in way) for way in ways]
        best = np.argmin(np.stack(np.broadcast_arrays(*totals)), axis=0)
        out.append(
            OpTime(
                op, sheet.compute_s, sheet.memory_s, sheet.network_s, _picked(ways, best, lambda t: t.launch_s),
                _picked(ways, best, lambda t: t.total_s), partial(_picked_band, ways, best), ways[0][0].evidence,
            )
        )  # fmt: skip
    return out


def _picked(ways: list[list[OpTime]], best: np.ndarray, term: Callable[[OpTime], Array]) -> Array:
    """The sum of a term over the collectives of the best way, point by point."""
    sums = [sum(t.op.count * term(t) for t in way) for way in ways]
    return np.choose(best, np.broadcast_arrays(*sums))[()]


def _picked_band(ways: list[list[OpTime]], best: np.ndarray) -> tuple[Array, Array]:
    return _picked(ways, best, lambda t: t.low_s), _picked(ways, best, lambda t: t.high_s)
