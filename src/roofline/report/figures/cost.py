"""The cost frontier: dollars per million output tokens against speed per user, by device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roofline.errors import InputError, RooflineError
from roofline.estimates import Estimate
from roofline.planner import Recommendation
from roofline.planner.text import DEAR
from roofline.report.figures import frontier as shared
from roofline.report.figures.frontier import Curve, Frontier, layout_curve, layouts, pareto, strongest
from roofline.report.style import Look, Picture
from roofline.specs.library import hardware
from roofline.specs.prices import quote
from roofline.sweeps import Sweep

GAIN = shared.GAINS["usd_per_mtok_output"]


def of(
    subject: Estimate | Sweep | Recommendation,
    others: Iterable[str] = (),
    slo_ttft_s: float | None = None,
    slo_tpot_s: float | None = None,
    max_gpus: int = shared.MOST_GPUS,
) -> Frontier:
    """Cost against speed: of an estimate's model on its device and on `others`, each in its best layouts.

    Args:     others: names of further devices, at the price list's rates; a Recommendation draws its own frontier of
              fleets, a Sweep its points
    """
    if isinstance(subject, Sweep):
        return shared.of_sweep(subject, "tokens_per_s_user", "usd_per_mtok_output", slo_ttft_s, slo_tpot_s)
    if isinstance(subject, Recommendation):
        return _of_plan(subject)
    if not isinstance(subject, Estimate):
        raise InputError(f"costs are drawn of an Estimate, a Sweep or a plan, not of a {type(subject).__name__}")
    e, d = subject, subject.deployment
    devices = [(d.accelerator, e.usd_per_h)]
    for name in others:
        found = hardware(name)
        priced = quote(found)
        devices.append((found, None if priced is None else priced.usd_per_hour))
    curves = []
    for accelerator, usd_per_h in devices:
        if usd_per_h is None:
            raise InputError(f"no price on record for {accelerator.name}; give usd_per_h, or leave it out")
        try:
            tried = layouts(e, d.with_(accelerator=accelerator), max_gpus)
        except RooflineError:  # the plan cannot be cut on this device
            tried = []
        each = [layout_curve(e, where, label, "usd_per_mtok", usd_per_h) for label, where in tried]
        if each and len(devices) > 1:
            curves.append(lowest(each, f"{accelerator.name}, {usd_per_h:.2f} USD/h"))
        else:
            curves += each
    names = ", ".join(a.name for a, _ in devices)
    about = f"{shared.about_formats(d)} on {names}, {shared.about_lengths(e)}"
    head = "Cost against speed, by device" if len(devices) > 1 else f"Cost against speed, by layout of {names}"
    return Frontier(about, head, GAIN, False, strongest(curves, False), slo_ttft_s, slo_tpot_s)


def lowest(curves: list[Curve], label: str) -> Curve:
    """The frontier of several layouts as one curve, slow to fast."""
    keys, xy = pareto(curves, larger_is_better=False)
    keys, xy = keys[::-1], xy[::-1]
    ttft, load = (np.array([getattr(curves[c], name)[i] for c, i in keys]) for name in ("ttft_s", "load"))
    return Curve(label, xy[:, 0], xy[:, 1], ttft, load)


def _of_plan(r: Recommendation) -> Frontier:
    rows = sorted(r.frontier_below(DEAR), key=lambda p: p.tpot_s)
    if not rows:
        raise InputError("this plan has no frontier to draw")
    tokens = r.traffic.rate_per_s * float(r.traffic.osl.mean) * 3600.0 / 1e6
    by_device: dict[str, list] = {}
    for p in rows:
        by_device.setdefault(p.fleet.rsplit(" x ", 1)[-1].split(" ", 1)[0].rstrip(","), []).append(p)
    curves = [
        Curve(name, np.array([1.0 / p.tpot_s for p in each]), np.array([p.usd_per_h / tokens for p in each]),
              np.array([p.ttft_s for p in each]), np.array([float(p.replicas) for p in each]))
        for name, each in by_device.items()
    ]  # fmt: skip
    replicas = float(sum(n for _, n in r.fleet.members))
    chosen = Curve(
        "the choice", *(np.array([v]) for v in (1.0 / r.latencies["tpot_s"], r.usd_per_mtok_output,
                                                r.latencies["ttft_s"], replicas))
    )  # fmt: skip
    limits = r.slo.limits
    return Frontier(
        str(r.traffic), "Cost against speed of whole fleets", GAIN, False, strongest(curves, False),
        limits.get("ttft_s"), limits.get("tpot_s"), "workers" if r.fleet.disaggregated else "replicas", joined=False,
        chosen=chosen,
    )  # fmt: skip


def caption(f: Frontier) -> str:
    """What the figure says."""
    return shared.caption(f)


def draw(figure: Picture, how: Look, f: Frontier) -> None:
    """Draw it as the other frontier."""
    shared.draw(figure, how, f)
