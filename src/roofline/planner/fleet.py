"""How many replicas of what carry a load for the least money: whole numbers, at most two kinds, with spares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roofline.planner.demand import Slo, Traffic
from roofline.planner.offers import Offer, after_prefill_s
from roofline.serving.disaggregated import hand_over_obstacle
from roofline.serving.queueing import gamma_quantile

SECOND_MOST = 16  # replicas of the second kind in a mixed fleet


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas of one or two deployments, or a prefill and a decode pool."""

    members: tuple[tuple[Offer, int], ...]
    usd_per_h: float
    capacity_per_s: float  # requests per second that keep the objective while `spares` replicas are down
    spares: int = 0
    capacities: tuple[float, ...] = ()  # of one replica of each kind

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return sum(n * o.deployment.plan.gpus for o, n in self.members)

    @property
    def disaggregated(self) -> bool:
        """Whether prompts and decodes run on pools of their own."""
        return any(o.role != "replica" for o, _ in self.members)

    @property
    def hardware(self) -> frozenset[str]:
        """Names of the devices in it."""
        return frozenset(o.deployment.accelerator.name for o, _ in self.members)

    def shares(self) -> tuple[float, ...]:
        """Part of the requests that each replica of each kind gets: in proportion to its capacity, spares included."""
        if self.disaggregated:
            return tuple(1.0 / n for _, n in self.members)
        total = sum(c * n for c, (_, n) in zip(self.capacities, self.members))
        return tuple(c / total for c in self.capacities)

    def __str__(self) -> str:
        parts = []
        for o, n in self.members:
            role = "" if o.role == "replica" else f" {o.role}"
            parts.append(f"{n} x{role} [{o.deployment}]")
        return " + ".join(parts)


def replicas_needed(load: float, capacity: float, spares: int = 0) -> int:
    """Whole replicas that carry a load while `spares` of them are down.

    Formula:  ceil(load / capacity) + spares
    Args:     load, capacity of one [1/s]
    Source:   definition of N + 1

    >>> replicas_needed(10.0, 4.0, 1)
    4
    """
    return math.ceil(load / capacity - 1e-9) + spares


Capacity = Callable[[Offer, Slo], float]


def uniform(offers: Sequence[Offer], load: float, slo: Slo, spares: int, capacity: Capacity) -> list[Fleet]:
    """The fleet of like replicas that each offer comes to, cheapest first; offers that keep nothing are left out."""
    out = []
    for o in offers:
        each = capacity(o, slo)
        if each > 0:
            n = replicas_needed(load, each, spares)
            out.append(Fleet(((o, n),), n * o.usd_per_h_replica, each * (n - spares), spares, (each,)))
    return sorted(out, key=order)


def order(fleet: Fleet) -> tuple[float, int, str]:
    """Cheapest first; of equal cost the fewest devices, then by name."""
    return fleet.usd_per_h, fleet.gpus, str(fleet)


def mixed(fleets: Sequence[Fleet], load: float, spares: int) -> Fleet | None:
    """The cheapest fleet of two kinds of replica, out of the uniform fleets' offers; None where nothing is gained.

    Formula:  min n1 c1 + n2 c2, n2 = 1 .. 16, with (n1 - (s - k)) x1 + (n2 - k) x2 >= load for every k of the s spares
              that may be missing of the second kind
    Args:     fleets: uniform ones, for their offers and capacities; load [1/s]
    Returns:  Fleet
    Assumes:  requests are dealt in proportion to capacity; any `spares` replicas may be down
    Source:   integer covering, enumerated; a superset of offers, a lower load or a lower price never makes it dearer
    """
    pool = [(f.members[0][0], f.capacities[0]) for f in fleets]
    costs = np.array([o.usd_per_h_replica for o, _ in pool])
    able = np.array([x for _, x in pool])
    if len(pool) < 2:
        return None
    seconds = np.arange(1, SECOND_MOST + 1)
    # [first, second, how many of the second]
    x1, x2, c1, c2 = able[:, None, None], able[None, :, None], costs[:, None, None], costs[None, :, None]
    first = np.ones(np.broadcast_shapes(x1.shape, x2.shape, seconds.shape))
    for missing in (0, np.minimum(seconds, spares)):  # linear in between: the ends decide
        rest = np.maximum(load - (seconds - missing) * x2, 0.0)
        first = np.maximum(first, np.ceil(rest / x1 - 1e-9) + spares - missing)
    total = first * c1 + seconds * c2
    i, j, k = np.unravel_index(np.argmin(total), total.shape)
    if i == j:
        return None
    a, b, n, m = pool[i][0], pool[j][0], int(first[i, j, k]), int(seconds[k])
    down = min(m, spares)
    carried = min((n - spares) * able[i] + m * able[j], (n - spares + down) * able[i] + (m - down) * able[j])
    return Fleet(((a, n), (b, m)), float(total[i, j, k]), float(carried), spares, (float(able[i]), float(able[j])))


def pooled(
    prefills: Sequence[Offer],
    decodes: Sequence[Offer],
    traffic: Traffic,
    slo: Slo,
    spares: int,
    slower: tuple[float, float] = (1.0, 1.0),
    cross_vendor: bool = False,
) -> list[Fleet]:
    """The cheapest prefill and decode pools of every pair of devices that can hand over KV and keeps the objective.

    Formula:  min ceil(load/x_p) c_p + ceil(load/x_d) c_d; x_p the highest rate of a prefill worker that keeps TTFT with
              the transfer and a decode step, x_d that of a decode worker that keeps TPOT; E2E couples them
    Args:     slower: factors on TTFT and TPOT (and so on the rates) for the pessimistic end of the bands; cross_vendor:
              pools of unlike vendors too, which no engine connects as it is released
    Returns:  list of Fleet
    Assumes:  each worker queues for itself (a shared queue is shorter); quantiles of TTFT and TPOT add up to that of
              E2E (at most); of goodput, each latency may miss half of what it leaves
    Source:   derivation
    """
    best: dict[tuple[str, str], Fleet] = {}
    ttft_at, tpot_at, e2e_at = (slo.share_of(n) for n in ("ttft_s", "tpot_s", "e2e_s"))
    longer = gamma_quantile(e2e_at or 0.5, traffic.osl.mean, traffic.osl.mean * traffic.osl.cv)
    gaps = float(np.maximum(longer, traffic.osl.mean)) - 1.0
    share = None if slo.goodput is None else (1.0 + slo.goodput) / 2.0
    ttft_share, tpot_share = (s if share is None else max(s or 0.5, share) for s in (ttft_at, tpot_at))
    for d in decodes:
        tpot = d.latency("tpot_s", tpot_share) * slower[1]
        good_d = np.logical_and.accumulate(tpot <= (slo.tpot_s or np.inf))
        if not good_d.any():
            continue
        for p in prefills:
            if hand_over_obstacle(p.deployment, d.deployment, cross_vendor) is not None:
                continue
            extra = after_prefill_s(p, d, traffic) * slower[0]
            ttft = p.latency("ttft_s", ttft_share) * slower[0] + extra
            good_p = np.logical_and.accumulate(ttft <= (slo.ttft_s or np.inf))
            if not good_p.any():
                continue
            found = _cheapest(p, d, ttft, tpot, good_p, good_d, slo.e2e_s, gaps, traffic.rate_per_s, spares, slower)
            pair = p.deployment.accelerator.name, d.deployment.accelerator.name
            if found is not None and (pair not in best or order(found) < order(best[pair])):
                best[pair] = found
    return list(best.values())


def _cheapest(p, d, ttft, tpot, good_p, good_d, e2e_s, gaps, load, spares, slower) -> Fleet | None:
    """The cheapest whole numbers of workers of one pair."""
    rates_p, rates_d = p.rates[good_p] / slower[0], d.rates[good_d] / slower[1]
    if e2e_s is None:
        i, j = np.array([rates_p.size - 1]), np.array([rates_d.size - 1])
    else:
        room = (e2e_s - ttft[good_p]) / max(gaps, 1e-9)  # TPOT that is left beside each TTFT
        steps = np.maximum.accumulate(tpot[good_d])
        j = np.searchsorted(steps, room, side="right") - 1
        i = np.flatnonzero(j >= 0)
        j = j[i]
        if not i.size:
            return None
    n_p = np.ceil(load / rates_p[i] - 1e-9) + spares
    n_d = np.ceil(load / rates_d[j] - 1e-9) + spares
    cost = n_p * p.usd_per_h_replica + n_d * d.usd_per_h_replica
    k = int(np.argmin(cost))
    x_p, x_d = float(rates_p[i[k]]), float(rates_d[j[k]])
    carried = min((n_p[k] - spares) * x_p, (n_d[k] - spares) * x_d)
    return Fleet(((p, int(n_p[k])), (d, int(n_d[k]))), float(cost[k]), float(carried), spares, (x_p, x_d))
