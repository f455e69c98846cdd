"""Techniques: every one that the model knows as a what-if on a deployment, ranked by what it would gain.

`levers(...)` evaluates them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from roofline.deployment import Deployment
from roofline.deployment import deployment as deployed
from roofline.errors import InputError, RooflineError, UnknownNameError, check_number
from roofline.estimates import EXAMPLE_HARDWARE, EXAMPLE_MODEL
from roofline.explain import plain
from roofline.specs.prices import quote
from roofline.speculative import Speculation, speculating
from roofline.techniques.catalogue import CATALOGUE, CONFLICTS, FAMILIES, Assumed, Cut, WhatIf
from roofline.techniques.elasticity import Elasticity, elasticities
from roofline.techniques.outcome import GAINS, Outcome, Scene, outcome

__all__ = ["Assumed", "Cut", "Elasticity", "Lever", "Levers", "Outcome", "Scene", "levers"]

CROWDED_OUT = 0.5  # a technique that has room for fewer than so many of the requests that have it now is no remedy


@dataclass(frozen=True, slots=True)
class Lever:
    """One technique in one setting and what it would do. A gain above 1 is that many times better."""

    family: str
    name: str
    cuts: tuple[Cut, ...]
    assumes: str
    result: Outcome | None
    gains: dict[str, float]  # by tpot, ttft, throughput, peak, usd; empty where it is not possible
    why_not: str = ""

    def conflicts_with(self, other: Lever) -> str | None:
        """Why the gains of both together are less than their product; None where nothing is known."""
        pair = {self.family, other.family}
        if self.family == other.family:
            return "one at a time" if self.family != "chunked prefill" else "one setting at a time"
        return next((why for a, b, why in CONFLICTS if {a, b} == pair), None)


@dataclass(frozen=True)
class Levers:
    """Every technique on one deployment under one load."""

    deployment: Deployment
    scene: Scene
    base: Outcome
    found: tuple[Lever, ...]

    @property
    def possible(self) -> list[Lever]:
        """Techniques that can be applied."""
        return [lever for lever in self.found if lever.gains]

    @property
    def impossible(self) -> list[Lever]:
        """Techniques that cannot, with the reason."""
        return [lever for lever in self.found if not lever.gains]

    def ranked(self, by: str = "tpot") -> list[Lever]:
        """Possible techniques, the largest gain first; by tpot, ttft, throughput, peak (fullest batch) or usd."""
        if by not in GAINS:
            raise InputError(f"by: '{by}' is not one of {', '.join(GAINS)}")
        return sorted(self.possible, key=lambda lever: -_finite(lever.gains[by]))

    def best_of_families(self, by: str = "tpot") -> list[Lever]:
        """The best setting of each family, ranked."""
        seen: dict[str, Lever] = {}
        for lever in self.ranked(by):
            seen.setdefault(lever.family, lever)
        return list(seen.values())

    def conflicts(self, by: str = "tpot") -> list[tuple[str, str, str]]:
        """Pairs among the best of each family that gain who take from each other, and why."""
        top = [lever for lever in self.best_of_families(by) if lever.gains[by] > 1.0]
        return [(a.name, b.name, why) for i, a in enumerate(top) for b in top[i + 1 :] if (why := a.conflicts_with(b))]

    @cached_property
    def elasticities(self) -> list[Elasticity]:
        """What +10 % of each resource would bring."""
        return elasticities(self.deployment, self.scene, self.base)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return plain({
            "deployment": str(self.deployment), "scene": asdict(self.scene), "base": asdict(self.base),
            "levers": [asdict(lever) | {"cuts": [str(c) for c in lever.cuts]} for lever in self.found],
            "elasticities": [asdict(e) for e in self.elasticities],
            "conflicts": self.conflicts(),
        })  # fmt: skip

    def to_pandas(self):
        """One row a technique: family, name, what it cuts, gains, assumptions."""
        import pandas as pd

        rows = [
            {"family": x.family, "name": x.name, "cuts": ", ".join(x.cuts), **{g: x.gains.get(g) for g in GAINS},
             "assumes": x.assumes, "why_not": x.why_not}
            for x in self.found
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        from roofline.techniques.text import to_text

        return to_text(self)

    __repr__ = __str__


def _finite(value: float) -> float:
    return value if value == value else 0.0


def levers(
    model: Any = EXAMPLE_MODEL,
    hw: Any = EXAMPLE_HARDWARE,
    *,
    isl: float = 1024,
    osl: float = 256,
    concurrency: float = 16,
    cached: float = 0,
    usd_per_h: float | None = None,
    assumed: Assumed | None = None,
    families: Iterable[str] | None = None,
    speculation: str | Speculation | None = None,
    **layout: Any,
) -> Levers:
    """Every technique evaluated on a deployment under a load, to be ranked.

    Args:     model, hw, and tp, pp, ep, dp, cp, weights, kv, engine, specs as in `estimate`, or a Deployment as model;
              isl, osl, cached [tokens]; concurrency [requests in flight on the replica]; usd_per_h of one device;
              assumed: hit rates, acceptance and the like that techniques need; families: only these; speculation: of
              the deployment, as in `estimate`
    Returns:  Levers
    Assumes:  each technique alone, everything else as it is; gains do not simply multiply (`conflicts`)
    Errors:   NotPossibleError where the deployment itself does not fit
    """
    where = model if isinstance(model, Deployment) else deployed(model, hw, **layout)
    where = speculating(where, speculation, layout.get("specs"))
    scene = Scene(
        float(check_number("isl", isl, low=1, high=1e9)), float(check_number("osl", osl, low=1, high=1e9)),
        float(check_number("concurrency", concurrency, low=1, high=1e7)),
        float(check_number("cached", cached, low=0, high=isl - 1)), usd_per_h,
    )  # fmt: skip
    specs = layout.get("specs")
    assumed = Assumed(specs=specs) if assumed is None else replace(assumed, specs=assumed.specs or specs)
    price = usd_per_h
    if price is None:
        found = quote(where.accelerator, specs=specs)
        price = float("nan") if found is None else found.usd_per_hour
    base = outcome(where, scene, price)
    tried = [what for source in CATALOGUE for what in source(where, scene, price, assumed)]
    wanted = FAMILIES if families is None else [families] if isinstance(families, str) else list(families)
    for family in wanted:
        if family not in FAMILIES:
            raise UnknownNameError("family of techniques", str(family), FAMILIES)
    return Levers(where, scene, base, tuple(_lever(what, base) for what in tried if what.family in wanted))


def _lever(what: WhatIf, base: Outcome) -> Lever:
    try:
        result = what.evaluate()
    except RooflineError as error:
        return Lever(what.family, what.name, what.cuts, what.assumes, None, {}, str(error))
    if result.seated < CROWDED_OUT * base.seated:
        why_not = f"room for the KV of {result.seated:.0%} of the requests at a time: the others wait"
        return Lever(what.family, what.name, what.cuts, what.assumes, None, {}, why_not)
    return Lever(what.family, what.name, what.cuts, what.assumes, result, result.gains_over(base))
