"""A recommendation on one screen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from roofline.explain import EVIDENCE
from roofline.units import format as quantity

if TYPE_CHECKING:
    from roofline.planner.fleet import Fleet
    from roofline.planner.result import Recommendation

FRONTIER_ROWS = 6
DEAR = 6.0  # frontier points beyond so many times the chosen cost are left out of the screen


def to_text(r: Recommendation) -> str:
    """The answer, what it gives, why it and not another, and what would change it."""
    return "\n".join(lines(r))


def lines(r: Recommendation) -> list[str]:
    """The same line by line."""
    fleet = r.fleet
    out = [f"{r.traffic}; {r.slo}", ""]
    for (o, n), capacity in zip(fleet.members, fleet.capacities):
        role = "" if o.role == "replica" else f" ({o.role} pool)"
        price = f"a device {r.price_sources[o.deployment.accelerator.name]}"
        if r.price_sources[o.deployment.accelerator.name] == "as given":
            price = f"a device {o.usd_per_h:g} USD/h as given"
        out += [f"  {n} x [{o.deployment}]{role}"]
        out += [f"      each carries {capacity:.3g} requests/s within the objective; {price}"]
    out += [""]
    for name, told, remark in answers(r):
        out += [f"{name:<9} {told}"] + ([f"{'':<9} ({remark})"] if remark else [])
    if len(r.frontier) > 1:
        out += ["frontier    USD/h   TTFT p90   TPOT p90  (all replicas up)"]
        out += [
            f"      {p.usd_per_h:9,.2f}  {_ms(p.ttft_s):>9}  {_ms(p.tpot_s):>9}  {p.replicas} x [{p.fleet}]"
            for p in _spread(r.frontier_below(DEAR))
        ]
    rejected = Counter(_kind(x.why) for x in r.rejections)
    told = ", ".join(f"{n} {why}" for why, n in rejected.most_common(3))
    out += ["", f"{r.tried} layouts tried" + (f"; left out: {told}" if told else "")]
    return out + list(r.notes)


def answers(r: Recommendation) -> list[tuple[str, str, str]]:
    """What the fleet costs and gives, and what decides: (name, what is said, remark)."""
    fleet, split = r.fleet, r.usd_per_mtok_split
    rows = [
        (
            "cost",
            f"{r.usd_per_h:,.2f} USD/h, {r.usd_per_month:,.0f} USD/month for {count(fleet.gpus, 'device')}; "
            f"{r.usd_per_mtok_output:.3g} USD/Mtok output",
            f"all cost over output tokens at this load; over input and output {r.usd_per_mtok_blended:.3g}; split by "
            f"{'pool' if fleet.disaggregated else 'time'}: input {split[0]:.3g}, output {split[1]:.3g}",
        ),
        ("users", ", ".join(_latency(r, name) for name in ("ttft_s", "tpot_s", "e2e_s")), ""),
        (
            "load",
            f"{r.utilisation:.0%} of what it carries within the objective"
            + (f"; still within it with {fleet.spares} down" if fleet.spares else ""),
            "",
        ),
        ("binding", r.binding, ""),
    ]
    if r.cost_of and any(v > 0 for v in r.cost_of.values()):
        rows.append(("limits", ", ".join(f"{k} costs {v:,.2f} USD/h" for k, v in r.cost_of.items()), ""))
    rows.append(("runner-up", _short(r.runner_up) if r.runner_up else "none", ""))
    rows.append(("error", _pessimistic(r), ""))
    rows.append(("evidence", "; ".join(f"{name}: {EVIDENCE[kind]}" for name, kind in r.evidence.items()), ""))
    if r.joules_per_token is not None:
        told = f"{r.joules_per_token:.3g} J per output token with every device at rated power: an upper bound"
        rows.insert(1, ("energy", told, ""))
    near = {n: v for n, v in r.wins_below_usd_per_h.items() if v > 0.3 * r.usd_per_h_of[n]}
    if near:
        flips = sorted(near.items(), key=lambda kv: -kv[1] / r.usd_per_h_of[kv[0]])
        told = [f"{n} below {v:.2f} USD/h (now {r.usd_per_h_of[n]:.2f})" for n, v in flips[:4]]
        rows.append(("price", "would win: " + ", ".join(told), ""))
    return rows


def count(n: int, what: str) -> str:
    """A number of things.

    >>> count(1, "device"), count(2, "device")
    ('1 device', '2 devices')
    """
    return f"{n:,} {what}" + ("s" if n != 1 else "")


def _latency(r: Recommendation, name: str) -> str:
    value = quantity(r.latencies[name], "s", digits=3)
    return f"{r.slo.name_of(name)} {value}"


def _short(fleet: Fleet) -> str:
    return f"{fleet.usd_per_h:,.2f} USD/h: {fleet}"


def _pessimistic(r: Recommendation) -> str:
    if r.pessimistic is None:
        return "at the slow end of the 80 % band nothing allowed keeps the objective"
    if r.changes_at_pessimistic_end:
        return f"at the slow end of the 80 % band the choice would be {_short(r.pessimistic)}"
    counts = " + ".join(
        count(n, o.role if o.role == "replica" else f"{o.role} worker") for o, n in r.pessimistic.members
    )
    cost = f"{r.pessimistic.usd_per_h:,.2f} USD/h"
    return f"the choice stands at the slow end of the 80 % band, with {counts}: {cost}"


def _ms(value: float) -> str:
    return quantity(value, "s", digits=3)


def _kind(why: str) -> str:
    if "exceed" in why or "leave" in why or "fit" in why or "pool" in why:
        return "do not fit"
    if "divide" in why or "heads" in why or "stages" in why:
        return "cannot be cut so"
    return why.split(";")[0][:60]


def _spread(points) -> list:
    """A few points of a frontier, evenly over its cost."""
    if len(points) <= FRONTIER_ROWS:
        return list(points)
    step = (len(points) - 1) / (FRONTIER_ROWS - 1)
    return [points[round(i * step)] for i in range(FRONTIER_ROWS)]
