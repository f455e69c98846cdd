"""Throughput per GPU against speed per user: a curve for every layout, their frontier, and the box of an SLO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from roofline.deployment import Deployment
from roofline.display import number, seconds
from roofline.errors import InputError
from roofline.estimates import Estimate
from roofline.planner.layouts import obstacle, plans
from roofline.report.style import (
    DASHES,
    GREEN,
    MARKERS,
    ON_DARK,
    ON_LIGHT,
    SERIES,
    Look,
    Picture,
    boxes_around,
    counted,
    label_points,
    legend,
    logarithmic,
    plain,
    settle,
    title,
)  # fmt: skip
from roofline.serving.steady import steady_state
from roofline.sweeps import Sweep
from roofline.sweeps.metrics import metric

# What is on the other axis, as people call it
GAINS = {
    "tokens_per_s_gpu": "Output tokens/s per GPU",
    "usd_per_mtok_output": "USD per million output tokens",
}
LOADS = {"concurrency": "in flight", "batch": "together", "rate_per_s": "requests/s"}
MOST_GPUS = 8
MOST_CURVES = 7
SPAN = 4096.0  # requests in flight at most


@dataclass(frozen=True, slots=True)
class Curve:
    """One layout over its load: what a user gets, what the owner gets."""

    label: str
    per_user: np.ndarray  # output tokens/s of one user
    gain: np.ndarray  # what is on the other axis
    ttft_s: np.ndarray
    load: np.ndarray  # requests in flight


@dataclass(frozen=True, slots=True)
class Frontier:
    """Curves with the limits that a point has to keep."""

    about: str
    head: str
    gain: str  # label of the other axis
    larger_is_better: bool
    curves: tuple[Curve, ...]
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    load: str = "in flight"  # what the load of a point counts
    joined: bool = True  # False: points are choices of their own, with nothing between
    chosen: Curve | None = None  # a point that was chosen for more reasons than these limits, in place of the best

    def kept(self, curve: Curve) -> np.ndarray:
        """Points of a curve that keep both limits."""
        ttft = True if self.slo_ttft_s is None else curve.ttft_s <= self.slo_ttft_s
        tpot = True if self.slo_tpot_s is None else curve.per_user * self.slo_tpot_s >= 1.0 - 1e-9
        return np.broadcast_to(ttft & np.asarray(tpot), curve.per_user.shape)

    @property
    def best(self) -> tuple[Curve, int] | None:
        """The point with the best gain that keeps the SLO, or the one that was chosen."""
        if self.chosen is not None:
            return self.chosen, 0
        sign = 1.0 if self.larger_is_better else -1.0
        points = [(sign * c.gain[i], c, i) for c in self.curves for i in np.flatnonzero(self.kept(c))]
        return max(points, key=lambda p: p[0])[1:] if points else None


def of(
    subject: Estimate | Sweep,
    slo_ttft_s: float | None = None,
    slo_tpot_s: float | None = None,
    max_gpus: int = MOST_GPUS,
    x: str = "tokens_per_s_user",
    y: str = "tokens_per_s_gpu",
) -> Frontier:
    """The frontier of an estimate's model over layouts of its device, or of a sweep over whatever was swept.

    Args:     slo_ttft_s, slo_tpot_s [s]: limits on the means; max_gpus: of a layout (estimates); x, y: metrics (sweeps)
    """
    if isinstance(subject, Sweep):
        return of_sweep(subject, x, y, slo_ttft_s, slo_tpot_s)
    if not isinstance(subject, Estimate):
        raise InputError(f"the frontier is drawn of an Estimate or a Sweep, not of a {type(subject).__name__}")
    d = subject.deployment
    tried = layouts(subject, d, max_gpus)
    curves = [layout_curve(subject, where, label, "tokens_per_s_gpu") for label, where in tried]
    about = f"{about_formats(d)} on {d.accelerator.name}, {about_lengths(subject)}"
    return Frontier(
        about, "Throughput against speed, by layout", GAINS["tokens_per_s_gpu"], True, strongest(curves),
        slo_ttft_s, slo_tpot_s,
    )  # fmt: skip


def about_formats(d: Deployment) -> str:
    kv = "" if d.precision.kv.name == "bf16" else f", {d.precision.kv.name} KV"
    return f"{d.model.name} {d.precision.name}{kv}, {d.engine.name}"


def about_lengths(e: Estimate) -> str:
    cached = f" ({number(e.cached)} cached)" if e.cached else ""
    return f"{number(e.isl)} tokens in{cached}, {number(e.osl)} out"


def layouts(e: Estimate, d: Deployment, max_gpus: int) -> list[tuple[str, Deployment]]:
    """The deployment itself and other layouts of the model on the same device that fit, smallest first."""
    found = {str(d.plan): d} if d.footprint(e.isl + e.osl).fits else {}
    for plan in plans(d.model, d.accelerator, max(max_gpus, d.plan.gpus)):
        where = d.with_(plan=plan)
        if str(plan) not in found and obstacle(where, e.isl + e.osl) is None:
            found[str(plan)] = where
    by_size = sorted(found.items(), key=lambda item: item[1].plan.gpus)
    return [("1 GPU" if w.plan.gpus == 1 else name, w) for name, w in by_size]


def layout_curve(e: Estimate, where: Deployment, label: str, gain: str, usd_per_h: float = float("nan")) -> Curve:
    """One deployment from one request in flight to as many as its memory holds."""
    most = min(float(where.footprint(e.isl + e.osl).max_concurrency) * where.plan.dp, SPAN)
    load = np.unique(np.round(np.geomspace(where.plan.dp, max(most, where.plan.dp + 1.0), 40)))
    state = steady_state(where, isl=e.isl, osl=e.osl, cached=e.cached, concurrency=load)
    rate = np.broadcast_to(np.asarray(state.tokens_per_s, float), load.shape)
    gains = {
        "tokens_per_s_gpu": rate / where.plan.gpus,
        "usd_per_mtok": usd_per_h * where.plan.gpus / (rate * 3600.0) * 1e6,
    }
    per_user = np.broadcast_to(1.0 / np.asarray(state.tpot_s, float), load.shape)
    return Curve(label, per_user, gains[gain], np.broadcast_to(np.asarray(state.ttft_s, float), load.shape), load)


def of_sweep(s: Sweep, x: str, y: str, slo_ttft_s: float | None, slo_tpot_s: float | None) -> Frontier:
    """A curve for each combination of what was swept beside the load."""
    for name in (x, y, "ttft_s"):
        if name not in s.columns:
            metric(name)
            raise InputError(f"the frontier needs '{name}'; add it: sweep(..., metrics=[{name!r}, ...])")
    loads = [n for n in s.grid.swept if n in LOADS]
    frame = s.to_pandas(feasible_only=True)
    if frame.empty:
        raise InputError("no point of the sweep is feasible: there is nothing to draw")
    others = [n for n in s.grid.swept if n not in loads]
    groups = frame.groupby(others, sort=False) if others else [((), frame)]
    curves = []
    for key, rows in groups:
        rows = rows.sort_values(x)
        values = key if isinstance(key, tuple) else (key,)
        label = " ".join(v if isinstance(v, str) else f"{n} {v:g}" for n, v in zip(others, values)) or "all"
        load = rows[loads[0]].to_numpy(float) if loads else np.full(len(rows), np.nan)
        curves.append(Curve(label, *(rows[c].to_numpy(float) for c in (x, y, "ttft_s")), load))
    better = metric(y).larger_is_better
    swept = ", ".join(f"{name} ({len(values)})" for name, values in s.axes.items())
    return Frontier(
        f"sweep over {swept}", "Pareto frontier of a sweep", GAINS.get(y, f"{y} [{metric(y).unit}]"), better,
        strongest(curves, better), slo_ttft_s, slo_tpot_s, LOADS[loads[0]] if loads else "",
    )  # fmt: skip


def strongest(curves: Iterable[Curve], larger_is_better: bool = True) -> tuple[Curve, ...]:
    """Curves that touch the frontier first, then the others, as many as can be told apart."""
    curves = list(curves)
    if not curves:
        raise InputError("no layout fits: there is nothing to draw")
    on, _ = pareto(curves, larger_is_better)
    share = np.bincount([c for c, _ in on], minlength=len(curves))
    chosen = sorted(np.argsort(-share, kind="stable")[:MOST_CURVES])
    return tuple(curves[i] for i in chosen)


def pareto(curves: Iterable[Curve], larger_is_better: bool = True) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Points (curve, place) that no other beats in speed and gain, fastest first, and their coordinates.

    Formula:  sort by speed; keep what improves the gain
    """
    points = [(c, i) for c, curve in enumerate(curves) for i in range(curve.per_user.size)]
    x = np.concatenate([c.per_user for c in curves])
    y = np.concatenate([c.gain for c in curves]) * (1.0 if larger_is_better else -1.0)
    order = np.lexsort((-y, -x))
    best = np.maximum.accumulate(y[order])
    keep = order[np.concatenate(([True], y[order][1:] > best[:-1]))]
    return [points[i] for i in keep], np.stack([x[keep], y[keep] * (1.0 if larger_is_better else -1.0)], axis=1)


def caption(f: Frontier) -> str:
    """What the figure says."""
    slo = []
    if f.slo_ttft_s is not None:
        slo.append(f"TTFT up to {seconds(f.slo_ttft_s)}")
    if f.slo_tpot_s is not None:
        slo.append(f"TPOT up to {seconds(f.slo_tpot_s)}")
    limits = f" with {' and '.join(slo)}" if slo else ""
    best = f.best
    if best is None:
        return f"None of the {len(f.curves)} layouts keeps{limits.removeprefix(' with')}."
    curve, i = best
    what = f"Best{limits}: {curve.label}" if f.chosen is None else f"The choice{limits}"
    return (
        f"{what}, {number(curve.load[i])} {f.load}: {number(curve.gain[i])} "
        f"{f.gain.replace('Output', 'output', 1)}, {number(curve.per_user[i])} tokens/s for each user, "
        f"TTFT {seconds(curve.ttft_s[i])}."
    )


def draw(figure: Picture, how: Look, f: Frontier) -> None:
    """Draw it; points that miss the TTFT limit are hollow."""
    title(figure, how, f.head, f.about)
    axes = figure.subplots()
    shown = f.curves if f.chosen is None else (*f.curves, f.chosen)
    x = np.concatenate([c.per_user for c in shown])
    y = np.concatenate([c.gain for c in shown])
    low_x, high_x = float(x.min()) / 1.15, float(x.max()) * 1.15
    low_y, high_y = float(y.min()) / 1.3, float(y.max()) * 1.4
    logarithmic(axes, (low_x, high_x), (low_y, high_y))
    for axis in (axes.xaxis, axes.yaxis):
        plain(axis) if axis.get_view_interval()[1] < 1e3 else counted(axis)
    axes.set_xlabel("Output tokens/s per user (1/TPOT)" if not how.narrow else "Tokens/s per user")
    axes.set_ylabel(f.gain)
    if f.slo_tpot_s is not None:
        edge = 1.0 / f.slo_tpot_s
        box = Rectangle((edge, low_y), max(high_x - edge, 0.0), high_y - low_y, facecolor=GREEN, alpha=0.13, zorder=0.5)
        axes.add_patch(box)
        axes.axvline(edge, color=GREEN, linewidth=1.6, zorder=1)
    _, front = pareto(f.curves, f.larger_is_better)
    axes.plot(front[:, 0], front[:, 1], color=how.theme.muted, linewidth=0.55 * how.size.text, alpha=0.4,
              solid_joinstyle="round", zorder=1.5)  # fmt: skip
    for i, curve in enumerate(f.curves):
        colour, marker = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
        if f.joined:
            axes.plot(curve.per_user, curve.gain, color=colour, linestyle=DASHES[i % len(DASHES)], zorder=2)
        good = np.full(curve.ttft_s.shape, True) if f.slo_ttft_s is None else curve.ttft_s <= f.slo_ttft_s
        crowded = f.joined and curve.load.size > 16
        every = slice(None, None, (3 if how.narrow else 2) if crowded else 1)
        for mask, face in ((good, colour), (~good, how.theme.paper)):
            some = mask[every]
            axes.scatter(curve.per_user[every][some], curve.gain[every][some], marker=marker, s=2.6 * how.size.text,
                         facecolors=face, edgecolors=colour, linewidths=1.2, zorder=3)  # fmt: skip
    handles = [
        Line2D([], [], color=SERIES[i % len(SERIES)], linestyle=DASHES[i % len(DASHES)] if f.joined else "",
               marker=MARKERS[i % len(MARKERS)], markersize=0.42 * how.size.text, label=c.label)
        for i, c in enumerate(f.curves)
    ]  # fmt: skip
    handles.append(Line2D([], [], color=how.theme.muted, linewidth=0.5 * how.size.text, alpha=0.4, label="frontier"))
    if f.slo_tpot_s is not None:
        handles.append(Patch(facecolor=GREEN, alpha=0.25, label=f"TPOT up to {seconds(f.slo_tpot_s)}"))
    if f.slo_ttft_s is not None:
        hollow = {"markerfacecolor": how.theme.paper, "markeredgecolor": how.theme.muted}
        text = f"hollow: TTFT over {seconds(f.slo_ttft_s)}"
        handles.append(Line2D([], [], linestyle="", marker="o", label=text, **hollow))
    legend(figure, how, handles)
    settle(figure)
    _mark_best(axes, how, f)


def _mark_best(axes, how: Look, f: Frontier) -> None:
    if f.best is None or (f.chosen is None and f.slo_tpot_s is None and f.slo_ttft_s is None):
        return
    curve, i = f.best
    x, y = curve.per_user[i], curve.gain[i]
    axes.plot([x], [y], marker="*", markersize=1.5 * how.size.text, color=ON_DARK, markeredgecolor=ON_LIGHT,
              markeredgewidth=1.3, linestyle="", zorder=6)  # fmt: skip
    text = f"{curve.label}, {number(curve.load[i])} {f.load}\n{number(y)} at {number(x)} tok/s"
    others = [point for c in f.curves for point in zip(c.per_user, c.gain)]
    label_points(axes, how, [(text, (x, y))], boxes_around(axes, others, 0.6 * how.size.text), fontweight="bold")
