"""What else a search holds: other fleets that would do, what was refused, and the choice if the question were another.

Arithmetic on offers that are evaluated already: nothing is estimated anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from roofline.planner.demand import Slo, milliseconds
from roofline.planner.fleet import Fleet
from roofline.planner.layouts import Rejection

if TYPE_CHECKING:
    from roofline.planner import Search

LOADS = (0.5, 0.8, 1.25, 2.0)  # of the load that was asked for
LIMITS = (0.75, 1.5)  # of each limit


@dataclass(frozen=True, slots=True)
class Variant:
    """The cheapest fleet if one thing were different; None where nothing that is allowed would do."""

    change: str
    fleet: Fleet | None


def by_devices(fleets: Sequence[Fleet]) -> list[Fleet]:
    """The cheapest fleet of each set of devices, whole replicas and pools apart; cheapest first like `fleets`."""
    found: dict[tuple[frozenset[str], bool], Fleet] = {}
    for fleet in fleets:
        found.setdefault((fleet.hardware, fleet.disaggregated), fleet)
    return list(found.values())


def refused(search: Search, slo: Slo) -> list[Rejection]:
    """Layouts that fit and miss a limit even when idle, with what they reach."""
    out = []
    for o in search.offers:
        if o.capacity(slo) > 0:
            continue
        best = {name: float(o.latency(name, slo.share_of(name))[0]) for name in slo.limits}
        missed = [
            f"{slo.name_of(name)} {milliseconds(best[name])} when idle, limit {milliseconds(limit)}"
            for name, limit in slo.limits.items() if best[name] > limit
        ]  # fmt: skip
        out.append(Rejection(str(o.deployment), "; ".join(missed) or "too few requests keep all limits at once"))
    return out


def variants(search: Search, slo: Slo) -> list[Variant]:
    """The cheapest fleet at other loads, other limits and with one more spare."""
    found = [
        Variant(f"{factor:g} times the load", _cheapest(_at_load(search, factor), slo)) for factor in LOADS
    ]  # fmt: skip
    for name, limit in slo.limits.items():
        for factor in LIMITS:
            other = slo.scaled({name: factor})
            found.append(Variant(f"{slo.name_of(name)} <= {milliseconds(factor * limit)}", _cheapest(search, other)))
        found.append(Variant(f"no limit on {slo.name_of(name)}", _cheapest(search, slo.without(name))))
    found.append(Variant(f"{search.spares + 1} may be down", _cheapest(replace(search, spares=search.spares + 1), slo)))
    return found


def _at_load(search: Search, factor: float) -> Search:
    return replace(search, traffic=search.traffic.at_rate(factor * search.traffic.rate_per_s))


def _cheapest(search: Search, slo: Slo) -> Fleet | None:
    return next(iter(search.fleets(slo)), None)
