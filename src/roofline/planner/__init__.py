"""Planning: from traffic, objectives and prices to the cheapest fleet that keeps them.

Every layout that fits is evaluated over a range of request rates; what one replica carries within the objective decides
how many are needed, and the cheapest whole number of them wins. The candidates do not depend on load, objective or
price, so a looser objective never costs more, more load never less, and more allowed hardware never makes it dearer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import InfeasibleError, InputError, check_number
from roofline.planner.demand import Slo, Traffic, milliseconds, traffic
from roofline.planner.fleet import Fleet, mixed, order, pooled, uniform
from roofline.planner.layouts import MAX_GPUS, Rejection, candidates, smallest
from roofline.planner.offers import Offer, decode_offer, offer, prefill_offer
from roofline.planner.result import FrontierPoint, Recommendation, frontier
from roofline.precision import precision_named
from roofline.specs.engine import Engine, engine_named
from roofline.specs.hardware import Accelerator
from roofline.specs.library import hardware
from roofline.specs.model import Model
from roofline.specs.prices import priced, quote
from roofline.specs.refs import load_model
from roofline.speculative import Speculation

__all__ = ["Fleet", "NoPlanError", "Recommendation", "Slo", "Traffic", "plan", "traffic"]

KINDS = ("gpu-datacentre",)  # of device, unless others are named


class NoPlanError(InfeasibleError):
    """Nothing allowed keeps the objective; the message says what is nearest."""


@dataclass(frozen=True)
class Search:
    """Everything that is tried, evaluated once; questions are arithmetic on it."""

    traffic: Traffic
    offers: tuple[Offer, ...]
    prefills: tuple[Offer, ...]
    decodes: tuple[Offer, ...]
    spares: int
    mix: bool
    cross_vendor: bool = False  # prefill and decode pools of unlike vendors

    def repriced(self, usd_per_h_of: Mapping[str, float]) -> Search:
        """The same with other prices."""

        def priced(offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
            return tuple(_at_price(o, usd_per_h_of[o.deployment.accelerator.name]) for o in offers)

        kinds = ("offers", "prefills", "decodes")
        return replace(self, **{kind: priced(getattr(self, kind)) for kind in kinds})

    def on(self, hardware_names: set[str]) -> Search:
        """The same on some devices only."""

        def left(offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
            return tuple(o for o in offers if o.deployment.accelerator.name in hardware_names)

        return replace(self, offers=left(self.offers), prefills=left(self.prefills), decodes=left(self.decodes))

    def fleets(self, slo: Slo, pessimistic: bool = False) -> list[Fleet]:
        """The best fleet of every kind that keeps an objective, cheapest first."""
        capacity = Offer.pessimistic if pessimistic else Offer.capacity
        found = uniform(self.offers, self.traffic.rate_per_s, slo, self.spares, capacity)
        out = list(found)
        if self.mix and found:
            two = mixed(found, self.traffic.rate_per_s, self.spares)
            out += [two] if two is not None else []
        if self.prefills:
            slower = (1.0, 1.0)
            if pessimistic:
                (_, ttft), (_, tpot) = self.prefills[0].bands
                slower = (ttft, tpot)
            out += pooled(self.prefills, self.decodes, self.traffic, slo, self.spares, slower, self.cross_vendor)
        return sorted(out, key=order)


def _at_price(o: Offer, usd_per_h: float) -> Offer:
    moved = Offer(o.deployment, usd_per_h, o.rates, o.spreads, o.most, o.role, o.bands)
    moved._memory.update(o._memory)
    return moved


def plan(
    model: str | Path | Model,
    hw: str | Accelerator | Iterable[str | Accelerator] | None = None,
    *,
    traffic: Traffic,
    slo: Slo | None = None,
    weights: str | Iterable[str] | None = None,
    kv: str | Iterable[str] | None = None,
    engine: str | Engine | Iterable[str | Engine] = "vllm",
    prices: Mapping[str, float] | None = None,
    tier: str | None = None,
    budget_usd_per_h: float | None = None,
    spares: int = 0,
    max_gpus: int = MAX_GPUS,
    mix: bool = True,
    disaggregate: bool = True,
    cross_vendor: bool = False,
    speculation: str | Speculation | None = None,
    specs: str | Path | None = None,
) -> Recommendation:
    """The cheapest fleet that serves this traffic within the objective, and why.

    Args:     model: as in `estimate`; hw: allowed devices, None: every datacentre GPU with a price on record; traffic:
              from `traffic(...)`; slo; weights, kv, engine: allowed formats and engines (None: the checkpoint's own,
              and what the engine does); prices: {device: USD/h} in place of the price list's; tier: kind of provider;
              budget_usd_per_h; spares: replicas that may be down (N + 1: 1), of each pool; max_gpus: of one replica;
              mix: two kinds of replica may serve together; disaggregate: prefill and decode may have pools of their
              own; cross_vendor: pools of unlike vendors too, though no released engine moves KV between them;
              speculation: of every replica, as in `estimate`
    Returns:  Recommendation
    Assumes:  requests are dealt to replicas in proportion to what they carry; prices are per device-hour
    Errors:   NoPlanError with the nearest alternative where nothing keeps the objective or the budget
    """
    slo = Slo() if slo is None else slo
    _check_kinds(traffic, slo, prices)
    spares = int(check_number("spares", spares, low=0, high=1000, integer=True))
    max_gpus = int(check_number("max_gpus", max_gpus, low=1, high=65536, integer=True))
    loaded = load_model(model, specs=specs)
    parsed = loaded.model
    devices, paid, sources, notes = _devices(hw, prices, tier, specs)
    native = loaded.precision or precision_named(parsed.native)
    precisions = [
        (native if w is None else precision_named(w)).with_kv(k)
        for w in _several("weights", weights)
        for k in _several("kv", kv)
    ]
    engines = [e if isinstance(e, Engine) else engine_named(e) for e in _several("engine", engine)]
    found, rejected = candidates(parsed, devices, precisions, engines, traffic.longest, max_gpus, speculation, specs)
    if not found:
        raise NoPlanError(_nothing_fits(parsed, devices, precisions, engines, traffic, rejected))
    search, dropped = _search(found, paid, traffic, spares, mix, disaggregate, cross_vendor)
    fleets = search.fleets(slo)
    if not fleets:
        raise NoPlanError(_nothing_keeps(search, slo))
    chosen = fleets[0]
    if budget_usd_per_h is not None and chosen.usd_per_h > check_number("budget_usd_per_h", budget_usd_per_h):
        raise NoPlanError(_over_budget(search, slo, chosen, budget_usd_per_h))
    slow = search.fleets(slo, pessimistic=True)
    notes += _vendor_notes(search, chosen)
    return Recommendation(
        traffic, slo, chosen, _runner_up(fleets), _binding(chosen, slo, traffic), paid, sources,
        _frontier(search), _price_flips(search, slo, chosen, paid), slow[0] if slow else None,
        _cost_of(search, slo, chosen), tuple(rejected + dropped), len(found) + len(rejected), tuple(notes),
        budget_usd_per_h, search,
    )  # fmt: skip


def _check_kinds(traffic: Any, slo: Any, prices: Any) -> None:
    if not isinstance(traffic, Traffic):
        raise InputError("traffic: give what traffic(...) returns, e.g. traffic(rate_per_s=5, isl=2000, osl=300)")
    if not isinstance(slo, Slo):
        raise InputError("slo: give Slo(...), e.g. Slo(ttft_s=1, tpot_s=0.04)")
    if prices is not None and not isinstance(prices, Mapping):
        raise InputError("prices: give USD per hour by device, e.g. {'h100-sxm': 2.5}")


def _several(name: str, value: Any) -> list[Any]:
    if value is None or isinstance(value, (str, Path, Engine, Accelerator)):
        return [value]
    if not isinstance(value, Iterable):
        raise InputError(f"{name}: {value!r} is neither a name nor a list of names")
    values = list(value)
    if not values:
        raise InputError(f"{name}: an empty list allows nothing; leave it out for the default, or name some")
    return values


def _devices(hw, prices, tier, specs) -> tuple[list[Accelerator], dict[str, float], dict[str, str], list[str]]:
    """Allowed devices with their prices."""
    given = {hardware(n, specs=specs).name: float(check_number(f"price of {n}", v, low=0.0, high=1e6))
             for n, v in (prices or {}).items()}  # fmt: skip
    named = hw is not None
    wanted = _several("hw", hw) if named else list(dict.fromkeys([*given, *priced(specs)]))
    devices, paid, sources = {}, {}, {}
    for one in wanted:
        a = one if isinstance(one, Accelerator) else hardware(one, specs=specs)
        if not named and a.kind not in KINDS and a.name not in given:
            continue
        found = quote(a, tier=tier, specs=specs)
        if a.name in given:
            paid[a.name], sources[a.name] = given[a.name], "as given"
        elif found is not None:
            paid[a.name], sources[a.name] = found.usd_per_hour, str(found)
        elif named:
            where = f" from a {tier}" if tier else ""
            raise InputError(
                f"no price on record for {a.name}{where}; give one: --price {a.name}=2.5, or prices={{'{a.name}': 2.5}}"
            )
        else:
            continue
        devices[a.name] = a
    if not devices:
        raise InputError("no device is allowed: name some with hw, or give prices")
    notes = [] if named else [f"allowed hardware: the {len(devices)} datacentre GPUs with a price on record"]
    return list(devices.values()), paid, sources, notes


def _search(
    found: list[Deployment],
    paid: Mapping[str, float],
    traffic: Traffic,
    spares: int,
    mix: bool,
    disaggregate: bool,
    cross_vendor: bool = False,
) -> tuple[Search, list[Rejection]]:
    """Every candidate evaluated over its rates, as a replica and as a worker of either pool."""
    offers, dropped, prefills, decodes = [], [], [], []
    for d in found:
        usd = paid[d.accelerator.name]
        o = offer(d, usd, traffic)
        if o is None:
            dropped.append(Rejection(str(d), "its KV pool does not hold one running request"))
            continue
        offers.append(o)
        if disaggregate and d.plan.pp == 1:
            prefills.append(prefill_offer(d, usd, traffic))
            decodes.append(decode_offer(d, usd, traffic))
    searched = Search(traffic, tuple(offers), tuple(prefills), tuple(decodes), spares, mix, cross_vendor)
    return searched, dropped


def _vendor_notes(search: Search, chosen: Fleet) -> list[str]:
    """What has to be known about pools where devices of several vendors are allowed."""
    vendors = sorted({o.deployment.accelerator.vendor for o in search.prefills})
    if len(vendors) < 2:
        return []
    if not search.cross_vendor:
        return [
            f"prefill and decode pools of one vendor each ({', '.join(vendors)}): no released engine moves KV between "
            "vendors; --cross-vendor prices such pools all the same"
        ]
    if chosen.disaggregated and len({o.deployment.accelerator.vendor for o, _ in chosen.members}) > 1:
        return ["these pools are of unlike vendors, as allowed: no released engine moves KV between them"]
    return []


def _runner_up(fleets: list[Fleet]) -> Fleet | None:
    """The cheapest fleet that is another choice and not only a mix with the chosen one."""
    chosen = {str(o.deployment) for o, _ in fleets[0].members}
    for other in fleets[1:]:
        if {str(o.deployment) for o, _ in other.members}.isdisjoint(chosen) or len(other.members) < len(chosen):
            return other
    return fleets[1] if len(fleets) > 1 else None


def _binding(fleet: Fleet, slo: Slo, traffic: Traffic) -> str:
    """What would have to give for fewer replicas to do."""
    n = fleet.members[0][1]
    if n - fleet.spares <= 1 and not fleet.disaggregated and traffic.rate_per_s < 0.7 * fleet.capacities[0]:
        return "memory and latency: the smallest replica that fits and is fast enough carries more than the load"
    told = [(o.role, o.binding(slo)) for o, _ in fleet.members]
    if fleet.disaggregated:
        return "; ".join(f"{role} pool: {what}" for role, what in told)
    return told[0][1]


def _frontier(search: Search) -> tuple[FrontierPoint, ...]:
    """Cost against TTFT and TPOT (p90) over all offers and rates, for this load."""
    rows = []
    load, spares = search.traffic.rate_per_s, search.spares
    for o in search.offers:
        ttft, tpot = o.latency("ttft_s", 0.9), o.latency("tpot_s", 0.9)
        needed = np.ceil(load / o.rates - 1e-9) + spares
        # of the rates that need equally many replicas the one at which all of them run
        _, first = np.unique(needed, return_index=True)
        for i in first.tolist():
            n = int(needed[i])
            at = load / n
            rows.append(
                FrontierPoint(str(o.deployment), n, n * o.deployment.plan.gpus, n * o.usd_per_h_replica,
                              float(np.interp(at, o.rates, ttft)), float(np.interp(at, o.rates, tpot)))
            )  # fmt: skip
    return frontier(rows)


def _price_flips(search: Search, slo: Slo, chosen: Fleet, paid: Mapping[str, float]) -> dict[str, float]:
    """Price per device-hour below which another device would be the choice.

    Formula:  price x cost of the chosen fleet / cost of the cheapest fleet on that device alone
    """
    out = {}
    for name in paid:
        if name in chosen.hardware:
            continue
        alone = search.on({name}).fleets(slo)
        if alone:
            out[name] = paid[name] * chosen.usd_per_h / alone[0].usd_per_h
    return out


def _cost_of(search: Search, slo: Slo, chosen: Fleet) -> dict[str, float]:
    """What each limit costs: the cheapest fleet with it minus the cheapest without it [USD/h]."""
    out = {}
    for name in slo.limits:
        free = search.fleets(slo.without(name))
        out[slo.name_of(name)] = chosen.usd_per_h - free[0].usd_per_h
    return out


def _nothing_fits(model, devices, precisions, engines, traffic: Traffic, rejected: list[Rejection]) -> str:
    told = [f"{r.what}: {r.why}" for r in rejected[:3]]
    found = [smallest(model, a, p, e, traffic.longest) for a in devices for p in precisions for e in engines]
    first = "; ".join(dict.fromkeys(found[:4]))
    return (
        f"{model.name}: nothing that is allowed holds a request of {traffic.longest:,.0f} tokens. "
        f"The smallest layouts that would: {first}. Tried: {'; '.join(told)}"
    )


def _nothing_keeps(search: Search, slo: Slo) -> str:
    """The refusal where every offer misses a limit even when idle, with what would do."""
    nearest = min(search.offers, key=lambda o: (o.shortfall(slo), o.usd_per_h_replica))
    at_best = {n: float(nearest.latency(n, slo.share_of(n))[0]) for n in slo.limits}
    missed = ", ".join(
        f"{slo.name_of(n)} {milliseconds(v)} (asked: {milliseconds(slo.limits[n])})" for n, v in at_best.items()
    )
    factor = nearest.shortfall(slo)
    hint = (
        f"limits {factor:.3g} times as long can be kept"
        if factor > 1.0
        else "the share of requests that must keep all limits is too high"
    )
    return f"nothing that is allowed keeps {slo}, even when idle. Nearest: [{nearest.deployment}] with {missed}; {hint}"


def _over_budget(search: Search, slo: Slo, chosen: Fleet, budget: float) -> str:
    """The refusal where the money does not suffice, with the load that it buys."""
    carried, best = 0.0, None
    for o in search.offers:
        n = int(budget / o.usd_per_h_replica) - search.spares if o.usd_per_h_replica else 0
        x = n * o.capacity(slo)
        if n > 0 and x > carried:
            carried, best = x, o
    text = (
        f"the cheapest fleet that keeps {slo} costs {chosen.usd_per_h:,.2f} USD/h ({chosen}), "
        f"more than the budget of {budget:,.2f} USD/h."
    )
    if best is None:
        return f"{text} The budget does not buy one replica that keeps it."
    return f"{text} The budget carries {carried:,.3g} requests/s, on [{best.deployment}]"
