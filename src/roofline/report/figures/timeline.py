"""The life of requests in the simulator: front end, queue, KV look-up, prefill chunks, emission, decode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator

from roofline.display import seconds
from roofline.errors import InputError, check_number
from roofline.estimates import Estimate
from roofline.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, YELLOW, Look, Picture, legend, title
from roofline.simulation import Result, Span, Trace, closed_loop, poisson, simulate
from roofline.simulation.deployed import deployed

KINDS = {
    "front_end": ("front end", GREY),
    "queue": ("queue", YELLOW),
    "fetch_or_wait": ("KV look-up and wait", SKY),
    "wait": ("waits between chunks", ORANGE),
    "prefill": ("prefill, chunk by chunk", BLUE),
    "emit": ("first token on its way", PURPLE),
    "transfer_and_seat": ("KV transfer and seat", PURPLE),
    "decode": ("decode", GREEN),
}
REQUESTS = 400  # simulated at most, so that what is shown is not the start


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans of some requests, on a common clock that starts with the first of them."""

    about: str
    labels: tuple[str, ...]
    spans: tuple[tuple[Span, ...], ...]
    first_s: tuple[float, ...]  # when the client saw the first token


def of(
    subject: Estimate | Result, requests: int = 10, first: int | None = None, trace: Trace | None = None
) -> Timeline:
    """Lives of `requests` consecutive requests, in order of sending.

    Args:     subject: a Result of `simulate(..., timeline=True)`, or an Estimate, whose load is then simulated;
              first: index of the first request; None: one from the middle; trace: what to simulate instead of the
              estimate's own load
    """
    check_number("requests", requests, low=1, high=60, integer=True)
    if isinstance(subject, Estimate):
        about, subject = str(subject.deployment), simulated(subject, trace)
    elif isinstance(subject, Result):
        about = f"{subject.isl.size:,} requests simulated"
    else:
        raise InputError(f"the timeline is drawn of an Estimate or a simulation, not of a {type(subject).__name__}")
    done = np.flatnonzero(subject.done)
    order = done[np.argsort(subject.sent_s[done], kind="stable")]
    if order.size == 0:
        raise InputError("no request of the simulation has finished: there is nothing to draw")
    start = max(min(order.size // 2, order.size - requests), 0) if first is None else int(np.searchsorted(order, first))
    chosen = order[start : start + requests]
    if chosen.size == 0:
        raise InputError(f"first: {first}; the simulation has requests 0 to {int(order[-1])}")
    zero = float(subject.sent_s[chosen[0]])
    lives = [
        tuple(Span(s.kind, s.start_s - zero, s.end_s - zero, s.tokens, s.replica) for s in subject.life(int(i)))
        for i in chosen
    ]
    labels = tuple(f"{int(i)}: {int(subject.isl[i]):,} in, {int(subject.osl[i]):,} out" for i in chosen)
    return Timeline(about, labels, tuple(lives), tuple(float(subject.first_s[i]) - zero for i in chosen))


def simulated(e: Estimate, trace: Trace | None = None) -> Result:
    """The load of an estimate, run through the simulator: clients that ask again, or Poisson arrivals."""
    if trace is None:
        isl, osl = (int(max(round(x), 1)) for x in (e.isl, e.osl))
        if e.load == "open loop":
            trace = poisson(float(e.state.requests_per_s), REQUESTS, isl, osl, cached=int(e.cached) or None)
        else:
            many = int(max(round(e.batch), 1))
            trace = closed_loop(many, isl, osl, requests=int(np.clip(6 * many, 12, max(REQUESTS, 2 * many))),
                                cached=int(e.cached) or None)  # fmt: skip
    return simulate(trace, deployed(e.deployment, trace), timeline=True)


def caption(t: Timeline) -> str:
    """What the figure says."""
    ttft = [first - life[0].start_s for first, life in zip(t.first_s, t.spans)]
    total: dict[str, float] = {}
    for life, first in zip(t.spans, t.first_s):
        for s in life:
            if s.start_s < first:
                total[s.kind] = total.get(s.kind, 0.0) + s.seconds
    worst = max(total, key=total.get)
    return (
        f"{len(t.spans)} consecutive requests: mean TTFT {seconds(float(np.mean(ttft)))}, most of it "
        f"{KINDS[worst][0]} ({total[worst] / max(sum(ttft), 1e-12):.0%}); longest {seconds(max(ttft))}."
    )


def draw(figure: Picture, how: Look, t: Timeline) -> None:
    """Draw it: the time to the first token on each request's own clock, and whole lives on a common one."""
    title(figure, how, "The life of a request", t.about)
    if how.narrow:
        near, far = figure.subplots(2, 1)
    else:
        near, far = figure.subplots(1, 2, sharey=True, width_ratios=(1.15, 1.0))
    waits = [first - life[0].start_s for first, life in zip(t.first_s, t.spans)]
    seen: set[str] = set()
    for y, life in enumerate(t.spans):
        for axes, zero in ((near, life[0].start_s), (far, 0.0)):
            for s in life:
                axes.barh(y, s.seconds, left=s.start_s - zero, height=0.66, color=KINDS[s.kind][1],
                          edgecolor=how.theme.paper, linewidth=0.5, zorder=3)  # fmt: skip
                seen.add(s.kind)
            axes.plot([t.first_s[y] - zero] * 2, [y - 0.42, y + 0.42], color=how.theme.ink, linewidth=1.8, zorder=4)
    near.set_xlim(0.0, max(waits) * 1.12)
    far.set_xlim(min(life[0].start_s for life in t.spans), max(life[-1].end_s for life in t.spans) * 1.01)
    for axes, text in ((near, "Since it was sent, to the first token"), (far, "Since the first was sent")):
        axes.set_yticks(range(len(t.labels)), [x.split(":")[0] if how.narrow else x for x in t.labels])
        axes.set_ylim(len(t.labels) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(unit="s", sep=" "))
        axes.set_xlabel(text)
    near.set_ylabel("Request")
    if how.narrow:
        far.set_ylabel("Request")
    handles = [Patch(facecolor=colour, label=name) for kind, (name, colour) in KINDS.items() if kind in seen]
    handles.append(Line2D([], [], color=how.theme.ink, linewidth=1.8, label="first token received"))
    legend(figure, how, handles)
