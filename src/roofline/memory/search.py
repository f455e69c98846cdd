"""Inverse questions of memory: the longest context, the largest batch, the fewest devices, the widest format."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from roofline.arrays import Array
from roofline.errors import InfeasibleError
from roofline.memory.footprint import Beside, Footprint, footprint
from roofline.memory.paging import pool
from roofline.parallel import Plan
from roofline.precision import Precision, precision_named
from roofline.specs.engine import Engine
from roofline.specs.hardware import Accelerator
from roofline.specs.model import Model

# From wide to narrow, bytes per parameter falling.
FORMATS_BY_WIDTH = ("bf16", "fp8", "int4_awq", "nvfp4")


def largest_batch(
    model: Model,
    accelerator: Accelerator,
    plan: Plan,
    precision: Precision,
    engine: Engine,
    length: Array,
    **settings,
) -> Array:
    """Sequences of `length` tokens that are cached together on the whole replica; 0 where it does not start.

    Formula:  dp floor(concurrency)
    Args:     length [tokens]; settings: utilisation and the other keywords of `footprint`; all broadcast
    Returns:  [-]
    Source:   derivation
    """
    if engine.memory.pool_rule == "contiguous":
        return _largest_contiguous(model, accelerator, plan, precision, engine, length, settings)
    found = footprint(model, accelerator, plan, precision, engine, length, **settings)
    return np.where(found.fits, plan.dp * np.floor(found.max_concurrency), 0.0)[()]


def _largest_contiguous(model, accelerator, plan, precision, engine, length, settings) -> Array:
    """Slots that fit, by bisection: each reserves its whole length, and the sampler grows with them."""

    def holds(slots: Array) -> Array:
        more = settings | {"max_num_seqs": slots}
        return footprint(model, accelerator, plan, precision, engine, length, **more).fits

    shape = np.shape(holds(np.ones(np.shape(length))))
    return plan.dp * largest_whole(holds, np.zeros(shape), 2.0**20)


def largest_whole(holds: Callable[[Array], Array], low: Array, most: float) -> Array:
    """Largest whole number from `low` to `most` up to which a condition holds, lane by lane."""
    high = np.full(np.shape(low), most + 1.0)
    while np.any(high - low > 1.0):
        middle = np.floor((low + high) / 2.0)
        good = holds(np.maximum(middle, 1.0)) & (middle >= 1.0)
        open_ = high - low > 1.0
        low, high = np.where(good & open_, middle, low), np.where(good | ~open_, high, middle)
    return low[()]


def longest_context(
    model: Model,
    accelerator: Accelerator,
    plan: Plan,
    precision: Precision,
    engine: Engine,
    batch: Array = 1.0,
    limit: float | None = None,
    **settings,
) -> Array:
    """Longest length at which `batch` sequences are cached together on the whole replica; 0 where none is.

    Formula:  largest whole T <= limit with dp concurrency(T) >= batch; by bisection, all lanes at once
    Args:     batch [-] of the replica; limit [tokens], None: the model's positions, or 2^24; settings as in `footprint`
    Returns:  [tokens]
    Source:   derivation: a longer sequence never needs less memory
    """
    most = float(limit or model.max_positions or 2**24)
    one = footprint(model, accelerator, plan, precision, engine, 1.0, **settings)
    tokens = settings.get("max_num_batched_tokens")
    if tokens is None:
        tokens = np.where(
            np.asarray(one.stages[0].visible) < engine.memory.small_device,
            engine.memory.small_max_num_batched_tokens,
            engine.memory.max_num_batched_tokens,
        )
    share = np.asarray(batch, float) / plan.dp

    def holds(length: Array) -> Array:
        if engine.memory.pool_rule == "contiguous":
            return footprint(
                model, accelerator, plan, precision, engine, length, **settings | {"max_num_seqs": share}
            ).fits
        each = [pool(s.kv_pool, list(s.kinds), length, tokens, engine.memory).concurrency >= share for s in one.stages]
        return np.all(np.broadcast_arrays(*each), axis=0) & one.fits

    return largest_whole(holds, np.zeros(np.broadcast_shapes(np.shape(one.fits), np.shape(share))), most)


def fewest_gpus(
    model: Model,
    accelerator: Accelerator,
    precision: Precision,
    engine: Engine,
    length: float = 1.0,
    batch: float = 1.0,
    candidates: Iterable[int] = (1, 2, 4, 8, 16, 32, 64),
    beside: Callable[[Plan], Beside | None] = lambda plan: None,
    **settings,
) -> tuple[Plan, Footprint] | None:
    """The smallest tensor-parallel plan that holds `batch` sequences of `length`, past one domain with pipeline stages.

    Args:     length [tokens], batch [-]; candidates: numbers of devices; beside: what a drafter holds under a plan
    Returns:  the plan and its memory table; None where no candidate does
    Assumes:  one replica, no data parallelism; tp within the scale-up domain, pp over domains
    Source:   derivation: candidates are tried in order
    """
    for gpus in sorted(n for n in candidates if n == 1 or accelerator.connected):
        tp = min(gpus, accelerator.domain) if gpus > 1 else 1
        try:
            plan = Plan(tp=tp, pp=max(gpus // tp, 1))
            found = footprint(model, accelerator, plan, precision, engine, length, beside(plan), **settings)
        except InfeasibleError:
            continue
        if bool(found.fits) and float(found.max_concurrency) >= batch:
            return plan, found
    return None


def widest_format(
    model: Model,
    accelerator: Accelerator,
    plan: Plan,
    engine: Engine,
    length: float = 1.0,
    batch: float = 1.0,
    candidates: Iterable[str] = FORMATS_BY_WIDTH,
    kv: str | None = None,
    **settings,
) -> tuple[Precision, Footprint] | None:
    """The first of `candidates` (wide to narrow) in which `batch` sequences of `length` fit: what has to be given up.

    Returns:  the precision and its memory table; None where no candidate fits
    Source:   derivation: candidates are tried in order
    """
    for name in candidates:
        precision = precision_named(name, kv)
        found = footprint(model, accelerator, plan, precision, engine, length, **settings)
        if bool(found.fits) and plan.dp * float(found.max_concurrency) >= batch:
            return precision, found
    return None
