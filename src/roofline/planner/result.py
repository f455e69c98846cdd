"""What a plan recommends, why, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.economics import joules_per_token, usd_per_month, usd_per_mtok, usd_per_mtok_split
from roofline.explain import plain
from roofline.planner.demand import Slo, Traffic, at_share
from roofline.planner.fleet import Fleet
from roofline.planner.layouts import Rejection
from roofline.planner.offers import pools_state, replica_state
from roofline.plotted import Plotted
from roofline.serving.disaggregated import Pools, PoolState
from roofline.serving.steady import SteadyState

if TYPE_CHECKING:
    from roofline.estimates import Estimate
    from roofline.planner import Search


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A fleet that no other beats in cost, TTFT and TPOT at once."""

    fleet: str
    replicas: int
    gpus: int
    usd_per_h: float
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True)
class Recommendation(Plotted, figures=("cost",)):
    """The cheapest fleet that keeps the objective, and what stands behind the choice. Dollars, seconds."""

    traffic: Traffic
    slo: Slo
    fleet: Fleet
    runner_up: Fleet | None
    binding: str
    usd_per_h_of: Mapping[str, float]  # device -> what was paid for it
    price_sources: Mapping[str, str]
    frontier: tuple[FrontierPoint, ...] = ()
    wins_below_usd_per_h: Mapping[str, float] = field(default_factory=dict)  # device -> price at which it would win
    pessimistic: Fleet | None = None  # the choice at the slow end of the error band; None: nothing keeps it there
    cost_of: Mapping[str, float] = field(default_factory=dict)  # limit -> dollars per hour it costs to keep it
    rejections: tuple[Rejection, ...] = ()
    tried: int = 0
    notes: tuple[str, ...] = ()
    budget_usd_per_h: float | None = None
    search: Search | None = field(default=None, repr=False, compare=False)  # what was evaluated; see `variants`

    # What users see.

    @cached_property
    def states(self) -> tuple[SteadyState, ...]:
        """Every kind of replica at its share of the load (of disaggregated pools: none)."""
        if self.fleet.disaggregated:
            return ()
        rate = self.traffic.rate_per_s
        return tuple(
            replica_state(o.deployment, self.traffic, share * rate)
            for (o, _), share in zip(self.fleet.members, self.fleet.shares())
        )

    @cached_property
    def pool_state(self) -> PoolState:
        """Both pools under the load (of whole replicas: see `states`)."""
        (p, n_p), (d, n_d) = self.fleet.members
        return pools_state(Pools(p.deployment, d.deployment, n_p, n_d), self.traffic, self.traffic.rate_per_s)

    @cached_property
    def latencies(self) -> dict[str, float]:
        """Each latency at the percentile of the objective, of the slowest kind of replica, all replicas up [s]."""
        states = (self.pool_state,) if self.fleet.disaggregated else self.states
        out = {}
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            spreads = [getattr(s, name[:-2]) for s in states]
            out[name] = max(float(at_share(x, self.slo.share_of(name))) for x in spreads)
        return out

    @property
    def usd_per_h(self) -> float:
        """What the fleet costs [USD/h]."""
        return self.fleet.usd_per_h

    @property
    def usd_per_month(self) -> float:
        """The same for a month of 730.5 hours."""
        return float(usd_per_month(self.usd_per_h))

    @property
    def usd_per_mtok_output(self) -> float:
        """All cost over output tokens alone, at this load [USD/Mtok]."""
        return float(usd_per_mtok(self.usd_per_h, self.traffic.rate_per_s * self.traffic.osl.mean))

    @property
    def usd_per_mtok_blended(self) -> float:
        """All cost over input and output tokens together, at this load [USD/Mtok]."""
        return float(usd_per_mtok(self.usd_per_h, self.traffic.tokens_per_s))

    @cached_property
    def usd_per_mtok_split(self) -> tuple[float, float]:
        """Prices of input and output that pay all cost: by the time that each takes, of pools by what each costs."""
        costs = [n * o.usd_per_h_replica for o, n in self.fleet.members]
        if self.fleet.disaggregated:
            share = costs[0] / max(sum(costs), 1e-300)
        else:
            share = sum(c * e.input_share for c, e in zip(costs, self.estimates())) / max(sum(costs), 1e-300)
        t = self.traffic
        both = (t.rate_per_s * float(x.mean) for x in (t.isl, t.osl))
        return usd_per_mtok_split(self.usd_per_h, *both, share)

    @property
    def joules_per_token(self) -> float | None:
        """Energy of an output token at this load with every device at its rated power: an upper bound [J]."""
        rated = [(n * o.deployment.plan.gpus, o.deployment.accelerator.tdp_w) for o, n in self.fleet.members]
        if any(tdp is None for _, tdp in rated):
            return None
        power_w = sum(gpus * (tdp or 0.0) for gpus, tdp in rated)
        return float(joules_per_token(power_w, self.traffic.rate_per_s * self.traffic.osl.mean))

    @property
    def utilisation(self) -> float:
        """Load over what the fleet carries within the objective with all replicas up."""
        total = sum(c * n for c, (_, n) in zip(self.fleet.capacities, self.fleet.members))
        if self.fleet.disaggregated:
            total = min(c * n for c, (_, n) in zip(self.fleet.capacities, self.fleet.members))
        return self.traffic.rate_per_s / total

    def frontier_below(self, factor: float) -> list[FrontierPoint]:
        """Points of the frontier up to so many times the chosen cost; all where that leaves none."""
        return [p for p in self.frontier if p.usd_per_h <= factor * self.usd_per_h] or list(self.frontier)

    @property
    def changes_at_pessimistic_end(self) -> bool:
        """Whether another deployment would be chosen if times are at the slow end of their band."""
        if self.pessimistic is None:
            return True
        return [str(o.deployment) for o, _ in self.pessimistic.members] != [
            str(o.deployment) for o, _ in self.fleet.members
        ]

    def estimates(self) -> list[Estimate]:
        """The full estimate of one replica of each kind at its share of the load.

        Of pools: a prompt alone on a prefill worker, and the mean batch of a decode worker.
        """
        from roofline.estimates import estimate

        t, out = self.traffic, []
        for (o, n), share in zip(self.fleet.members, self.fleet.shares()):
            load = {"isl": float(t.isl.mean), "osl": float(t.osl.mean), "cached": t.cached}
            if o.role == "prefill":
                load |= {"osl": 1.0, "batch": 1.0}
            elif o.role == "decode":
                load["batch"] = max(float(self.pool_state.batch) / n, 1.0)
            else:
                load["rate_per_s"] = share * t.rate_per_s
            e = estimate(o.deployment, **load, usd_per_h=o.usd_per_h)
            out.append(replace(e, price_source=self.price_sources[o.deployment.accelerator.name]))
        return out

    @cached_property
    def evidence(self) -> dict[str, str]:
        """Device -> what the times of its kernels rest on: measured, transferred or datasheet, see `EVIDENCE`."""
        return {e.deployment.accelerator.name: e.evidence for e in self.estimates()}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return plain({
            "traffic": {"rate_per_s": self.traffic.rate_per_s, "isl": float(self.traffic.isl.mean),
                        "osl": float(self.traffic.osl.mean), "hit_rate": self.traffic.hit_rate,
                        "arrivals_cv2": self.traffic.arrivals_cv2, "source": self.traffic.source},
            "slo": asdict(self.slo),
            "fleet": fleet_dict(self.fleet),
            "usd_per_h": self.usd_per_h,
            "usd_per_month": self.usd_per_month,
            "usd_per_mtok_output": self.usd_per_mtok_output,
            "usd_per_mtok_blended": self.usd_per_mtok_blended,
            "usd_per_mtok_split": self.usd_per_mtok_split,
            "joules_per_token": self.joules_per_token,
            "utilisation": self.utilisation,
            "latencies": self.latencies,
            "evidence": self.evidence,
            "binding": self.binding,
            "runner_up": None if self.runner_up is None else fleet_dict(self.runner_up),
            "pessimistic": None if self.pessimistic is None else fleet_dict(self.pessimistic),
            "changes_at_pessimistic_end": self.changes_at_pessimistic_end,
            "wins_below_usd_per_h": dict(self.wins_below_usd_per_h),
            "cost_of": dict(self.cost_of),
            "prices": {name: {"usd_per_h": v, "source": self.price_sources[name]}
                       for name, v in self.usd_per_h_of.items()},
            "frontier": [asdict(p) for p in self.frontier],
            "rejections": [asdict(r) for r in self.rejections],
            "notes": list(self.notes),
        })  # fmt: skip

    def __str__(self) -> str:
        from roofline.planner.text import to_text

        return to_text(self)

    __repr__ = __str__


def fleet_dict(fleet: Fleet) -> dict[str, Any]:
    """A fleet as plain data."""
    return {
        "members": [
            {
                "replicas": n, "role": o.role, "model": o.deployment.model.name,
                "hardware": o.deployment.accelerator.name, "plan": asdict(o.deployment.plan),
                "weights": o.deployment.precision.name, "kv": o.deployment.precision.kv.name,
                "engine": o.deployment.engine.name, "requests_per_s_each": capacity,
            }
            for (o, n), capacity in zip(fleet.members, fleet.capacities)
        ],
        "gpus": fleet.gpus,
        "usd_per_h": fleet.usd_per_h,
        "capacity_per_s": fleet.capacity_per_s,
        "spares": fleet.spares,
    }  # fmt: skip


def frontier(rows: list[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Rows that no other beats in cost, TTFT and TPOT at once, cheapest first.

    Formula:  Pareto dominance, rows visited by cost
    """
    if not rows:
        return ()
    values = np.array([(r.usd_per_h, r.ttft_s, r.tpot_s) for r in rows])
    keep: list[int] = []
    kept = np.empty((0, 3))
    for i in np.lexsort(values.T[::-1]):
        if not np.any(np.all(kept <= values[i], axis=1)):
            keep.append(int(i))
            kept = np.vstack((kept, values[i]))
    return tuple(rows[i] for i in keep)
