"""Everything that the page shows about one question, as plain data in SI units."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.deployment import Deployment
from roofline.economics import usd_per_mtok
from roofline.errors import InputError, RooflineError
from roofline.estimates import Estimate, Value, estimate
from roofline.explore.question import Menu, Question
from roofline.planner.layouts import obstacle, plans
from roofline.report.figures import memory as memory_figure
from roofline.report.figures import regimes as regimes_figure
from roofline.report.figures import roofline as roofline_figure
from roofline.report.figures.frontier import MOST_GPUS, Curve, layout_curve, strongest
from roofline.report.figures.regimes import COLOURS
from roofline.specs.prices import quote

REGIME_NAMES = tuple(COLOURS)
EVERY = 2  # of the regime map's points in each direction is sent
NUMBERS = (
    "ttft_s", "tpot_s", "e2e_s", "tokens_per_s_user", "tokens_per_s", "tokens_per_s_gpu", "usd_per_mtok_output",
    "usd_per_mtok_blended",
)  # fmt: skip


def answer(q: Question, choices: Menu) -> dict[str, Any]:
    """What the page shows; `error` alone where there is no such deployment."""
    try:
        where = choices.deployment(q)
        usd_per_h, source = price_of(q, choices, where)
        e = estimate(where, isl=q.isl, osl=q.osl, concurrency=q.concurrency, usd_per_h=usd_per_h)
        return view(e, source)
    except RooflineError as error:
        return {"error": str(error)}


def price_of(q: Question, choices: Menu, where: Deployment) -> tuple[float | None, str]:
    """USD/h of one device, and who says so."""
    if q.price is not None:
        return q.price, "as given"
    found = quote(where.accelerator, specs=choices.specs)
    return (None, "no price on record") if found is None else (found.usd_per_hour, str(found))


def view(e: Estimate, price_source: str) -> dict[str, Any]:
    """An estimate of a closed loop as the page wants it."""
    return {
        "title": str(e.deployment),
        "fits": e.fits,
        "problems": e.violations,
        "numbers": {name: band(getattr(e, name)) for name in NUMBERS},
        "mfu": e.mfu,
        "mbu": e.mbu,
        "resident": e.resident,
        "running": float(e.running or e.batch),
        "gpus": e.deployment.plan.gpus,
        "usd_per_h": e.usd_per_h,
        "price_source": price_source,
        "regime": str(e.regime),
        "evidence": e.evidence,
        "parts": {
            step: {k: float(v) for k, v in getattr(e, step).parts_s.items()} for step in ("prefill", "decode")
        },
        "roofline": roofline_view(e),
        "regimes": {**regime_view(e), "here": [float(e.running or e.batch), e.isl + e.osl / 2.0]},
        "memory": memory_view(e),
        "curves": curves(e),
        "sources": e.sources,
        "not_modelled": e.not_modelled,
    }  # fmt: skip


def band(v: Value | None) -> list[float] | None:
    """[value, low, high]."""
    return None if v is None else [v.value, v.low, v.high]


def roofline_view(e: Estimate) -> dict[str, Any]:
    """Roofs, slopes and ops."""
    r = roofline_figure.of(e)
    return {
        "device": r.device,
        "roofs": [{"names": list(f.formats), "flops_per_s": f.flops_per_s, "used": f.used} for f in r.roofs],
        "slopes": [{"name": s.name, "bytes_per_s": s.bytes_per_s, "main": s.main} for s in r.slopes],
        "points": [
            {"step": p.step, "op": p.op, "intensity": p.intensity, "flops_per_s": p.flops_per_s, "share": p.share}
            for p in r.points
        ],
    }


def regime_view(e: Estimate) -> dict[str, Any]:
    """The regime map, thinned out: a digit for each point, an index into `names`.

    It is kept with the deployment, as it does not depend on the load, but for encoder-decoders on the prompt.
    """
    kept = vars(e.deployment)
    if "_regime_view" not in kept or e.deployment.model.encoder:
        kept["_regime_view"] = _regime_view(e)
    return kept["_regime_view"]


def _regime_view(e: Estimate) -> dict[str, Any]:
    r = regimes_figure.of(e)
    codes = np.searchsorted(SORTED, r.names[::EVERY, ::EVERY])
    digits = np.array([str(REGIME_NAMES.index(name)) for name in SORTED])[codes]
    return {
        "batches": r.batches[::EVERY].tolist(),
        "contexts": r.contexts[::EVERY].tolist(),
        "codes": ["".join(row) for row in digits],
        "names": list(REGIME_NAMES),
        "resident": [float(x) for x in r.resident[::EVERY]],
    }


SORTED = np.array(sorted(REGIME_NAMES))


def memory_view(e: Estimate, layouts: bool | None = None) -> list[dict[str, Any]]:
    """Stacks of the memory table, bytes by row."""
    return [
        {"label": s.label, "rows": s.rows_bytes, "visible": s.visible_bytes, "remark": s.remark, "asked": s.asked}
        for s in memory_figure.of(e, layouts).stacks
    ]


def curves(e: Estimate) -> list[dict[str, Any]]:
    """Speed, throughput and cost over the load, for this layout and the best others; empty where none fits."""
    mine = e.deployment
    others = alternatives(mine.model, mine.accelerator, mine.precision, mine.engine, max(MOST_GPUS, mine.plan.gpus))
    tried = [mine] + [w for w in others if w.plan != mine.plan]
    length = e.isl + e.osl
    tried = [w for w in tried if bool(w.footprint(length).fits)]
    try:
        best = strongest([layout_curve(e, w, plan_name(w), "tokens_per_s_gpu") for w in tried])
    except InputError:  # none fits
        return []
    if mine in tried and plan_name(mine) not in {c.label for c in best}:
        best = (layout_curve(e, mine, plan_name(mine), "tokens_per_s_gpu"), *best[:-1])
    return [curve_view(c, e.usd_per_h, c.label == plan_name(mine)) for c in best]


def curve_view(c: Curve, usd_per_h: float | None, mine: bool) -> dict[str, Any]:
    """One curve of tokens/s per device, with its cost where there is a price."""
    cost = None if usd_per_h is None else usd_per_mtok(usd_per_h, c.gain).tolist()
    return {
        "label": c.label, "mine": mine, "load": c.load.tolist(), "per_user": c.per_user.tolist(),
        "per_gpu": c.gain.tolist(), "usd": cost, "ttft_s": c.ttft_s.tolist(),
    }  # fmt: skip


def plan_name(where: Deployment) -> str:
    """What a layout is called."""
    return "1 GPU" if where.plan.gpus == 1 else str(where.plan)


_KNOWN: dict[tuple, tuple[tuple, list[Deployment]]] = {}


def alternatives(model, accelerator, precision, engine, max_gpus: int) -> list[Deployment]:
    """Other layouts that can be cut, whatever the length of requests; kept with their tables by identity of the
    records, which are not hashable.
    """
    key = (id(model), id(accelerator), str(precision.text), id(engine), max_gpus)
    if key not in _KNOWN:
        if len(_KNOWN) >= 32:
            _KNOWN.clear()
        tried = [Deployment(model, accelerator, p, precision, engine) for p in plans(model, accelerator, max_gpus)]
        found = [w for w in tried if obstacle(w, 2.0) is None]
        _KNOWN[key] = ((model, accelerator, engine), found)
    return _KNOWN[key][1]
