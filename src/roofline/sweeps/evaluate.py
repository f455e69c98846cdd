"""One block of a sweep: a deployment over arrays of loads, with what cannot be run masked and named."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntFlag
from itertools import groupby
from typing import Any

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment, deployment
from roofline.errors import InfeasibleError, UnsupportedError
from roofline.estimates import static_steps, static_times
from roofline.serving.load import KNOBS
from roofline.serving.steady import steady_state
from roofline.serving.steps import step_table
from roofline.specs.prices import quote
from roofline.speculative import speculating
from roofline.sweeps.grid import Block, Grid
from roofline.sweeps.metrics import Answers, metric

THREADS = min(os.cpu_count() or 1, 4)


class Reason(IntFlag):
    """Why a point cannot be run; several may hold."""

    CANNOT_BE_CUT = 1  # heads, experts, layers or vocabulary do not divide
    UNSUPPORTED = 2  # a format or layer that is not modelled there
    DOES_NOT_FIT = 4  # weights, buffers or one sequence exceed the memory
    TOO_LONG = 8  # beyond the positions of the model
    KV_FULL = 16  # a static batch whose KV does not fit at the same time
    OVERLOAD = 32  # more arrives per second than the replica can do


TEXTS = {
    Reason.CANNOT_BE_CUT: "the model cannot be cut so",
    Reason.UNSUPPORTED: "not modelled",
    Reason.DOES_NOT_FIT: "does not fit into memory",
    Reason.TOO_LONG: "longer than the model's positions",
    Reason.KV_FULL: "KV of the batch does not fit at the same time",
    Reason.OVERLOAD: "more requests arrive than one replica can do",
}


@dataclass(frozen=True)
class Case:
    """The deployment of one combination of structural values, or why there is none."""

    deployment: Deployment | None
    usd_per_h: float = np.nan
    reason: int = 0  # Reason flags
    message: str = ""


def case_of(grid: Grid, index: int) -> Case:
    """The deployment of combination `index`."""
    chosen = dict(grid.cases[index])
    speculation = chosen.pop("speculation")
    try:
        if isinstance(chosen["model"], Deployment):
            found = chosen["model"]
        else:
            found = deployment(chosen.pop("model"), chosen.pop("hw"), specs=grid.specs, **chosen)
        found = speculating(found, speculation, grid.specs)
        found.check()
    except InfeasibleError as error:
        return Case(None, reason=Reason.CANNOT_BE_CUT, message=str(error))
    except UnsupportedError as error:
        return Case(None, reason=Reason.UNSUPPORTED, message=str(error))
    price = quote(found.accelerator, specs=grid.specs)
    return Case(found, np.nan if price is None else price.usd_per_hour)


def answers(d: Deployment, load: str, n: dict[str, Array], usd_per_h: Array) -> tuple[Answers, Array]:
    """What a deployment does over arrays of loads, and why it cannot.

    Args:     load: batch, concurrency or rate_per_s; n: numeric inputs by name, arrays that broadcast; usd_per_h of one
              device [USD/h]
    Returns:  Answers, and Reason flags as whole numbers, broadcast
    """
    isl, osl, cached = n["isl"], n["osl"], n.get("cached", 0.0)
    memory = d.footprint(isl + osl)
    flags = _memory_flags(memory)
    resident = np.where(flags == 0, np.asarray(memory.max_concurrency, float) * d.plan.dp, 0.0)
    usd = n.get("usd_per_h", usd_per_h)
    known = {"isl": isl, "osl": osl, "gpus": d.plan.gpus, "usd_per_h": usd,
             "tdp_w": d.accelerator.tdp_w or np.nan, "resident": resident}  # fmt: skip
    if load == "batch":
        batch = n["batch"]
        steps = static_steps(d, batch, isl, osl, cached)
        ttft, tpot = static_times(d, steps, batch, isl, osl, cached)
        e2e = ttft + (osl - 1.0) * tpot
        flags = flags | np.where(resident < batch, int(Reason.KV_FULL), 0)
        return Answers(ttft, tpot, e2e, batch * osl / e2e, **known), flags
    knobs = {name: n[name] for name in KNOBS if name in n}
    state = steady_state(d, isl=isl, osl=osl, cached=cached, **{load: n[load]}, **knobs)
    flags = flags | np.where(state.feasible, 0, int(Reason.DOES_NOT_FIT))
    if load == "rate_per_s":
        flags = flags | np.where(state.saturated, int(Reason.OVERLOAD), 0)
    return Answers(state.ttft_s, state.tpot_s, state.e2e_s, state.tokens_per_s, **known, state=state), flags


def _memory_flags(memory) -> Array:
    """Reason flags of a memory table; the model's own limit of positions is told apart from bytes."""
    flags: Any = 0
    for text, where in memory.reasons:
        flag = Reason.TOO_LONG if text.startswith("max_model_len") else Reason.DOES_NOT_FIT
        flags = flags | np.where(where, int(flag), 0)
    return np.asarray(flags)


def evaluate_blocks(
    grid: Grid, blocks: Iterable[Block], metrics: tuple[str, ...]
) -> Iterator[tuple[Block, dict[str, np.ndarray], np.ndarray, str]]:
    """Blocks with their columns, reasons and message, in order.

    Those of one deployment run side by side in threads: numpy lets others in while it is inside its loops. What all of
    them read is there before.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        for index, group in groupby(blocks, key=lambda block: block.case):
            case = case_of(grid, index)
            if case.deployment is not None:
                case.deployment.footprint(1.0)
                if grid.load != "batch":
                    step_table(case.deployment)
            rest, waiting = iter(group), deque()
            while True:
                if len(waiting) < 2 * THREADS and (block := next(rest, None)) is not None:
                    waiting.append((block, pool.submit(evaluate, grid, block, metrics, case)))
                elif waiting:
                    block, future = waiting.popleft()
                    yield block, *future.result(), case.message
                else:
                    break


def evaluate(grid: Grid, block: Block, metrics: Iterable[str], case: Case) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns of a block in its own shape, NaN where it cannot be run, and the reasons.

    Args:     case: the deployment of the block, from `case_of`
    Returns:  {metric: array}, Reason flags (int16)
    """
    shape = tuple(s.stop - s.start for s in block.slices)
    if case.deployment is None:
        return {name: np.full(shape, np.nan) for name in metrics}, np.full(shape, case.reason, np.int16)
    n = grid.values(block)
    found, flags = answers(case.deployment, grid.load, n, case.usd_per_h)
    flags = np.broadcast_to(flags, shape).astype(np.int16)
    blocked = flags != 0
    columns = {}
    for name in metrics:
        values = np.array(np.broadcast_to(metric(name).value(found), shape), float)
        values[blocked] = np.nan
        columns[name] = values
    return columns, flags
