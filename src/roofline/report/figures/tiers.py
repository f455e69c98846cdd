"""A cached prefix: fetching its KV from somewhere against computing it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullFormatter

from roofline.display import number, seconds
from roofline.errors import InputError
from roofline.estimates import Estimate
from roofline.memory.paging import sequence_bytes
from roofline.report.style import DASHES, SERIES, VERMILLION, Look, Picture, counted, legend, logarithmic, title
from roofline.serving.tiers import Tier, fetch_s
from roofline.units import format as quantity

TOKENS = np.unique(np.round(np.geomspace(64.0, 262_144.0, 121) / 64.0)) * 64.0  # whole blocks: no stairs
NVME_BYTES_PER_S = 7.88e9  # PCIe 4.0 x4 after line encoding: what one drive can give at best


@dataclass(frozen=True, slots=True)
class TierBreakEven:
    """Seconds over the length of the prefix; per GPU of the replica, each fetching its own part."""

    about: str
    tokens: np.ndarray
    recompute_s: np.ndarray
    bytes_per_gpu: np.ndarray
    tiers: tuple[Tier, ...]
    here: float  # tokens of the estimate's prompt

    def fetch_s(self, tier: Tier) -> np.ndarray:
        """Seconds to bring the prefix from a tier."""
        return fetch_s(1.0, self.bytes_per_gpu, tier.bandwidth_bytes_per_s, tier.latency_s)

    def break_even_tokens(self, tier: Tier) -> float | None:
        """Shortest prefix from which fetching is always faster; None where it never is."""
        slower = np.flatnonzero(self.fetch_s(tier) >= self.recompute_s)
        if slower.size == 0:
            return float(self.tokens[0])
        return None if slower[-1] + 1 == self.tokens.size else float(self.tokens[slower[-1] + 1])

    @property
    def break_even_bytes_per_s(self) -> np.ndarray:
        """Bandwidth per GPU at which both take equally long, without latency."""
        return self.bytes_per_gpu / self.recompute_s


def of(e: Estimate, tiers: Iterable[Tier] = ()) -> TierBreakEven:
    """Fetching against recomputing for an estimate's deployment.

    Args:     tiers: places to fetch from, as one GPU sees them; none: the device's host link, its network, and one NVMe
              drive per GPU, without latency
    """
    if not isinstance(e, Estimate):
        raise InputError(f"the break-even of tiers is drawn of an Estimate, not of a {type(e).__name__}")
    d, a = e.deployment, e.deployment.accelerator
    chosen = tuple(tiers)
    if not chosen:
        found = [("one NVMe drive", NVME_BYTES_PER_S)]
        if a.scale_out_bytes_per_s:
            found.append(("another host", a.scale_out_bytes_per_s))
        if a.host_bytes_per_s:
            found.append(("host memory", a.host_bytes_per_s))
        chosen = tuple(Tier(name, np.inf, rate) for name, rate in sorted(found, key=lambda x: -x[1]))
    profile = d.engine.memory
    held = [
        sequence_bytes(list(s.kinds), TOKENS, profile.max_num_batched_tokens, profile)
        for s in d.footprint(e.isl + e.osl).stages
    ]
    step = d.prefill_step(1.0, TOKENS)
    recompute = np.broadcast_to(np.asarray(step.total_s, float), TOKENS.shape)
    return TierBreakEven(str(d), TOKENS, recompute, np.max(held, axis=0), chosen, e.isl)


def caption(t: TierBreakEven) -> str:
    """What the figure says."""
    at = float(np.interp(t.here, t.tokens, t.break_even_bytes_per_s))
    told = []
    for tier in t.tiers:
        n = t.break_even_tokens(tier)
        if n is None:
            told.append(f"{tier.name}: never")
        else:
            told.append(f"{tier.name}: " + ("any length" if n <= t.tokens[0] else f"from {number(n)} tokens"))
    return (
        f"Fetching is faster than computing again where a GPU gets more than {quantity(at, 'B/s', 3)} "
        f"(prefix of {number(t.here)} tokens). Worth it: {'; '.join(told)}."
    )


def draw(figure: Picture, how: Look, t: TierBreakEven) -> None:
    """Draw it."""
    title(figure, how, "Fetch a cached prefix, or compute it again?", t.about)
    axes = figure.subplots()
    curves = [t.fetch_s(tier) for tier in t.tiers]
    low = min(float(c.min()) for c in (*curves, t.recompute_s))
    high = max(float(c.max()) for c in (*curves, t.recompute_s))
    logarithmic(axes, (float(t.tokens[0]), float(t.tokens[-1])), (low / 1.5, high * 1.5))
    axes.plot(t.tokens, t.recompute_s, color=VERMILLION, linewidth=0.24 * how.size.text, zorder=4)
    axes.fill_between(t.tokens, low / 2, t.recompute_s, color=VERMILLION, alpha=0.07, linewidth=0, zorder=0.5)
    handles = [Line2D([], [], color=VERMILLION, linewidth=3, label="compute again, alone; below it fetching wins")]
    for i, (tier, curve) in enumerate(zip(t.tiers, curves)):
        axes.plot(t.tokens, curve, color=SERIES[i], linestyle=DASHES[i % len(DASHES)], zorder=3)
        name = f"fetch from {tier.name}, {quantity(tier.bandwidth_bytes_per_s, 'B/s', 3)}"
        name += f" + {seconds(tier.latency_s)}" if tier.latency_s else ""
        handles.append(Line2D([], [], color=SERIES[i], linestyle=DASHES[i % len(DASHES)], label=name))
        n = t.break_even_tokens(tier)
        if n is not None and n > t.tokens[0]:
            axes.plot([n], [np.interp(n, t.tokens, curve)], marker="o", color=SERIES[i], zorder=5,
                      markeredgecolor=how.theme.ink, markersize=0.6 * how.size.text)  # fmt: skip
    axes.axvline(t.here, color=how.theme.ink, linewidth=1.0, linestyle=(0, (1, 2)))
    handles.append(Line2D([], [], color=how.theme.ink, linewidth=1.0, linestyle=(0, (1, 2)), label="this prompt"))
    counted(axes.xaxis)
    axes.yaxis.set_major_formatter(EngFormatter(unit="s", sep=" "))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("Prefix [tokens]")
    axes.set_ylabel("Time")
    legend(figure, how, handles)
