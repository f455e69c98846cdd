"""What speculation yields: speed-up over draft length and acceptance, and over batch at the best draft length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from roofline.display import number
from roofline.errors import InputError, SpecError
from roofline.estimates import Estimate
from roofline.report.style import (
    DASHES,
    MARKERS,
    ON_DARK,
    ON_LIGHT,
    SERIES,
    Look,
    Picture,
    counted,
    legend,
    logarithmic,
    settle,
    title,
)  # fmt: skip
from roofline.speculative import best_draft_length, drafter_named, speculate
from roofline.speculative.drafters import Drafter

DRAFTS = np.arange(0.0, 11.0)
ACCEPTANCE = np.linspace(0.3, 0.98, 69)
SHOWN = (0.5, 0.7, 0.8, 0.9)  # acceptances of the curves over batch
BATCHES = np.unique(np.round(np.geomspace(1.0, 512.0, 28)))


@dataclass(frozen=True, slots=True)
class Yield:
    """Speed-up against plain decoding at the same batch."""

    about: str
    drafter: str
    batch: float
    context: float
    drafts: np.ndarray
    acceptance: np.ndarray
    speedup: np.ndarray  # [acceptance, drafts]
    best_drafts: np.ndarray  # per acceptance
    batches: np.ndarray
    shown: tuple[float, ...]
    best_speedup: np.ndarray  # [shown, batches], at the best draft length, 1 where none pays


def of(e: Estimate, drafter: str | Drafter | None = None) -> Yield:
    """Speculation on an estimate's deployment at its batch and context.

    Args:     drafter: as in 'roofline speculate'; None: the model's own MTP head, else an EAGLE head, else n-grams
    """
    if not isinstance(e, Estimate):
        raise InputError(f"speculation is drawn of an Estimate, not of a {type(e).__name__}")
    d = e.deployment
    chosen = own_drafter(e) if drafter is None else drafter_named(drafter, d) if isinstance(drafter, str) else drafter
    batch, context = float(e.running or e.batch), e.isl + e.osl / 2.0
    grid = speculate(d, chosen, batch=batch, context=context, drafts=DRAFTS, acceptance=ACCEPTANCE[:, None])
    most = int(DRAFTS[-1])
    best = best_draft_length(d, chosen, acceptance=ACCEPTANCE, batch=batch, context=context, longest=most)
    over = best_draft_length(
        d, chosen, acceptance=np.array(SHOWN)[:, None], batch=BATCHES, context=context, longest=most
    )
    return Yield(
        str(d), chosen.name, batch, context, DRAFTS, ACCEPTANCE, np.asarray(grid.speedup), np.asarray(best.drafts),
        BATCHES, SHOWN, np.asarray(over.speedup),
    )  # fmt: skip


def own_drafter(e: Estimate) -> Drafter:
    """The drafter that comes first to mind for a model."""
    for name in ("mtp", "eagle"):
        try:
            return drafter_named(name, e.deployment)
        except SpecError:  # the model has no such head, or it cannot be derived
            continue
    return drafter_named("ngram", e.deployment)


def caption(y: Yield) -> str:
    """What the figure says."""
    at = int(np.argmin(np.abs(y.acceptance - 0.8)))
    k, gain = y.best_drafts[at], float(y.speedup[at, int(y.best_drafts[at])])
    pays = np.nonzero(y.speedup.max(axis=1) > 1.0 + 1e-9)[0]
    text = f"At batch {number(y.batch)} and an acceptance of 0.8, {k:.0f} drafts of {y.drafter} give {gain:.2f} x."
    if pays.size == 0:
        return text + " No acceptance shown makes it pay."
    first = f"from an acceptance of {y.acceptance[pays[0]]:.2f} on"
    return text + f" It pays {first if pays[0] else 'at every acceptance shown'}."


def draw(figure: Picture, how: Look, y: Yield) -> None:
    """Draw it: the map, and curves over batch."""
    title(figure, how, f"What speculation yields: {y.drafter}", f"{y.about}, context {number(y.context)}")
    shape = (2, 1) if how.narrow else (1, 2)
    chart, curves = figure.subplots(*shape, **({"height_ratios": (1.2, 1.0)} if how.narrow else {}))
    step = y.drafts[1] - y.drafts[0]
    chart.pcolormesh(np.append(y.drafts, y.drafts[-1] + step) - step / 2, _edges(y.acceptance), y.speedup,
                     cmap="cividis", rasterized=True, shading="flat", zorder=1)  # fmt: skip
    chart.grid(False)
    chart.set_xlim(y.drafts[0] - step / 2, y.drafts[-1] + step / 2)
    chart.set_ylim(y.acceptance[0], y.acceptance[-1])
    chart.plot(_held(y.best_drafts), _stairs(y.acceptance), color=ON_DARK, linewidth=0.22 * how.size.text, zorder=4)
    chart.plot(_held(y.best_drafts), _stairs(y.acceptance), color=ON_LIGHT, linewidth=0.1 * how.size.text, zorder=5)
    chart.set_xlabel("Drafts per cycle, k")
    chart.set_ylabel("Acceptance [-]")
    chart.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    chart.set_title(f"speed-up at batch {number(y.batch)}; line: best k")
    top = float(y.best_speedup.max())
    for i, share in enumerate(y.shown):
        curves.plot(y.batches, y.best_speedup[i], color=SERIES[i], linestyle=DASHES[i], marker=MARKERS[i],
                    markevery=6, label=f"acceptance {share:g}")  # fmt: skip
    curves.axhline(1.0, color=how.theme.ink, linewidth=1.0)
    logarithmic(curves, (float(y.batches[0]), float(y.batches[-1])), None)
    curves.set_ylim(0.9, max(top * 1.08, 1.2))
    counted(curves.xaxis)
    curves.set_xlabel("Batch [sequences]")
    curves.set_ylabel("Speed-up [x]")
    curves.set_title("at the best k; 1: plain decoding")
    legend(
        figure, how,
        [
            Line2D([], [], color=SERIES[i], linestyle=DASHES[i], marker=MARKERS[i], label=f"acceptance {a:g}")
            for i, a in enumerate(y.shown)
        ],
    )  # fmt: skip
    settle(figure)
    low, high = float(y.speedup.min()), float(y.speedup.max())
    levels = [v for v in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0) if low < v < 0.94 * high]
    if levels:
        lines = chart.contour(y.drafts[1:], y.acceptance, y.speedup[:, 1:], levels=levels, colors=ON_DARK, zorder=3,
                              linewidths=[2.4 if v == 1.0 else 1.0 for v in levels])  # fmt: skip
        for text in chart.clabel(lines, fmt=lambda v: f"{v:g} x", fontsize=how.small, colors=ON_DARK):
            text.set_path_effects([withStroke(linewidth=2.4, foreground=ON_LIGHT)])
            text.set_in_layout(False)


def _edges(values: np.ndarray) -> np.ndarray:
    middle = (values[1:] + values[:-1]) / 2.0
    return np.concatenate(([2 * values[0] - middle[0]], middle, [2 * values[-1] - middle[-1]]))


def _stairs(values: np.ndarray) -> np.ndarray:
    return np.repeat(_edges(values), 2)[1:-1]


def _held(values: np.ndarray) -> np.ndarray:
    return np.repeat(values, 2)
