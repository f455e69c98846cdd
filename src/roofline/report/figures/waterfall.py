"""A step from the speed of light to the prediction: which seconds are physics and which are loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator

from roofline.display import seconds
from roofline.errors import InputError
from roofline.estimates import Estimate
from roofline.ops import NETWORK
from roofline.report.style import PART_COLOURS, Look, Picture, settle, title
from roofline.step import StepTime

STEPS = ("decode", "prefill")
LIGHT_SPEED, PREDICTED = "speed of light", "predicted"
# term -> colour, in the order of the bars
TERMS = {
    "weights": PART_COLOURS["weights"],
    "KV cache": PART_COLOURS["kv"],
    "activations": PART_COLOURS["activations"],
    "compute": PART_COLOURS["compute"],
    LIGHT_SPEED: "",
    "kernels below peak": PART_COLOURS["inefficiency"],
    "launch and gaps": PART_COLOURS["overhead"],
    "network": PART_COLOURS["network"],
    "overlap": PART_COLOURS["compute"],
    "pipeline wait": PART_COLOURS["network"],
    "scheduler": PART_COLOURS["scheduler"],
    PREDICTED: "",
}
ALWAYS = ("weights", "KV cache", "kernels below peak", "launch and gaps", "network", "scheduler")


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Seconds of each term; those before `speed of light` add up to it, all of them to `total_s`."""

    about: str
    step: str
    answer: str  # what the total is called: TPOT, TTFT
    terms_s: dict[str, float]
    total_s: float
    low_s: float
    high_s: float

    @property
    def light_s(self) -> float:
        """Bytes and FLOPs of one device at datasheet peaks."""
        return sum(self.terms_s[name] for name in ("weights", "KV cache", "activations", "compute"))


def of(e: Estimate, step: str = "decode") -> Waterfall:
    """The waterfall of an estimate's decode step up to its TPOT, or of its prefill up to its TTFT."""
    if not isinstance(e, Estimate):
        raise InputError(f"the waterfall is drawn of an Estimate, not of a {type(e).__name__}")
    if step not in STEPS:
        raise InputError(f"step: '{step}' is not one of {', '.join(STEPS)}")
    answer = e.tpot_s if step == "decode" else e.ttft_s
    terms = step_terms(e.decode if step == "decode" else e.prefill)
    terms["scheduler"] = answer.value - sum(terms.values())
    name = "TPOT" if step == "decode" else "TTFT"
    return Waterfall(str(e.deployment), step, name, terms, answer.value, answer.low, answer.high)


def step_terms(step: StepTime) -> dict[str, float]:
    """Seconds of a scalar step by why they are spent; they add up to its total.

    Formula:  speed of light: max(FLOPs/peak, bytes/bandwidth) of each op, a memory-bound op's shared by its bytes;
              launch: what the kernel model holds to be fixed, as far as it is above that, and host gaps;
              kernels below peak: the rest; network: all of every collective;
              overlap or pipeline wait: what the schedule takes off or adds
    Source:   derivation
    """
    terms = dict.fromkeys((n for n in TERMS if n not in (LIGHT_SPEED, PREDICTED)), 0.0)
    for t in step.times:
        count = float(t.op.count)
        compute, memory, total = float(t.compute_s), float(t.memory_s), float(t.total_s)
        if float(t.network_s) > 0 or t.op.kind in NETWORK:
            terms["network"] += count * total
            continue
        floor = max(compute, memory)
        if memory >= compute:
            moved = float(t.op.bytes) or 1.0
            terms["weights"] += count * memory * float(t.op.weight_bytes) / moved
            terms["KV cache"] += count * memory * float(t.op.kv_bytes) / moved
            terms["activations"] += count * memory * float(t.op.activation_bytes) / moved
        else:
            terms["compute"] += count * compute
        launch = min(float(t.launch_s), total - floor)
        terms["launch and gaps"] += count * launch
        terms["kernels below peak"] += count * (total - floor - launch)
    terms["launch and gaps"] += float(step.host_gap_s)
    change = float(step.total_s) - sum(terms.values())
    if abs(change) > 1e-9 * float(step.total_s):
        terms["overlap" if change < 0 else "pipeline wait"] = change
    return terms


def caption(w: Waterfall) -> str:
    """What the figure says."""
    losses = {n: s for n, s in w.terms_s.items() if n not in ("weights", "KV cache", "activations", "compute")}
    worst = max(losses, key=losses.get)
    return (
        f"{w.answer} {seconds(w.total_s)}: bytes and FLOPs at datasheet peaks take {seconds(w.light_s)} "
        f"({w.light_s / w.total_s:.0%}); the largest loss is {worst}, {seconds(losses[worst])}."
    )


def draw(figure: Picture, how: Look, w: Waterfall) -> None:
    """Draw it: bars from top to bottom, each starting where the one above ends."""
    head = f"Where a {w.step} step's time goes" if w.step == "decode" else "Where the time to the first token goes"
    title(figure, how, head, w.about)
    axes = figure.subplots()
    rows: list[tuple[str, float, float, str]] = []  # name, left, width, colour
    at = 0.0
    for name, colour in TERMS.items():
        if name in (LIGHT_SPEED, PREDICTED):
            rows.append((name, 0.0, w.light_s if name == LIGHT_SPEED else w.total_s, ""))
        elif name in ALWAYS or abs(w.terms_s[name]) > 0.002 * w.total_s:
            rows.append((name, at, w.terms_s[name], colour))
            at += w.terms_s[name]
    for y, (name, left, width, colour) in enumerate(rows):
        whole = not colour
        axes.barh(y, width, left=left, height=0.62, color=how.theme.ink if whole else colour,
                  edgecolor=how.theme.muted, linewidth=0.0 if whole else 0.5, zorder=3)  # fmt: skip
        if y + 1 < len(rows) and not (whole and name == PREDICTED):
            end = left + width
            axes.plot([end, end], [y - 0.31, y + 1.31], color=how.theme.muted, linewidth=0.8, zorder=2)
    last = len(rows) - 1
    axes.errorbar(w.total_s, last, xerr=[[w.total_s - w.low_s], [w.high_s - w.total_s]], color=how.theme.muted,
                  capsize=0.35 * how.size.text, linewidth=1.6, zorder=5)  # fmt: skip
    axes.set_yticks(range(len(rows)), [r[0] for r in rows])
    for label, (name, *_) in zip(axes.get_yticklabels(), rows):
        label.set_fontweight("bold" if name in (LIGHT_SPEED, PREDICTED) else "normal")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    right = max(w.high_s, max(left + max(width, 0.0) for _, left, width, _ in rows))
    axes.set_xlim(0.0, right * (1.42 if how.narrow else 1.2))
    axes.xaxis.set_major_locator(MaxNLocator(4 if how.narrow else 8))
    axes.xaxis.set_major_formatter(EngFormatter(unit="s", sep=" "))
    band = f"80 %: {seconds(w.low_s)} to {seconds(w.high_s)}"
    axes.set_xlabel(f"{'Time' if how.narrow else f'Time of a {w.step} step'} up to {w.answer}; {band}")
    settle(figure)
    for y, (name, left, width, colour) in enumerate(rows):
        whole = not colour
        end = w.high_s if name == PREDICTED else max(left + width, left)
        text = f"{'' if whole or width < 0 else '+'}{seconds(width) if abs(width) > 1e-12 else '0 s'}"
        if name != PREDICTED:
            text += f"  {width / w.total_s:.0%}"
        axes.annotate(text, (end, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=how.small,
                      fontweight="bold" if whole else "normal", zorder=6,
                      bbox={"facecolor": how.theme.paper, "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
                      ).set_in_layout(False)  # fmt: skip
    assert np.isclose(at, w.total_s, rtol=1e-6, atol=0.004 * w.total_s), "the terms add up to the total"
