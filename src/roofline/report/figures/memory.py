"""The memory of each GPU as a stack that adds up to what is visible: weights, KV pool, and all that is neither."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from matplotlib.patches import Patch

from roofline.deployment import Deployment
from roofline.display import number
from roofline.errors import InfeasibleError, InputError
from roofline.estimates import Estimate
from roofline.memory.footprint import ROWS
from roofline.report.style import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Look,
    Picture,
    legend,
    settle,
    text_on,
    title,
)  # fmt: skip

GIB = 2.0**30
# row -> (what people call it, colour), in the order of the stack
NAMES = {
    "weights": ("weights", BLUE),
    "activation": ("activations", SKY),
    "non_torch": ("outside the allocator", PURPLE),
    "graphs": ("CUDA graphs", YELLOW),
    "context": ("CUDA context", GREY),
    "kv_pool": ("KV pool", ORANGE),
    "rest": ("left free", ""),
}
assert set(NAMES) == set(ROWS), "every row of the memory table is a part of the stack"
MOST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Stack:
    """One GPU: bytes by row; they add up to `visible_bytes` unless there is no room for a KV pool."""

    label: str
    rows_bytes: dict[str, float]
    visible_bytes: float
    remark: str
    asked: bool  # whether it is the estimate's own

    @property
    def missing_bytes(self) -> float:
        """What is wanted beyond the visible memory."""
        return max(sum(max(v, 0.0) for n, v in self.rows_bytes.items() if n != "rest") - self.visible_bytes, 0.0)


@dataclass(frozen=True, slots=True)
class Memory:
    """Stacks to compare."""

    about: str
    stacks: tuple[Stack, ...]


def of(e: Estimate, layouts: bool | None = None) -> Memory:
    """The memory table of an estimate: a stack for each pipeline stage.

    Args:     layouts: beside it, the same model over other numbers of tensor-parallel ranks, without those that would
              need twice the memory; None: where there is only one stage
    """
    if not isinstance(e, Estimate):
        raise InputError(f"the memory is drawn of an Estimate, not of a {type(e).__name__}")
    d, length = e.deployment, e.isl + e.osl
    if d.plan.pp > 1 and not layouts:
        return Memory(str(d), tuple(_stacks(d, length, True)[:MOST_ROWS]))
    ranks = sorted({d.plan.tp, *(t for t in (1, 2, 4, 8) if t <= max(d.accelerator.domain, d.plan.tp))})
    found = []
    for tp in ranks if layouts is not False else [d.plan.tp]:
        try:
            plan = d.plan if tp == d.plan.tp else replace(d.plan, tp=tp, ep=tp * d.plan.dp if d.plan.ep > 1 else 1)
            found += _stacks(d.with_(plan=plan), length, tp == d.plan.tp)
        except InfeasibleError:  # it cannot be cut so
            continue
    return Memory(str(d), tuple(s for s in found if s.asked or s.missing_bytes < s.visible_bytes))


def _stacks(d: Deployment, length: float, asked: bool) -> list[Stack]:
    table = d.footprint(length)
    fits = bool(table.fits)
    held = float(table.max_concurrency) * d.plan.dp
    remark = f"{number(np.floor(held))} x {number(length)} tokens" if fits else "does not fit"
    plan = "1 GPU" if d.plan.gpus == 1 else str(d.plan)
    return [
        Stack(
            plan if len(table.stages) == 1 else f"stage {s.stage}",
            {name: float(np.asarray(v)) for name, v in s.rows().items()}, float(s.visible), remark, asked,
        )
        for s in table.stages
    ]  # fmt: skip


def caption(m: Memory) -> str:
    """What the figure says."""
    mine = next((s for s in m.stacks if s.asked), m.stacks[0])
    pool, weights = mine.rows_bytes["kv_pool"] / GIB, mine.rows_bytes["weights"] / GIB
    visible = mine.visible_bytes / GIB
    text = f"{mine.label}: of {visible:.1f} GiB visible on each GPU, weights take {weights:.1f} GiB"
    return text + (f" and {pool:.1f} GiB are left for KV ({mine.remark})." if pool > 0 else "; nothing is left for KV.")


def draw(figure: Picture, how: Look, m: Memory) -> None:
    """Draw it."""
    title(figure, how, "Memory of each GPU", m.about)
    axes = figure.subplots()
    widest = max(max(s.visible_bytes, s.visible_bytes + s.missing_bytes) for s in m.stacks) / GIB
    room = 1.02 if how.narrow else 1.3
    texts = []
    for y, stack in enumerate(m.stacks):
        at = 0.0
        for name, (_, colour) in NAMES.items():
            size = max(stack.rows_bytes[name], 0.0) / GIB
            if name == "rest" and stack.missing_bytes > 0:
                size = 0.0
            axes.barh(y, size, left=at, height=0.6, color=colour or how.theme.paper, edgecolor=how.theme.paper if colour
                      else how.theme.muted, linewidth=0.8, hatch=None if colour else "....", zorder=3)  # fmt: skip
            shown = min(at + size, stack.visible_bytes / GIB) - at if at * GIB < stack.visible_bytes else size
            if shown > widest * (0.1 if how.narrow else 0.055) and colour:
                texts.append((at + shown / 2, y, f"{size:.1f}", text_on(colour)))
            at += size
        visible = stack.visible_bytes / GIB
        if stack.missing_bytes > 0:
            axes.barh(y, at - visible, left=visible, height=0.6, color="none", edgecolor=VERMILLION, hatch="xxxx",
                      linewidth=1.4, zorder=4)  # fmt: skip
        reach = 0.32 if how.narrow else 0.42
        axes.plot([visible] * 2, [y - reach, y + reach], color=how.theme.ink, linewidth=2.2, zorder=5)
    axes.set_yticks(range(len(m.stacks)), [s.label for s in m.stacks])
    for label, stack in zip(axes.get_yticklabels(), m.stacks):
        label.set_fontweight("bold" if stack.asked and len(m.stacks) > 1 else "normal")
    axes.set_ylim(len(m.stacks) - 0.5, -0.55 if not how.narrow else -0.75)
    axes.set_xlim(0.0, widest * room)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("Memory of a GPU [GiB]")
    handles = [
        Patch(facecolor=colour or how.theme.paper, edgecolor=how.theme.muted, linewidth=0.6,
              hatch=None if colour else "....", label=name)
        for row, (name, colour) in NAMES.items()
        if row in ("weights", "kv_pool") or any(s.rows_bytes[row] > 0.002 * s.visible_bytes for s in m.stacks)
    ]  # fmt: skip
    if any(s.missing_bytes > 0 for s in m.stacks):
        handles.append(Patch(facecolor="none", edgecolor=VERMILLION, hatch="xxxx", label="more than there is"))
    legend(figure, how, handles)
    settle(figure)
    for x, y, text, colour in texts:
        axes.annotate(text, (x, y), ha="center", va="center", fontsize=how.small, color=colour, zorder=6)
    for y, stack in enumerate(m.stacks):
        visible = stack.visible_bytes / GIB
        text, at = f"{visible:.1f} GiB visible\n{stack.remark}", (visible + stack.missing_bytes / GIB, y)
        place = {"xytext": (8, 0), "va": "center", "linespacing": 1.2}
        colour = VERMILLION if stack.remark == "does not fit" else how.theme.ink
        if how.narrow:
            text, at = f"{stack.remark} in {visible:.1f} GiB", (0.0, y - 0.33)
            place, colour = {"xytext": (2, 2), "va": "bottom"}, how.theme.muted
        note = axes.annotate(text, at, textcoords="offset points", fontsize=0.97 * how.small, color=colour, **place)
        note.set_in_layout(False)
