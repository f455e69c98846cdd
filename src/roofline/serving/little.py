"""How many sequences decode together where requests arrive at a rate: Little's law, solved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from roofline.arrays import Array
from roofline.serving.load import Load, prompts_per_step, step_kinds
from roofline.serving.rhythm import lone, open_company, shared_step, together
from roofline.serving.site import Site
from roofline.serving.steps import Steps

# The search for the batch that a rate comes to: rounds of all points, then of those that have not arrived before, each
# with the relative step at which a point has.
FIRST, MORE = (3, 1e-4), ((3, 1e-13), (5, 0.0))


def tpot_open(site: Site, steps: Steps, batch: Array, rate: Array, arrivals_cv2: Array = 1.0) -> Array:
    """Mean seconds per output token where `batch` sequences run and `rate` others arrive a second.

    Formula:  D + b/O (S(j) - D)/j, j prompts in a step: `open_company`; prompts first: S(j)/j alone
    Args:     steps: of this site beside any batch
    Returns:  [s]
    Source:   derivation, as `open_rhythm`
    """
    load, steps, decode, base = _beside(site, steps, batch)
    _, inside, each = open_company(steps, decode, load, site.rules, rate, arrivals_cv2)
    return decode + load.batch / load.osl * (each - base) / inside


def tpot_full(site: Site, steps: Steps, batch: Array, prompts: Array = 1.0) -> Array:
    """Mean seconds per output token where `batch` seats are taken again as soon as they are left.

    Formula:  D + p b/O (S - D)/j, S and j of `shared_step` for k = p x/(1 - exp(-x)), u = x/(exp(x) - 1), x = b/O (0
              where p > 1); prompts first: S/j alone
    Args:     steps: of this site beside any batch; prompts p: computed for each answer
    Returns:  [s]
    Source:   derivation, as `closed_rhythm`
    """
    load, steps, decode, base = _beside(site, steps, batch)
    ends = load.batch / load.osl
    g, ones = prompts_per_step(load, site.rules), np.where(prompts > 1.0, 0.0, lone(ends))
    one_s = steps.with_prompts_s(np.minimum(1.0, g))
    inside, each = shared_step(steps, one_s, ones, prompts * together(ends), g)
    return decode + prompts * ends * (each - base) / inside


def _beside(site: Site, steps: Steps, batch: Array) -> tuple[Load, Steps, Array, Array]:
    """The load of `batch` sequences, steps with prompts beside it, seconds of one without, and of decodes in those."""
    load = site.load(np.maximum(batch, 1.0))
    if site.rules.mixed:
        steps = steps.at(load.batch)
        decode = base = steps.decode_s()
    else:
        decode, base = site.table.decode(load.batch, load.context, load.padding), 0.0
    return load, steps, decode, base


def batch_at(site: Site, steps: Steps, rate: Array, full_s: Array, arrivals_cv2: Array = 1.0) -> Array:
    """Sequences that decode together when `rate` requests a second are served, `full_s` being tpot at the cap.

    Formula:  b = rate O tpot(b): Little's law
    Source:   Little 1961; all points a few rounds, those that have not arrived some more
    """
    rate = np.asarray(rate + 0.0 * site.cap, float)
    asked = np.asarray(rate * site.outputs.mean, float)  # sequences per second of TPOT
    least = asked * tpot_open(site, steps, 1.0, rate, arrivals_cv2)  # tpot is the same for one and for less
    low, high = np.ones_like(asked), site.cap + 0.0 * asked
    ends = high, high - asked * full_s, low, np.minimum(low - least, 0.0)
    rounds, near = FIRST
    goal = asked, rate, arrivals_cv2
    batch, (*ends, _) = _crossing(_gap(site, steps, *goal), *ends, rounds=rounds)
    far = (np.abs(batch - ends[0]) > near * batch) & (least > 1.0)
    if np.any(far):
        batch = _searched(site, goal, batch, (*ends, ends[-1]), far, MORE)
    return np.where(least > 1.0, batch, least)


def _gap(site: Site, steps: Steps, asked: Array, rate: Array, arrivals_cv2: Array) -> Callable[[Array], Array]:
    """By how much a batch is larger than what Little's law makes of it."""
    return lambda batch: batch - asked * tpot_open(site, steps, batch, rate, arrivals_cv2)


def _searched(
    site: Site, goal: tuple[Array, ...], batch: Array, ends: tuple[Array, ...], far: np.ndarray,
    stages: tuple[tuple[int, float], ...],
) -> Array:  # fmt: skip
    """The batches, those of the points that are `far` after the rounds of `stages`."""
    (rounds, near), *later = stages
    few = site.at(far)
    goal, ends = (tuple(np.broadcast_to(x, far.shape)[far] for x in rows) for rows in (goal, ends))
    gap = _gap(few, step_kinds(few.table, few.load(1.0), few.rules), *goal)
    found, ends = _crossing(gap, *ends, rounds=rounds, start=batch[far])
    still = np.abs(found - ends[0]) > near * found
    if later and np.any(still):
        found = _searched(few, goal, found, ends, still, later)
    batch = np.array(batch)
    batch[far] = found
    return batch


def _crossing(
    f: Callable[[Array], Array], x1: Array, f1: Array, x2: Array, f2: Array, weight: Array | None = None, *,
    rounds: int, start: Array | None = None,
) -> tuple[Array, tuple[Array, Array, Array, Array, Array]]:  # fmt: skip
    """Where f crosses zero between x1 and x2, at which it is f1 and f2, of different sign.

    Formula:  inverse quadratic interpolation where the last three points allow it, else regula falsi
    Args:     weight: f2, halved each time that the same end stays
    Returns:  the root after so many evaluations; the points around it (the last one first) with their values; weight
    Source:   Chandrupatla 1997; regula falsi with the Illinois rule
    """
    weight = f2 if weight is None else weight
    x = x2 - f2 * (x1 - x2) / np.where(f1 != f2, f1 - f2, 1.0) if start is None else start
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(rounds):
            value = f(x)
            same = (value < 0) == (f1 < 0)
            x3, f3 = np.where(same, x1, x2), np.where(same, f1, f2)
            x2, f2, weight = np.where(same, x2, x1), np.where(same, f2, f1), np.where(same, weight * 0.5, f1)
            x1, f1 = x, value
            part, rise = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
            smooth = (rise * rise < part) & ((1.0 - rise) ** 2 < 1.0 - part)
            share = f1 / (f2 - f3) * (f3 / (f2 - f1) - (x3 - x1) / (x2 - x1) * f2 / (f3 - f1))
            share = np.where(smooth, share, f1 / (f1 - weight))
            x = x1 + np.clip(np.where(np.isfinite(share), share, 0.0), 0.0, 1.0) * (x2 - x1)
    return x, (x1, f1, x2, f2, weight)
