"""What is asked of a fleet: traffic, and the latencies it has to keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError, check_number
from roofline.serving.lengths import Lengths, as_lengths, observed
from roofline.serving.prefix import hit_curve
from roofline.serving.queueing import Spread
from roofline.simulation.trace import Trace, read_trace

SECONDS_PER_DAY = 86400.0
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests per second of all users together, how long they are, and how much of a prompt is cached already."""

    rate_per_s: float
    isl: Lengths
    osl: Lengths
    hit_rate: float = 0.0  # share of prompt tokens found in the prefix cache
    arrivals_cv2: float = 1.0  # squared variation of the gaps between arrivals: Poisson 1
    source: str = "as given"

    @property
    def cached(self) -> float:
        """Prompt tokens of a mean request that are cached already."""
        return float(min(self.hit_rate * self.isl.mean, self.isl.mean - 1.0))

    @property
    def longest(self) -> float:
        """Tokens of the longest request."""
        return _longest(self.isl) + _longest(self.osl)

    @property
    def tokens_per_s(self) -> float:
        """Input and output tokens per second."""
        return float(self.rate_per_s * (self.isl.mean + self.osl.mean))

    def at_rate(self, rate_per_s: float) -> Traffic:
        """The same requests at another rate."""
        return replace(self, rate_per_s=rate_per_s)

    def __str__(self) -> str:
        rate = f"{self.rate_per_s:,.4g} requests/s of {_text(self.isl)} in, {_text(self.osl)} out"
        return rate + (f", {self.hit_rate:.0%} of the prompt cached" if self.hit_rate else "")


def milliseconds(value_s: float) -> str:
    """Seconds as milliseconds with four digits, thousands with commas.

    >>> milliseconds(40.0), milliseconds(0.4342)
    ('40,000 ms', '434.2 ms')
    """
    return f"{value_s * 1e3:,.0f} ms" if value_s >= 1.0 else f"{value_s * 1e3:.4g} ms"


def _longest(lengths: Lengths) -> float:
    """The longest of a distribution; of a plain number the number."""
    return float(lengths.longest if lengths.cv > 0 else lengths.mean)


def _text(lengths: Lengths) -> str:
    spread = "" if _longest(lengths) == lengths.mean else f" (up to {float(lengths.longest):,.0f})"
    return f"{float(lengths.mean):,.0f}{spread}"


def traffic(
    *,
    rate_per_s: float | None = None,
    tokens_per_day: float | None = None,
    isl: float | Lengths | None = None,
    osl: float | Lengths | None = None,
    hit_rate: float | None = None,
    peak: float = 1.0,
    arrivals_cv2: float | None = None,
    trace: str | Path | Trace | None = None,
) -> Traffic:
    """The traffic that these words describe.

    Formula:  rate = tokens per day / 86400 / (isl + osl); times `peak`, the busiest hour over the mean
    Args:     rate_per_s [1/s] or tokens_per_day [input and output tokens a day], or a trace with arrival times; isl,
              osl [tokens] numbers or `Lengths`; hit_rate [-]; peak [-]; arrivals_cv2 [-]; a value beside a trace
              replaces what the trace says
    Returns:  Traffic
    Assumes:  of a trace with prefix block ids: a prefix cache that forgets nothing (an upper bound of the hit rate)

    >>> round(traffic(tokens_per_day=1e12, isl=9000, osl=1000).rate_per_s)
    1157
    """
    source, cv2, hits = "as given", 1.0, 0.0
    if trace is not None:
        if not isinstance(trace, str | Path | Trace):
            raise InputError(f"trace: {trace!r:.60} is neither a path nor a Trace")
        found = trace if isinstance(trace, Trace) else read_trace(trace)
        isl = observed(found.isl) if isl is None else isl
        osl = observed(found.osl) if osl is None else osl
        source = f"trace {found.name}, {len(found):,} requests"
        hits = _trace_hits(found)
        if found.arrived_s is not None:
            if tokens_per_day is None and rate_per_s is None:
                rate_per_s = found.rate_req_per_s
            gaps = np.diff(found.arrived_s)
            cv2 = float(gaps.var() / gaps.mean() ** 2) if gaps.size and gaps.mean() > 0 else 1.0
    prompts, outputs = (_lengths(name, v) for name, v in (("isl", isl), ("osl", osl)))
    if (rate_per_s is None) == (tokens_per_day is None):
        raise InputError("give the load as rate_per_s (requests per second) or tokens_per_day, one of them")
    if rate_per_s is None:
        day = check_number("tokens_per_day", tokens_per_day, low=1e-3, high=1e18)
        rate_per_s = day / SECONDS_PER_DAY / float(prompts.mean + outputs.mean)
    rate = check_number("rate_per_s", rate_per_s, low=1e-9, high=1e12) * check_number("peak", peak, low=1.0, high=1e4)
    hit = check_number("hit_rate", hits if hit_rate is None else hit_rate, low=0.0, high=1.0)
    gaps2 = check_number("arrivals_cv2", cv2 if arrivals_cv2 is None else arrivals_cv2, low=0.0, high=1e4)
    return Traffic(float(rate), prompts, outputs, float(hit), float(gaps2), source)


def _lengths(name: str, value: float | Lengths | None) -> Lengths:
    if value is None:
        raise InputError(f"{name}: how long are requests? give tokens, e.g. {name}=2000, or a trace")
    lengths = as_lengths(value)
    check_number(name, lengths.mean, low=1, high=1e9)
    return lengths


def _trace_hits(trace: Trace) -> float:
    if trace.cached is not None:
        return float(trace.cached.sum() / trace.isl.sum())
    if trace.block_ids is not None:
        return float(hit_curve(trace.block_ids).rate(np.inf))
    return 0.0


@dataclass(frozen=True, slots=True)
class Slo:
    """Latencies that a share of the requests has to keep. None: no limit.

    `ttft_at`, `tpot_at`, `e2e_at` are those shares (0.9: the 90th percentile; None: the mean). `goodput` is the share
    of requests that must keep all limits at once.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    ttft_at: float | None = 0.9
    tpot_at: float | None = 0.9
    e2e_at: float | None = 0.9
    goodput: float | None = None

    def __post_init__(self):
        for name in LATENCIES:
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), low=1e-9, high=1e9)
            share = getattr(self, f"{name[:-2]}_at")
            if share is not None:
                check_number(f"{name[:-2]}_at", share, low=0.01, high=0.999)
        if self.goodput is not None:
            check_number("goodput", self.goodput, low=0.01, high=0.99)
            if not self.limits:
                raise InputError("goodput: a share of requests that keep limits needs one: ttft_s, tpot_s or e2e_s")

    @property
    def limits(self) -> dict[str, float]:
        """The latencies that are limited."""
        return {name: value for name in LATENCIES if (value := getattr(self, name)) is not None}

    def share_of(self, latency: str) -> float | None:
        """The percentile, as a share, at which a latency is limited."""
        return getattr(self, f"{latency[:-2]}_at")

    def name_of(self, latency: str) -> str:
        """A latency with its percentile, as people write it: 'TTFT p90'."""
        share = self.share_of(latency)
        return f"{latency[:-2].upper()} " + ("mean" if share is None else f"p{100 * share:g}")

    def scaled(self, factors: dict[str, float]) -> Slo:
        """The same objectives with limits times a factor each."""
        return replace(self, **{name: value * factors.get(name, 1.0) for name, value in self.limits.items()})

    def without(self, latency: str) -> Slo:
        """The same objectives without one limit."""
        rest = replace(self, goodput=None) if set(self.limits) == {latency} else self
        return replace(rest, **{latency: None})

    def __str__(self) -> str:
        told = [f"{self.name_of(n)} <= {milliseconds(v)}" for n, v in self.limits.items()]
        told += [f"{self.goodput:.0%} of requests keep all"] if self.goodput else []
        return ", ".join(told) or "no latency objective"


def at_share(spread: Spread, share: float | None) -> Array:
    """A latency at a percentile, or its mean."""
    return spread.mean if share is None else spread.at(share)


def keeps_all(spreads: dict[str, Spread], slo: Slo) -> Array:
    """Share of the requests that keep every limit, at least.

    Formula:  1 - sum of the shares that miss one (Boole's inequality)
    Returns:  [-]; a lower bound, exact where misses exclude each other
    """
    missed: Any = 0.0
    for name, limit in slo.limits.items():
        missed = missed + 1.0 - spreads[name].within(limit)
    return np.maximum(1.0 - missed, 0.0)
