"""The sawtooth: how much of the matrix unit a product's tiles and waves leave idle, token by token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from matplotlib.lines import Line2D

from roofline.display import number
from roofline.errors import InputError, UnknownNameError
from roofline.estimates import Estimate
from roofline.kernels.gemm import IDENTITY, gemm_terms
from roofline.ops import Gemm
from roofline.pricing import op_times
from roofline.report.style import BLUE, GREEN, GREY, Look, Picture, counted, legend, logarithmic, prefixed, title
from roofline.units import format as quantity


@dataclass(frozen=True, slots=True)
class Sawtooth:
    """One weight matrix against every number of tokens."""

    about: str
    op: str
    n: int
    k: int
    tokens: np.ndarray
    filled: np.ndarray  # share of the matrix unit that whole tiles in whole waves leave busy, best tile
    flops_per_s: np.ndarray  # predicted
    roof_flops_per_s: np.ndarray  # datasheet
    peak_flops_per_s: float
    here: float  # tokens of the estimate's decode step


def of(e: Estimate, op: str = "ffn.up", most: int = 4096) -> Sawtooth:
    """The matrix product `op` of an estimate's model for 1 to `most` tokens, on one rank.

    Args:     op: name of a product of 'roofline estimate --ops decode'
    """
    if not isinstance(e, Estimate):
        raise InputError(f"the sawtooth is drawn of an Estimate, not of a {type(e).__name__}")
    products = {t.op.name: t.op for t in e.decode.times if isinstance(t.op, Gemm)}
    if op == "ffn.up" and op not in products:  # a model without dense layers: its widest product
        op = max(products, key=lambda name: float(products[name].weight_bytes))
    if op not in products:
        raise UnknownNameError("matrix product", op, list(products))
    shape, machine = products[op], e.deployment.machine
    tokens = np.unique(np.concatenate((np.arange(1.0, 1025.0), np.arange(1024.0, max(most, 1025) + 1.0, 4.0))))
    time = op_times([replace(shape, m=tokens)], machine, e.deployment.plan)[0]
    one = replace(shape, m=tokens, count=1.0)
    peak = machine.peak_flops_per_s(shape)
    ideal = replace(IDENTITY, wave_loss=1.0)
    whole = gemm_terms(tokens, shape.n, shape.k, chip=machine.chip, peak_flops_per_s=peak, constants=ideal)
    filled = 2.0 * tokens * shape.n * shape.k / peak / whole.compute_s
    datasheet = np.maximum(time.compute_s, time.memory_s)
    return Sawtooth(
        str(e.deployment), op, int(shape.n), int(shape.k), tokens, filled, one.flops / time.total_s,
        one.flops / datasheet, peak, float(shape.m),
    )  # fmt: skip


def caption(s: Sawtooth) -> str:
    """What the figure says."""
    best = int(np.argmax(s.flops_per_s))
    return (
        f"{s.op} ({s.n:,} x {s.k:,} on a rank): at {number(s.here)} tokens whole tiles and waves leave "
        f"{float(np.interp(s.here, s.tokens, s.filled)):.0%} of the matrix unit busy; the product peaks at "
        f"{quantity(s.flops_per_s[best], 'FLOP/s', 3)} ({s.flops_per_s[best] / s.peak_flops_per_s:.0%} of the peak) "
        f"with {number(s.tokens[best])} tokens."
    )


def draw(figure: Picture, how: Look, s: Sawtooth) -> None:
    """Draw it: what tiles and waves allow above, what is predicted below."""
    title(figure, how, f"Tiles and waves of {s.op}: {s.n:,} x {s.k:,}", s.about)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.0, 1.25))
    above.plot(s.tokens, s.filled, color=BLUE, linewidth=0.1 * how.size.text)
    above.set_ylim(0.0, 1.04)
    above.set_ylabel("Busy share [-]")
    below.plot(s.tokens, s.roof_flops_per_s, color=GREY, linestyle=(0, (5, 2)))
    below.plot(s.tokens, s.flops_per_s, color=GREEN)
    below.set_ylabel("Rate [FLOP/s]")
    below.set_xlabel("Tokens in a step")
    low = float(s.flops_per_s[0])
    for axes in (above, below):
        axes.axvline(s.here, color=how.theme.ink, linewidth=1.0, linestyle=(0, (1, 2)))
    logarithmic(below, (1.0, float(s.tokens[-1])), (low / 1.5, s.peak_flops_per_s * 1.6))
    counted(below.xaxis)
    prefixed(below.yaxis)
    legend(
        figure, how,
        [
            Line2D([], [], color=BLUE, label="busy in whole tiles and waves, best tile"),
            Line2D([], [], color=GREEN, label="predicted"),
            Line2D([], [], color=GREY, linestyle=(0, (5, 2)), label="datasheet roofline"),
            Line2D([], [], color=how.theme.ink, linestyle=(0, (1, 2)), linewidth=1.0, label="this estimate"),
        ],
    )  # fmt: skip
