"""What one replica can carry: its latencies over a range of rates, and the highest rate that keeps an objective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.planner.demand import LATENCIES, Slo, Traffic, at_share, keeps_all
from roofline.serving.bands import POOLS_TPOT, POOLS_TTFT, tpot_band, ttft_band
from roofline.serving.disaggregated import Pools, PoolState, kv_transfer_s, pooled_state, prefill_pool, seating_s
from roofline.serving.queueing import Spread
from roofline.serving.steady import SteadyState, steady_state

# Rates at which a replica is evaluated, as shares of what it can do at most: fine where queues build up.
FRACTIONS = np.unique(np.concatenate((np.geomspace(0.002, 0.4, 48), np.linspace(0.4, 0.985, 118))))


@dataclass(frozen=True)
class Offer:
    """A replica of one deployment under one kind of traffic: latencies at each of some rates, and its price."""

    deployment: Deployment
    usd_per_h: float  # of one device
    rates: np.ndarray  # [1/s], ascending
    spreads: dict[str, Spread]  # latency -> how it differs from request to request, at each rate
    most: float  # rate at which it saturates [1/s]
    role: str = "replica"  # or prefill, decode: one worker of a pool
    bands: tuple[tuple[float, float], tuple[float, float]] = ((1.0, 1.0), (1.0, 1.0))  # of TTFT and TPOT

    @property
    def usd_per_h_replica(self) -> float:
        """Dollars per hour of all its devices."""
        return self.usd_per_h * self.deployment.plan.gpus

    def latency(self, name: str, share: float | None) -> np.ndarray:
        """A latency at a percentile, at each rate."""
        return self._kept(("latency", name, share), lambda: np.asarray(at_share(self.spreads[name], share), float))

    def _kept(self, key, make):
        if key not in self._memory:
            self._memory[key] = make()
        return self._memory[key]

    @cached_property
    def _memory(self) -> dict:
        return {}

    def keeps(self, slo: Slo) -> np.ndarray:
        """Rates at which the objective is kept, there and at every lower rate."""
        good = np.ones(self.rates.shape, bool)
        for name, limit in slo.limits.items():
            if name in self.spreads:
                good &= self.latency(name, slo.share_of(name)) <= limit
        if slo.goodput is not None:
            good &= self._kept(("goodput", slo), lambda: np.asarray(keeps_all(self.spreads, slo))) >= slo.goodput
        return np.logical_and.accumulate(good)

    def capacity(self, slo: Slo) -> float:
        """Highest rate of one replica that keeps the objective [1/s]; 0 where none does.

        Formula:  the largest rate of the grid up to which every rate keeps it
        Assumes:  a looser objective never lowers it, by construction
        """
        kept = np.count_nonzero(self.keeps(slo))
        return float(self.rates[kept - 1]) if kept else 0.0

    def pessimistic(self, slo: Slo) -> float:
        """The capacity if times are at the slow end of their band.

        Formula:  limits divided by the upper factors, and the rate by that of TPOT: all times longer by f are the same
                  replica on a clock slower by f
        """
        (_, ttft), (_, tpot) = self.bands
        tight = {"ttft_s": 1.0 / max(ttft, tpot), "tpot_s": 1.0 / tpot, "e2e_s": 1.0 / tpot}
        return self.capacity(slo.scaled(tight)) / tpot

    def binding(self, slo: Slo) -> str:
        """What stops this replica from carrying more: a latency, the share of requests, or its throughput."""
        kept = np.count_nonzero(self.keeps(slo))
        if kept == self.rates.size:
            return "throughput"
        for name, limit in slo.limits.items():
            if name in self.spreads and self.latency(name, slo.share_of(name))[kept] > limit:
                return slo.name_of(name)
        return "goodput"

    def shortfall(self, slo: Slo) -> float:
        """Factor by which all limits would have to be looser for this replica to carry anything at all.

        Formula:  max over limits of (latency at the lowest rate / limit)
        """
        ratios = [self.latency(n, slo.share_of(n))[0] / limit for n, limit in slo.limits.items() if n in self.spreads]
        return float(max(ratios, default=0.0))


def offer(deployment: Deployment, usd_per_h: float, traffic: Traffic) -> Offer | None:
    """What a replica that serves whole requests offers; None where it cannot hold one."""
    one = replica_state(deployment, traffic, 1.0)
    if not bool(one.feasible):
        return None
    most = 1.0 / float(one.utilisation)
    rates = FRACTIONS * most
    state = replica_state(deployment, traffic, rates)
    spreads = {"ttft_s": state.ttft, "tpot_s": state.tpot, "e2e_s": state.e2e}
    return Offer(deployment, usd_per_h, rates, spreads, most, bands=(ttft_band(deployment), tpot_band(deployment)))


def replica_state(deployment: Deployment, traffic: Traffic, rate_per_s: Array) -> SteadyState:
    """The state of one replica at its share of the traffic, or another rate of it."""
    return steady_state(
        deployment, isl=traffic.isl, osl=traffic.osl, rate_per_s=rate_per_s, cached=traffic.cached,
        arrivals_cv2=traffic.arrivals_cv2,
    )  # fmt: skip


MANY = 1000  # workers of the other pool, so that it never limits the one that is looked at


def pools_state(pools: Pools, traffic: Traffic, rate_per_s: Array) -> PoolState:
    """The state of two pools under the traffic, or another rate of it."""
    return pooled_state(
        pools, isl=traffic.isl, osl=traffic.osl, rate_per_s=rate_per_s, cached=traffic.cached,
        arrivals_cv2=traffic.arrivals_cv2,
    )  # fmt: skip


def prefill_offer(deployment: Deployment, usd_per_h: float, traffic: Traffic) -> Offer:
    """What one worker of a prefill pool offers: time to first token but for what follows the prefill."""
    pool = prefill_pool(Pools(deployment, deployment), traffic.isl, traffic.cached, traffic.arrivals_cv2)
    rates = FRACTIONS * float(pool.rate)
    wait = pool.wait_s(rates)
    spread = Spread(pool.ready_s + 0.0 * wait, wait, wait)
    return Offer(
        deployment, usd_per_h, rates, {"ttft_s": spread}, float(pool.rate), "prefill", (POOLS_TTFT, POOLS_TPOT)
    )


def decode_offer(deployment: Deployment, usd_per_h: float, traffic: Traffic) -> Offer:
    """What one worker of a decode pool offers: time per output token."""
    pools = Pools(deployment, deployment, MANY, 1)
    most = float(pools_state(pools, traffic, 1e12).requests_per_s)
    rates = FRACTIONS * most
    spreads = {"tpot_s": pools_state(pools, traffic, rates).tpot}
    return Offer(deployment, usd_per_h, rates, spreads, most, "decode", (POOLS_TTFT, POOLS_TPOT))


def after_prefill_s(prefill: Offer, decode: Offer, traffic: Traffic) -> float:
    """Seconds from the end of a mean prompt to its first token: the KV crosses, and an almost idle worker seats it."""
    crossing = kv_transfer_s(Pools(prefill.deployment, decode.deployment), float(traffic.isl.mean))
    return float(crossing + seating_s(decode.deployment, decode.latency("tpot_s", None)[0]))


__all__ = [
    "LATENCIES", "Offer", "after_prefill_s", "decode_offer", "offer", "pools_state", "prefill_offer", "replica_state",
]  # fmt: skip
