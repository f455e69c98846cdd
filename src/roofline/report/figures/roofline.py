"""The roofline: every op of a step under the peaks of its device, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from roofline.display import number
from roofline.errors import InputError
from roofline.estimates import Estimate, OpRow
from roofline.kernels.gemm import GemmConstants
from roofline.pricing.common import table_format
from roofline.report.style import (
    BLUE,
    GREEN,
    ORANGE,
    Look,
    Picture,
    boxes_around,
    counted,
    halo,
    label_points,
    legend,
    logarithmic,
    prefixed,
    settle,
    slope_degrees,
    spread,
    title,
)
from roofline.units import format as quantity

STEPS = {"prefill": (BLUE, "o"), "decode": (ORANGE, "^")}
LABELLED = 4  # ops of a step that are named
LEFT_OUT = ("fp64", "fp64_matrix")  # roofs that inference never meets


@dataclass(frozen=True, slots=True)
class Roof:
    """A compute peak; `formats` that share it."""

    formats: tuple[str, ...]
    flops_per_s: float
    used: bool  # by the matmuls of this precision


@dataclass(frozen=True, slots=True)
class Slope:
    """A bandwidth; an op's FLOP per byte over that path give its roof."""

    name: str
    bytes_per_s: float
    main: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """An op: all layers of one shape together, predicted or measured."""

    step: str
    op: str
    intensity: float  # FLOP/B
    flops_per_s: float
    share: float  # of its step


@dataclass(frozen=True, slots=True)
class Roofline:
    """Roofs, slopes and points of one device."""

    about: str
    device: str
    roofs: tuple[Roof, ...]
    slopes: tuple[Slope, ...]
    points: tuple[Point, ...]
    measured: tuple[Point, ...] = ()
    unseen: tuple[tuple[str, float], ...] = ()  # step -> share of its time in ops without FLOPs
    hidden: tuple[str, ...] = ()  # ops that run beside others: their own seconds say nothing about their rate


def of(e: Estimate, measured: Iterable[Point] = ()) -> Roofline:
    """The roofline of an estimate's device with the ops of its prefill and decode step.

    Args:     measured: points of ops that were timed, drawn beside the predicted ones of the same step and name
    """
    if not isinstance(e, Estimate):
        raise InputError(f"the roofline is drawn of an Estimate, not of a {type(e).__name__}")
    tables = {"prefill": e.prefill_table, "decode": e.decode_table}
    points = [_point(step, row) for step, rows in tables.items() for row in rows if _has_flops(row)]
    above = {p.op for p in points if p.flops_per_s > 1.02 * _roof(e, p.intensity)}
    points = tuple(p for p in points if p.op not in above)
    unseen = tuple((step, sum(r.share for r in rows if not _has_flops(r))) for step, rows in tables.items())
    return Roofline(
        str(e.deployment), e.deployment.accelerator.title, roofs_of(e), slopes_of(e), points, tuple(measured), unseen,
        tuple(sorted(above)),
    )  # fmt: skip


def _roof(e: Estimate, intensity: float) -> float:
    a = e.deployment.accelerator
    return min(max(a.compute.dense.values()), intensity * a.bandwidth_bytes_per_s)


def read_points(path: str | Path) -> tuple[Point, ...]:
    """Measured points of a CSV with columns step (prefill or decode), op, flops, bytes and time_s.

    Errors:   InputError naming what is missing or not positive
    """
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is not a table: {error}") from None
    columns = ("step", "op", "flops", "bytes", "time_s")
    if missing := [c for c in columns if c not in table.columns]:
        raise InputError(f"'{path}' lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    numbers = table[["flops", "bytes", "time_s"]].apply(pd.to_numeric, errors="coerce")
    wrong = ~(numbers > 0).all(axis=1) | ~table["step"].isin(list(STEPS))
    if wrong.any():
        row = int(wrong.idxmax()) + 2
        raise InputError(f"'{path}', line {row}: step is prefill or decode; flops, bytes and time_s are positive")
    return tuple(
        Point(str(step), str(op), flops / moved, flops / time_s, 0.0)
        for step, op, (flops, moved, time_s) in zip(table["step"], table["op"], numbers.to_numpy(float).tolist())
    )


def _has_flops(row: OpRow) -> bool:
    return row.flops > 0 and row.bytes > 0 and row.time_s > 0


def _point(step: str, row: OpRow) -> Point:
    return Point(step, row.op, row.intensity, row.flops / row.time_s, row.share)


def roofs_of(e: Estimate) -> tuple[Roof, ...]:
    """The dense peaks of the device, formats of one rate together, highest first."""
    machine, dense = e.deployment.machine, e.deployment.accelerator.compute.dense
    used = {machine.matmul_flops_per_s(f) for f in e.deployment.precision.weights.values()}
    used.add(machine.matmul_flops_per_s(e.deployment.precision.default))
    rates = sorted({rate for name, rate in dense.items() if name not in LEFT_OUT}, reverse=True)
    named = {rate: tuple(n for n, r in dense.items() if r == rate and n not in LEFT_OUT) for rate in rates}
    return tuple(Roof(named[rate], rate, rate in used) for rate in rates)


def slopes_of(e: Estimate) -> tuple[Slope, ...]:
    """Memory, the cache as kernels were found to be fed from it, links to peers and to the host, fastest first."""
    d, a = e.deployment, e.deployment.accelerator
    found = [Slope("memory" if a.memory.type == "unknown" else a.memory.type, a.bandwidth_bytes_per_s, main=True)]
    fitted = d.machine.constants("gemm", table_format(d.precision.of("ffn"), d.machine), GemmConstants())
    ratio = float(fitted.constants.feed_ratio)
    if fitted.evidence == "measured" and a.l2_bytes and np.isfinite(ratio):
        found.append(Slope("L2, as fitted", ratio * a.bandwidth_bytes_per_s))
    if a.scale_up and a.scale_up.bandwidth:
        found.append(Slope(a.scale_up.link.split(" + ")[0], a.scale_up.bandwidth))
    if a.host_bytes_per_s and a.host:
        found.append(Slope(a.host.link, a.host_bytes_per_s))
    return tuple(sorted(found, key=lambda s: -s.bytes_per_s))


def caption(r: Roofline) -> str:
    """What the figure says."""
    main = next(s for s in r.slopes if s.main)
    top = max((f for f in r.roofs if f.used), key=lambda f: f.flops_per_s, default=r.roofs[0])
    text = (
        f"{r.device}: {quantity(top.flops_per_s, 'FLOP/s')} in {top.formats[0]} over "
        f"{quantity(main.bytes_per_s, 'B/s')} of {main.name}, a ridge at "
        f"{top.flops_per_s / main.bytes_per_s:.0f} FLOP/B."
    )
    for step in STEPS:
        mine = [p for p in r.points if p.step == step]
        if mine:
            big = max(mine, key=lambda p: p.share)
            text += (
                f" {step.capitalize()}: {big.op} takes {big.share:.0%} of the step at {number(big.intensity)} FLOP/B "
                f"and {quantity(big.flops_per_s, 'FLOP/s', 3)}."
            )
    left = [f"{share:.0%} of {step}" for step, share in r.unseen if share > 0.005]
    text += f" Ops without FLOPs are not points: {' and '.join(left)}." if left else ""
    return text + (f" Left out, as they run beside others: {', '.join(r.hidden)}." if r.hidden else "")


def draw(figure: Picture, how: Look, r: Roofline) -> None:
    """Draw it."""
    title(figure, how, f"Roofline: {r.device}", r.about)
    axes = figure.subplots()
    everything = [*r.points, *r.measured]
    main = next(s for s in r.slopes if s.main)
    peak = max(f.flops_per_s for f in r.roofs)
    x = [p.intensity for p in everything] + [peak / main.bytes_per_s * 4.0, 1.0]
    y = [p.flops_per_s for p in everything] + [peak]
    left, right = 0.7 * min(x), 2.0 * max(x)
    bottom, top = min(min(y) / 3.0, peak / 1e3), 2.5 * max(y)
    logarithmic(axes, (left, right), (bottom, top))
    axes.set_xlabel("Arithmetic intensity [FLOP/B]")
    axes.set_ylabel("Performance per device [FLOP/s]" if not how.narrow else "Performance [FLOP/s]")
    counted(axes.xaxis)
    prefixed(axes.yaxis)
    _lines(axes, how, r, (left, right), bottom)
    _points(axes, how, r)
    handles = [
        Line2D([], [], linestyle="", marker=m, color=c, markersize=0.75 * how.size.text, label=f"{step}, area is time")
        for step, (c, m) in STEPS.items()
        if any(p.step == step for p in r.points)
    ]
    if r.measured:
        handles.append(Line2D([], [], linestyle="", marker="D", markerfacecolor="none", markeredgecolor=GREEN,
                              markeredgewidth=1.6, label="measured"))  # fmt: skip
    legend(figure, how, handles)
    if not how.narrow:
        x0, y0, width, height = figure.get_layout_engine().get()["rect"]
        figure.get_layout_engine().set(rect=(x0, y0, width * 0.86, height))  # room for the names of the roofs
    settle(figure)
    dots = _name_roofs(axes, how, r, right) + _boxes(axes, how, r)
    names = label_points(axes, how, _names(how, r), dots + _line_boxes(axes, r, right))
    _name_slopes(axes, how, r, (left, bottom), names + dots)


def _lines(axes, how: Look, r: Roofline, x: tuple[float, float], bottom: float) -> None:
    fastest = max(s.bytes_per_s for s in r.slopes if s.main)
    peak = max(f.flops_per_s for f in r.roofs)
    roofs, slopes = drawn(how, r)
    for roof in roofs:
        colour, width = (how.theme.ink, 2.2) if roof.used else (how.theme.muted, 0.9)
        axes.plot([roof.flops_per_s / fastest, x[1]], [roof.flops_per_s] * 2, zorder=2, solid_capstyle="butt",
                  color=colour, linewidth=width)  # fmt: skip
    for slope in slopes:
        start = max(x[0], bottom / slope.bytes_per_s)
        axes.plot([start, peak / slope.bytes_per_s], [start * slope.bytes_per_s, peak], zorder=2,
                  color=how.theme.ink if slope.main else how.theme.muted, linewidth=2.2 if slope.main else 0.9,
                  linestyle="-" if slope.main else (0, (5, 3)))  # fmt: skip


def _name_roofs(axes, how: Look, r: Roofline, right: float) -> list[Bbox]:
    """At the right edge, outside the axes; on narrow figures left of where a roof begins, or above it where that is too
    near to the axis. Returns where the names are."""
    kept = drawn(how, r)[0]
    fastest = max(s.bytes_per_s for s in r.slopes if s.main)
    pixels = axes.transData.transform([(right, f.flops_per_s) for f in kept])[:, 1]
    gap = 1.25 * how.small * axes.figure.dpi / 72.0 * (1.0 if how.narrow else 2.0)
    boxes = []
    for roof, y in zip(kept, spread(pixels, gap)):
        y = axes.transData.inverted().transform((0.0, y))[1]
        names, rate = ", ".join(roof.formats[:3]), quantity(roof.flops_per_s, "FLOP/s")
        text, side, x = f"{names}\n{rate}", {"xytext": (5, 0), "va": "center"}, right
        if how.narrow:
            text, begins = f"{names}: {rate}", roof.flops_per_s / fastest
            room = axes.transData.transform((begins, roof.flops_per_s))[0] - axes.bbox.x0
            beside = room > 0.62 * len(text) * how.small * axes.figure.dpi / 72.0
            x = begins if beside else right
            side = {"xytext": (-4, 0) if beside else (-3, 2), "va": "center" if beside else "bottom", "ha": "right"}
        note = axes.annotate(
            text, (x, y), textcoords="offset points", fontsize=how.small, annotation_clip=False, linespacing=1.0,
            color=how.theme.ink if roof.used else how.theme.muted, path_effects=halo(how), zorder=6, **side,
        )  # fmt: skip
        note.set_in_layout(False)
        boxes.append(note.get_window_extent(axes.figure.canvas.get_renderer()))
    return boxes


def _name_slopes(axes, how: Look, r: Roofline, corner: tuple[float, float], taken: list) -> None:
    """Along the lines, near their lower ends, at the first place that no other name takes."""
    peak = max(f.flops_per_s for f in r.roofs)
    for slope in drawn(how, r)[1]:
        start, end = max(corner[0], corner[1] / slope.bytes_per_s), peak / slope.bytes_per_s
        text = f"{slope.name}, {quantity(slope.bytes_per_s, 'B/s', 3)}"
        low, high = axes.transData.transform([(start, start * slope.bytes_per_s), (end, peak)])
        along = (high - low) / np.hypot(*(high - low))
        across = np.array([-along[1], along[0]])
        letter = how.small * axes.figure.dpi / 72.0
        run = 0.6 * letter * np.arange(len(text) + 1)[:, None] * along  # where its letters will be
        places = [(share, side) for share in np.arange(0.04, 0.8, 0.04) for side in (1.0, -1.0)]

        def covered(place, low=low, high=high, run=run, across=across, letter=letter):
            letters = low + place[0] * (high - low) + run + place[1] * 0.8 * letter * across
            outside = sum(not axes.bbox.contains(*xy) for xy in letters)
            return outside + sum(box.padded(0.3 * letter).contains(*xy) for box in taken for xy in letters)

        share, side = min(places, key=covered)
        at = start * (end / start) ** share
        axes.annotate(
            text, (at, at * slope.bytes_per_s), xytext=side * 3.0 * across, textcoords="offset points",
            rotation=slope_degrees(axes, (start, start * slope.bytes_per_s), (end, peak)), rotation_mode="anchor",
            va="bottom" if side > 0 else "top", fontsize=how.small, path_effects=halo(how), zorder=6,
            color=how.theme.ink if slope.main else how.theme.muted,
        ).set_in_layout(False)  # fmt: skip


def drawn(how: Look, r: Roofline) -> tuple[list[Roof], list[Slope]]:
    """Roofs and slopes that there is room to name: on a narrow figure those that this precision meets."""
    if not how.narrow:
        return list(r.roofs), list(r.slopes)
    return [f for f in r.roofs if f.used or f is r.roofs[0]], [s for s in r.slopes if s.main]


def _points(axes, how: Look, r: Roofline) -> None:
    for step, (colour, marker) in STEPS.items():
        mine = sorted((p for p in r.points if p.step == step), key=lambda p: -p.share)
        axes.scatter([p.intensity for p in mine], [p.flops_per_s for p in mine],
                     s=[_area(how, p.share) for p in mine], color=colour, marker=marker, alpha=0.85,
                     edgecolors=how.theme.paper, linewidths=0.8, zorder=4)  # fmt: skip
    by_name = {(p.step, p.op): p for p in r.points}
    for m in r.measured:
        if twin := by_name.get((m.step, m.op)):
            axes.plot([twin.intensity, m.intensity], [twin.flops_per_s, m.flops_per_s], color=GREEN, linewidth=1.2,
                      zorder=5)  # fmt: skip
        axes.scatter([m.intensity], [m.flops_per_s], marker="D", s=3.2 * how.size.text, facecolors="none",
                     edgecolors=GREEN, linewidths=1.6, zorder=5)  # fmt: skip


def _area(how: Look, share: float) -> float:
    """Area of a point, in points squared: in proportion to its share of the step."""
    return max(46.0 * how.size.text * share, 16.0)


def _boxes(axes, how: Look, r: Roofline) -> list[Bbox]:
    """Where the points are on the page."""
    every = [*r.points, *r.measured]
    return boxes_around(
        axes, [(p.intensity, p.flops_per_s) for p in every], [0.45 * _area(how, p.share) ** 0.5 for p in every]
    )


def _line_boxes(axes, r: Roofline, right: float) -> list[Bbox]:
    """Small boxes along the lines that matter: names do not lie on them."""
    main = next(s for s in r.slopes if s.main)
    peak = max(f.flops_per_s for f in r.roofs)
    along = np.geomspace(axes.get_xlim()[0], peak / main.bytes_per_s, 60)
    spots = [(x, x * main.bytes_per_s) for x in along]
    for roof in (f for f in r.roofs if f.used):
        spots += [(x, roof.flops_per_s) for x in np.geomspace(roof.flops_per_s / main.bytes_per_s, right, 40)]
    return boxes_around(axes, spots, 1.0)


def clusters(points: list[Point], decades: float = 0.3) -> list[list[Point]]:
    """Points that lie within some decades of one another, the largest share of each group first."""
    groups: list[list[Point]] = []
    for p in sorted(points, key=lambda p: -p.share):
        for group in groups:
            q = group[0]
            if max(abs(np.log10(p.intensity / q.intensity)), abs(np.log10(p.flops_per_s / q.flops_per_s))) < decades:
                group.append(p)
                break
        else:
            groups.append([p])
    return groups


def _names(how: Look, r: Roofline) -> list[tuple[str, tuple[float, float]]]:
    """What the largest ops are called: one block of lines for those that lie together."""
    found = []
    for step in STEPS:
        mine = sorted((p for p in r.points if p.step == step and p.share > 0.03), key=lambda p: -p.share)
        for group in clusters(mine[: 3 if how.narrow else LABELLED]):
            found.append((group[0].share, "\n".join(f"{p.op} {p.share:.0%}" for p in group), group[0]))
    return [(text, (p.intensity, p.flops_per_s)) for _, text, p in sorted(found, key=lambda x: -x[0])]
