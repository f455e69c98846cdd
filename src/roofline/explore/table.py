"""Answers for a grid of questions, so that the page works without a server.

Per deployment three small tables are computed, and the page interpolates in them between nodes at equal ratios:
times under a load over (isl, osl, concurrency), a decode step over (batch, context), a prefill over isl. Everything
else on the page depends on the deployment alone and is exact. `between` says how a load between nodes is answered;
table.js does the same.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, RooflineError
from roofline.estimates import bandwidth_utilisation, estimate, flops_utilisation
from roofline.explore.answer import memory_view, plan_name, price_of, regime_view, roofline_view
from roofline.explore.question import Menu, Question
from roofline.parallel import Plan
from roofline.serving.steady import steady_state
from roofline.step import PARTS, StepTime

ISL = np.round(2.0 ** np.arange(7, 17.25, 0.5))  # a step may take another chunk from one to the next
OSL = 2.0 ** np.arange(4, 13)
CONCURRENCY = 2.0 ** np.arange(0, 11)
BATCH = 2.0 ** np.arange(0, 11)
CONTEXT = 2.0 ** np.arange(7, 19)
CROWD = np.array([0.85, 0.95, 1.0, 1.1, 1.4, 2.0, 5.0, 1024.0])
AXES = {"isl": ISL, "osl": OSL, "concurrency": CONCURRENCY, "crowd": CROWD, "batch": BATCH, "context": CONTEXT}
SERVING = ("ttft_s", "tpot_s")
STEP = (*PARTS, "total", "low", "high", "mfu", "mbu")
OP = ("intensity", "flops_per_s", "share")
TINY = 1e-30  # the page takes logarithms
CHECKS = 64  # random loads per deployment at which interpolation is held against the model
MOST_CASES = 600

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the exported page offers: all combinations."""

    models: tuple[str, ...]
    hardware: tuple[str, ...]
    layouts: tuple[Plan, ...]
    weights: tuple[str, ...] = ("",)
    kv: tuple[str, ...] = ("",)
    engines: tuple[str, ...] = ("vllm",)

    def __post_init__(self):
        if len(self) > MOST_CASES:
            raise InputError(f"{len(self)} combinations are too many for one page; at most {MOST_CASES}")
        if not len(self):
            raise InputError("nothing to export: give at least one model, hardware and layout")

    def __len__(self) -> int:
        sizes = map(len, (self.models, self.hardware, self.weights, self.kv, self.engines, self.layouts))
        return int(np.prod(list(sizes)))

    def questions(self) -> Iterable[Question]:
        """Every combination, layouts innermost."""
        for model, hw, weights, kv, engine, plan in product(
            self.models, self.hardware, self.weights, self.kv, self.engines, self.layouts
        ):
            yield Question(model, hw, plan.tp, plan.pp, plan.dp, plan.ep, weights, kv, engine)


def table(choices: Choices, menus: Menu, progress: Progress | None = None) -> dict[str, Any]:
    """Cases in the order of `Choices.questions`, axes, and how far interpolation is off."""
    cases, errors = [], []
    for done, q in enumerate(choices.questions(), 1):
        found, off = case(q, menus)
        cases.append(found)
        errors += off
        if progress is not None:
            progress(done, len(choices))
    off = np.concatenate(errors, axis=1) if errors else np.zeros((2, 0))
    return {
        "axes": {name: values.tolist() for name, values in AXES.items()},
        "serving": list(SERVING), "step": list(STEP), "op": list(OP),
        "models": list(choices.models), "hw": list(choices.hardware), "weights": list(choices.weights),
        "kv": list(choices.kv), "engine": list(choices.engines), "layout": [str(p) for p in choices.layouts],
        "cases": cases,
        "checks": off.shape[1], "off": {
            name: [float(np.percentile(x, q)) if x.size else 0.0 for q in (50, 95)] for name, x in zip(SERVING, off)
        },
    }  # fmt: skip


def case(q: Question, menus: Menu) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The tables of one deployment, and relative errors of times interpolated in them; `error` where it cannot run."""
    where = None
    try:
        where = menus.deployment(q)
        usd_per_h, source = price_of(q, menus, where)
        e = estimate(where, isl=ISL[6], osl=OSL[4], concurrency=CONCURRENCY[4], usd_per_h=usd_per_h)
        about = {"title": str(where), "plan": plan_name(where), "gpus": where.plan.gpus, "usd_per_h": usd_per_h,
                 "price_source": source, "memory": memory_view(e, layouts=False)}  # fmt: skip
    except RooflineError as error:
        return {"error": str(error)}, []
    resident = np.broadcast_to(np.asarray(where.footprint(CONTEXT).max_concurrency, float), CONTEXT.shape)
    smallest = where.footprint(float(ISL[0] + OSL[0]))
    if not bool(smallest.fits):
        return about | {"error": f"does not fit: {smallest.failure}"}, []
    at = served(where)
    decode = where.decode_step(BATCH[:, None], CONTEXT)
    prefill = where.prefill_step(1.0, ISL)
    names, ops = op_points(decode, (BATCH.size, CONTEXT.size))
    prompt_names, prompt_ops = op_points(prefill, (ISL.size,))
    found = about | {
        "longest": where.model.max_positions or None,
        "resident": encoded(resident * where.plan.dp),
        "dp": where.plan.dp,
        "serving": encoded(at.serving),
        "seats": encoded(at.seats),
        "decode": encoded(step_terms(where, decode, BATCH[:, None], (BATCH.size, CONTEXT.size))),
        "prefill": encoded(step_terms(where, prefill, 1.0, (ISL.size,))),
        "decode_ops": names, "decode_points": encoded(ops),
        "prefill_ops": prompt_names, "prefill_points": encoded(prompt_ops),
        "roofline": {k: v for k, v in roofline_view(e).items() if k != "points"},
        "regimes": regime_view(e), "evidence": e.evidence, "sources": e.sources, "not_modelled": e.not_modelled,
    }  # fmt: skip
    return found, [interpolation_error(where, at)]


@dataclass(frozen=True, slots=True)
class Served:
    """A replica under closed loops, tabulated."""

    serving: np.ndarray  # SERVING over (isl, osl, load): CONCURRENCY, then CROWD times the seats
    seats: np.ndarray  # of the replica, over (isl, osl)


def served(where: Deployment) -> Served:
    """The closed loops of a replica at the nodes of the axes."""
    isl, osl = ISL[:, None, None], OSL[:, None]
    state = steady_state(where, isl=isl, osl=osl, concurrency=CONCURRENCY)
    seats = np.asarray(state.batch / state.kv_occupancy, float)[..., :1]
    full = steady_state(where, isl=isl, osl=osl, concurrency=seats * CROWD)
    shape = (ISL.size, OSL.size)
    columns = [
        np.concatenate([np.broadcast_to(np.asarray(getattr(s, name), float), (*shape, n)) for s, n in
                        ((state, CONCURRENCY.size), (full, CROWD.size))], axis=-1)
        for name in SERVING
    ]  # fmt: skip
    return Served(np.stack(columns), np.broadcast_to(seats[..., 0], shape))


def between(at: Served, isl: Array, osl: Array, concurrency: Array) -> tuple[Array, Array]:
    """TTFT and TPOT of loads between the nodes.

    Formula:  at each of the four nodes around (isl, osl) between those of the load, then the mean of the four, all in
              logarithms; the load there: C, from half as many as have seats on growing into C s/seats, with s seats at
              that node and seats those of this load
    Args:     at; isl, osl, concurrency C [-], one-dimensional
    Returns:  (ttft_s, tpot_s)
    Assumes:  loads inside the axes
    Error:    `interpolation_error`
    Source:   linear interpolation
    """
    (i, u), (j, v) = (_place(axis, x) for axis, x in ((ISL, isl), (OSL, osl)))
    corners = [
        (i + di, j + dj, np.where(di, u, 1.0 - u) * np.where(dj, v, 1.0 - v)) for di, dj in product((0, 1), (0, 1))
    ]
    seats = np.exp(sum(weight * np.log(at.seats[k, m]) for k, m, weight in corners))
    full = np.clip(1.0 + np.log(concurrency / seats / CROWD[0]) / np.log(2.0), 0.0, 1.0)
    logs = 0.0
    for k, m, weight in corners:
        here = at.seats[k, m]
        logs = logs + weight * _along(at.serving[:, k, m], here, concurrency * (here / seats) ** full)
    return tuple(np.exp(logs))


def _place(axis: np.ndarray, x: Array) -> tuple[np.ndarray, np.ndarray]:
    """Node below x, and how far x is on the way to the next, in logarithms."""
    i = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, axis.size - 2)
    return i, np.log(x / axis[i]) / np.log(axis[i + 1] / axis[i])


def _along(values: np.ndarray, seats: Array, load: Array) -> np.ndarray:
    """Logarithms of values [quantity, case, node] at `load`, between the nodes next to it."""
    rows, load = np.arange(load.size), load[:, None]
    few = np.broadcast_to(CONCURRENCY, (rows.size, CONCURRENCY.size))
    nodes = np.concatenate([few, seats[:, None] * CROWD], axis=1)
    low = np.where(nodes <= load, nodes, 0.0).argmax(axis=1)
    high = np.where(nodes > load, nodes, np.inf).argmin(axis=1)
    first, last = nodes[rows, low], nodes[rows, high]
    w = np.clip(np.log(load[:, 0] / first) / np.where(last > first, np.log(last / first), np.inf), 0.0, 1.0)
    return (1.0 - w) * np.log(values[:, rows, low]) + w * np.log(values[:, rows, high])


def step_terms(where: Deployment, step: StepTime, sequences: Array, shape: tuple[int, ...]) -> np.ndarray:
    """STEP of a step of so many sequences over shapes, stacked in front."""
    low, high = step.band_s
    terms = [*(step.parts_s[p] for p in PARTS), step.total_s, low, high]
    terms += [f(where, step, sequences) for f in (flops_utilisation, bandwidth_utilisation)]
    return np.stack([np.broadcast_to(np.asarray(t, float), shape) for t in terms])


def op_points(step: StepTime, shape: tuple[int, ...]) -> tuple[list[str], np.ndarray]:
    """Names of the ops that compute something, and OP of each over shapes: [op, quantity, ...]."""
    groups: dict[tuple[str, str], list] = {}
    for t in step.times:
        groups.setdefault((t.op.name, t.op.kind), []).append(t)
    names, found = [], []
    for (name, _), times in groups.items():
        flops, moved, spent = (
            sum(np.broadcast_to(np.asarray(t.op.count * term(t), float), shape) for t in times)
            for term in (lambda t: t.op.flops, lambda t: t.op.bytes, lambda t: t.total_s)
        )
        if np.all(flops > 0) and np.all(moved > 0) and np.all(spent > 0):
            names.append(name)
            found.append([flops / moved, flops / spent, spent * step.scale / step.total_s])
    return names, np.maximum(np.array(found), TINY) if found else np.zeros((0, len(OP), *shape))


def interpolation_error(where: Deployment, at: Served) -> np.ndarray:
    """Relative errors of TTFT and TPOT between the nodes, at random loads whose length fits: [quantity, load]."""
    rng = np.random.default_rng(0)
    loads = [np.exp(rng.uniform(np.log(a[0]), np.log(a[-1]), CHECKS)) for a in (ISL, OSL, CONCURRENCY)]
    fits = np.broadcast_to(np.asarray(where.footprint(loads[0] + loads[1]).fits, bool), CHECKS)
    isl, osl, concurrency = (x[fits] for x in loads)
    if not isl.size:
        return np.zeros((2, 0))
    true = steady_state(where, isl=isl, osl=osl, concurrency=concurrency)
    found = between(at, isl, osl, concurrency)
    return np.abs(np.stack([f / np.asarray(t, float) - 1.0 for f, t in zip(found, (true.ttft_s, true.tpot_s))]))


def encoded(values: np.ndarray) -> str:
    """Numbers as base64 of little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode("ascii")


def with_start(choices: Choices, start: Question) -> Choices:
    """The choices with those of a question among them, layouts from small to large."""

    def among(values: tuple, value) -> tuple:
        return values if value in values else (value, *values)

    layouts = sorted(among(choices.layouts, start.plan), key=lambda p: p.gpus)
    return replace(
        choices, models=among(choices.models, start.model), hardware=among(choices.hardware, start.hw),
        layouts=tuple(layouts), weights=among(choices.weights, start.weights),
        kv=among(choices.kv, start.kv), engines=among(choices.engines, start.engine),
    )  # fmt: skip
