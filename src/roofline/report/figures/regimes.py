"""The regime map: what a decode step waits for, over batch and context, and where the KV cache ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from roofline.display import number, seconds
from roofline.errors import InputError
from roofline.estimates import Estimate
from roofline.regimes import REGIMES, regime_of
from roofline.report.style import (
    ON_DARK,
    ON_LIGHT,
    PART_COLOURS,
    Look,
    Picture,
    counted,
    halo,
    legend,
    logarithmic,
    settle,
    title,
)  # fmt: skip

BATCHES = np.geomspace(1, 4096, 97)
CONTEXTS = np.geomspace(256, 1_048_576, 97)
COLOURS = {label: PART_COLOURS[part] for part, label in REGIMES.items()}
LEVELS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class RegimeMap:
    """Names of regimes and seconds of a decode step over a grid [context, batch]."""

    about: str
    batches: np.ndarray
    contexts: np.ndarray
    names: np.ndarray  # [context, batch]
    step_s: np.ndarray  # [context, batch]
    resident: np.ndarray  # sequences whose KV fits, per context
    here: tuple[float, float, str]  # batch, context and regime of the estimate


def of(e: Estimate) -> RegimeMap:
    """The map around an estimate; an encoder-decoder is mapped with its own prompt."""
    if not isinstance(e, Estimate):
        raise InputError(f"the regime map is drawn of an Estimate, not of a {type(e).__name__}")
    d = e.deployment
    encoded = e.isl if d.model.encoder else 0.0
    step = d.decode_step(BATCHES, CONTEXTS[:, None], encoded)
    shape = (CONTEXTS.size, BATCHES.size)
    resident = np.asarray(d.footprint(CONTEXTS).max_concurrency, float) * d.plan.dp
    context = e.isl + e.osl / 2.0 - encoded
    return RegimeMap(
        str(d), BATCHES, CONTEXTS, np.broadcast_to(regime_of(step), shape), np.broadcast_to(step.total_s, shape),
        np.broadcast_to(resident, CONTEXTS.shape), (float(e.running or e.batch), context, e.regime.name),
    )  # fmt: skip


def caption(r: RegimeMap) -> str:
    """What the figure says."""
    shares = {name: float(np.mean(r.names == name)) for name in COLOURS}
    most = ", ".join(f"{name} {s:.0%}" for name, s in sorted(shares.items(), key=lambda x: -x[1]) if s > 0.02)
    batch, context, name = r.here
    return (
        f"At batch {number(batch)} and context {number(context)} a decode step is {name}. "
        f"Of the map: {most}. Above the line of the KV cache the sequences do not fit together."
    )


def draw(figure: Picture, how: Look, r: RegimeMap) -> None:
    """Draw it."""
    title(figure, how, "What decoding waits for", r.about)
    axes = figure.subplots()
    logarithmic(axes, (r.batches[0], r.batches[-1]), (r.contexts[0], r.contexts[-1]))
    colours = np.array([to_rgba(COLOURS[n], 0.82) for n in COLOURS])
    index = {name: i for i, name in enumerate(COLOURS)}
    codes = np.vectorize(index.get, otypes=[int])(r.names)
    mesh = axes.pcolormesh(_edges(r.batches), _edges(r.contexts), codes[..., None] * 0.0 + colours[codes],
                           shading="flat", rasterized=True, zorder=1)  # fmt: skip
    mesh.set_edgecolor("none")
    axes.grid(False)
    axes.set_xlim(r.batches[0], r.batches[-1])
    axes.set_ylim(r.contexts[0], r.contexts[-1])
    _capacity(axes, how, r)
    axes.set_xlabel("Batch [sequences in a step]")
    axes.set_ylabel("Context [tokens per sequence]")
    counted(axes.xaxis)
    counted(axes.yaxis)
    batch, context, _ = r.here
    axes.plot([batch], [context], marker="*", markersize=1.3 * how.size.text, color=ON_DARK, markeredgecolor=ON_LIGHT,
              markeredgewidth=1.2, linestyle="", clip_on=False, zorder=8)  # fmt: skip
    present = [n for n in COLOURS if np.mean(r.names == n) > 0.002]
    handles = [Patch(facecolor=to_rgba(COLOURS[n], 0.82), label=n) for n in present]
    handles += [
        Line2D([], [], linestyle="", marker="*", color=ON_DARK, markeredgecolor=ON_LIGHT, label="this estimate",
               markersize=how.size.text),
        Line2D([], [], color=how.theme.ink, linewidth=1.0, label="seconds per step"),
        Patch(facecolor=how.theme.paper, edgecolor=how.theme.muted, hatch="////", label="KV does not fit"),
    ]  # fmt: skip
    legend(figure, how, handles)
    settle(figure)
    levels = [v for v in LEVELS if r.step_s.min() * 1.05 < v < r.step_s.max() * 0.95]
    if levels:
        drawn = axes.contour(r.batches, r.contexts, r.step_s, levels, colors=how.theme.ink, linewidths=0.9, zorder=4)
        for text in axes.clabel(drawn, fmt=seconds, fontsize=how.small * 0.95, inline=True):
            text.set_in_layout(False)


def _capacity(axes, how: Look, r: RegimeMap) -> None:
    """Hatch what does not fit beside the weights."""
    over = r.batches[None, :] > r.resident[:, None]
    if not over.any():
        return
    filled = axes.contourf(r.batches, r.contexts, over.astype(float), levels=[0.5, 1.5], colors=[how.theme.paper],
                           alpha=0.62, zorder=2)  # fmt: skip
    filled.set_edgecolor("none")
    with_hatch = axes.contourf(r.batches, r.contexts, over.astype(float), levels=[0.5, 1.5], colors="none",
                               hatches=["////"], zorder=3)  # fmt: skip
    with_hatch.set_edgecolor(how.theme.muted)
    with_hatch.set_linewidth(0.0)
    line = np.clip(r.resident, r.batches[0] / 2, r.batches[-1] * 2)
    axes.plot(line, r.contexts, color=how.theme.ink, linewidth=2.0, zorder=5, path_effects=halo(how))


def _edges(values: np.ndarray) -> np.ndarray:
    """Cell borders between points at equal ratios."""
    ratio = np.sqrt(values[1:] / values[:-1])
    return np.concatenate(([values[0] / ratio[0]], values[:-1] * ratio, [values[-1] * ratio[-1]]))
