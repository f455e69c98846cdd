"""Expert coverage: how many distinct experts a step reads, and what a token then costs in weight bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from matplotlib.lines import Line2D

from roofline.display import number
from roofline.errors import InputError
from roofline.estimates import Estimate
from roofline.ops import Experts
from roofline.report.style import (
    BLUE,
    DASHES,
    GREEN,
    ORANGE,
    Look,
    Picture,
    counted,
    legend,
    logarithmic,
    prefixed,
    title,
)
from roofline.units import format as quantity


@dataclass(frozen=True, slots=True)
class Coverage:
    """The routed experts of one layer on one rank, over the tokens that enter it."""

    about: str
    experts: int
    top_k: int
    tokens: np.ndarray
    uniform: np.ndarray  # share of the experts that are touched, expected
    apart: np.ndarray  # the same if no two tokens shared an expert, as far as there are experts
    bytes_per_token: np.ndarray  # weight bytes that a rank reads for its share of one token
    here: float  # tokens of the estimate's decode step
    share_here: float


def of(e: Estimate) -> Coverage:
    """The coverage of an estimate's model; of the layers with the most experts where they differ."""
    if not isinstance(e, Estimate):
        raise InputError(f"expert coverage is drawn of an Estimate, not of a {type(e).__name__}")
    found = [t.op for t in e.decode.times if isinstance(t.op, Experts)]
    if not found:
        raise InputError(f"{e.deployment.model.name} has no experts: expert coverage is of mixtures of experts")
    op = max(found, key=lambda x: (x.experts, float(x.count)))
    tokens = np.geomspace(1.0, 16384.0, 141)
    many = replace(op, tokens=tokens)
    local = op.experts / op.ep
    apart = np.minimum(tokens * op.top_k / op.experts, 1.0)
    return Coverage(
        str(e.deployment), int(op.experts), int(op.top_k), tokens, many.distinct / local, apart,
        many.weight_bytes / tokens, float(op.tokens), float(op.distinct / local),
    )  # fmt: skip


def caption(c: Coverage) -> str:
    """What the figure says."""
    full = np.ceil(c.tokens[np.argmax(c.uniform > 0.99)])
    return (
        f"With {c.top_k} of {c.experts} experts a token, the {number(c.here)} tokens of a decode step touch "
        f"{c.share_here:.0%} of them; {number(full)} tokens touch 99 %; from there on more tokens share the same bytes."
    )


def draw(figure: Picture, how: Look, c: Coverage) -> None:
    """Draw it: coverage above, bytes per token below."""
    title(figure, how, f"Expert coverage: {c.top_k} of {c.experts} experts per token", c.about)
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(c.tokens, c.uniform, color=BLUE)
    above.plot(c.tokens, c.apart, color=ORANGE, linestyle=DASHES[1])
    above.plot([c.here], [c.share_here], marker="o", color=BLUE, markeredgecolor=how.theme.ink, linestyle="")
    above.set_ylim(0.0, 1.04)
    above.set_ylabel("Experts read [-]")
    below.plot(c.tokens, c.bytes_per_token, color=GREEN)
    at = float(np.interp(c.here, c.tokens, c.bytes_per_token))
    below.plot([c.here], [at], marker="o", color=GREEN, markeredgecolor=how.theme.ink, linestyle="")
    below.annotate(quantity(at, "B", 3), (c.here, at), xytext=(6, 5), textcoords="offset points", fontsize=how.small)
    below.set_ylabel("Bytes per token [B]")
    below.set_xlabel("Tokens that enter a layer in a step")
    low, high = float(c.bytes_per_token.min()), float(c.bytes_per_token.max())
    logarithmic(below, (1.0, float(c.tokens[-1])), (low / 1.6, high * 1.8))
    counted(below.xaxis)
    prefixed(below.yaxis)
    legend(
        figure, how,
        [
            Line2D([], [], color=BLUE, label="random routing; skewed routers lie below"),
            Line2D([], [], color=ORANGE, linestyle=DASHES[1], label="no expert shared (upper bound)"),
            Line2D([], [], color=GREEN, label="expert bytes of a layer on a rank, over tokens"),
            Line2D([], [], color=how.theme.muted, marker="o", markeredgecolor=how.theme.ink, linestyle="",
                   label="this estimate"),
        ],
    )  # fmt: skip
