"""The page about a plan: what was asked, the cheapest fleet, why it and no other, what would change it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from roofline.display import load_text, number, seconds
from roofline.errors import RooflineError
from roofline.explain import EVIDENCE
from roofline.handoff import launch_plan
from roofline.planner.text import DEAR, answers
from roofline.planner.variants import by_devices, refused, variants
from roofline.report import estimate_page
from roofline.report.page import Shown, Table, Wanted, check_kinds, figures_of, memory_table, op_table, template

if TYPE_CHECKING:
    from roofline.estimates import Estimate
    from roofline.planner import Recommendation
    from roofline.planner.fleet import Fleet
    from roofline.planner.offers import Offer

MOST_ROWS = 12  # of a table of fleets
MOST_REFUSED = 40
ROLES = {"replica": "One replica", "prefill": "One prefill worker", "decode": "One decode worker"}

# Figures of one member, in order, by its role
DECODE: Wanted = ("waterfall", {"step": "decode"}, "Where the time of a token goes")
PREFILL: Wanted = ("waterfall", {"step": "prefill"}, "Where the time to the first token goes")
ROOFLINE: Wanted = ("roofline", {}, "The ops under the roofline")
REGIMES: Wanted = ("regimes", {}, "What decoding waits for, and where that changes")
MEMORY: Wanted = ("memory", {}, "What fits")
LAYOUTS: Wanted = ("frontier", {}, "What other layouts and loads would give")
MEMBER_FIGURES = {  # by role; of a second kind of replica fewer
    "replica": (DECODE, PREFILL, ROOFLINE, REGIMES, MEMORY, LAYOUTS),
    "second": (DECODE, PREFILL, MEMORY),
    "prefill": (PREFILL, MEMORY),
    "decode": (DECODE, REGIMES, MEMORY),
}
ASSUMED = (
    "Requests are dealt to replicas in proportion to what each carries within the objective, and arrive at random.",
    "Percentiles come from a gamma distribution with the mean and spread of each latency.",
    "Prices are per device-hour and do not depend on how many are rented; a month has 730.5 hours.",
    "Peaks are dense, link bandwidths are per device and direction, bands are 80 % intervals.",
)
NOT_MODELLED = (
    "replicas that share one queue (each has its own here, which is pessimistic)",
    "autoscaling over the day: the fleet is sized for the load that was given",
    "failures that last longer than the spares allow",
    "networks between racks",
)


@dataclass(frozen=True, slots=True)
class Member:
    """One kind of replica of the fleet, as the page shows it."""

    anchor: str
    heading: str
    load: str
    violations: list[str]
    cards: list[tuple[str, str, str]]
    evidence: str
    evidence_text: str
    figures: list[Shown]
    tables: list[Table]


def html_page(
    r: Recommendation,
    *,
    command: str | None = None,
    question: str | None = None,
    figures: Iterable[str] | None = None,
    date: str = "",
) -> str:
    """The page as text.

    Args:     command: the line that reproduces it, None: made from the plan; question: in place of the one made from
              the traffic; figures: kinds, None: all that apply; date: printed at the top
    Returns:  HTML that needs no network and runs no script
    Errors:   InputError where jinja2 is not installed; UnknownNameError for figures that there are not
    """
    page = template("plan.html.j2")
    kinds = None if figures is None else set(figures)
    check_kinds(kinds or ())
    estimates = r.estimates()
    members = [member(r, i, e, kinds) for i, e in enumerate(estimates)]
    frontier = [("cost", {}, "Cost against speed of whole fleets")] if kinds is None or "cost" in kinds else []
    shown, left_out = figures_of(r, frontier, "plan")
    launch, no_launch = started(r)
    return page.render(
        title=f"Plan for {model_of(r)}",
        question=question or question_of(r),
        lead=[str(r.traffic), str(r.slo)],
        asked=asked(r),
        fleet=fleet_lines(r),
        cards=cards(r),
        answers=answers(r),
        figures=shown,
        choice=choice(r),
        changes=changes(r),
        refused=refusals(r),
        members=members,
        launch=launch,
        no_launch=no_launch,
        assumptions=assumptions(r, estimates),
        sources=merged(e.sources for e in estimates),
        not_modelled=[
            *NOT_MODELLED,
            *merged(not_modelled(e) for e in estimates),
            *(f"figure '{kind}': {why}" for kind, why in left_out.items()),
        ],
        command=command or command_of(r),
        date=date,
    )


def model_of(r: Recommendation) -> str:
    return r.fleet.members[0][0].deployment.model.name


def pool(o: Offer) -> str:
    return "" if o.role == "replica" else f" ({o.role} pool)"


def merged(several: Iterable[Iterable[str]]) -> list[str]:
    """Texts of several lists, each once, in order."""
    return list(dict.fromkeys(text for texts in several for text in texts))


def question_of(r: Recommendation) -> str:
    """What the page answers, as a sentence."""
    limits = " within these limits" if r.slo.limits else ""
    return f"What is the cheapest fleet that serves {model_of(r)} to {r.traffic.rate_per_s:,.4g} requests/s{limits}?"


def asked(r: Recommendation) -> list[tuple[str, str, str]]:
    """Traffic, objective, money and what was allowed: (name, value, remark)."""
    t = r.traffic
    tokens = (
        f"{number(t.tokens_per_s)} input and output tokens/s, {number(t.tokens_per_s * 86400.0 / 1e6)} million a day"
    )
    bursts = "random arrivals (Poisson)" if t.arrivals_cv2 == 1.0 else f"gaps vary with cv² {t.arrivals_cv2:.3g}"
    spared = f"{r.fleet.spares} may be down" if r.fleet.spares else "none may be down"
    prices = ", ".join(
        f"{name} {usd:.2f}" + (" (as given)" if r.price_sources[name] == "as given" else "")
        for name, usd in r.usd_per_h_of.items()
    )
    budget = "no limit" if r.budget_usd_per_h is None else f"{r.budget_usd_per_h:,.2f} USD/h"
    used = "" if not r.budget_usd_per_h else f"{r.usd_per_h / r.budget_usd_per_h:.0%} of it is used"
    return [
        ("traffic", str(t), f"{tokens}; {bursts}; {t.source}"),
        ("objective", str(r.slo), ""),
        ("budget", budget, used),
        ("spares", spared, "of prefill and decode pools: of each" if r.fleet.spares else ""),
        ("allowed", f"{len(r.usd_per_h_of)} devices, {r.tried} layouts", f"USD/h of a device: {prices}"),
    ]


def cards(r: Recommendation) -> list[tuple[str, str, str]]:
    """The five numbers that a reader looks for: (name, value, what to hold it against)."""
    replicas = sum(n for _, n in r.fleet.members)
    word = "worker" if r.fleet.disaggregated else "replica"
    found = [
        ("USD per hour", f"{r.usd_per_h:,.2f}", f"{r.usd_per_month:,.0f} a month"),
        ("Devices", str(r.fleet.gpus), f"in {replicas} {word}{'s' * (replicas != 1)}"),
    ]
    for name in ("ttft_s", "tpot_s"):
        limit = r.slo.limits.get(name)
        told = "no limit" if limit is None else f"limit {seconds(limit)}"
        found.append((r.slo.name_of(name), seconds(r.latencies[name]), told))
    blended = f"{number(r.usd_per_mtok_blended)} over input and output"
    return [*found, ("USD per Mtok of output", number(r.usd_per_mtok_output), blended)]


def fleet_lines(r: Recommendation) -> list[tuple[str, str]]:
    """Each kind of replica of the choice: what, and what one carries for which price."""
    return [
        (
            f"{n} x [{o.deployment}]" + pool(o),
            f"each carries {capacity:.3g} requests/s within the objective; a device {o.usd_per_h:.2f} USD/h",
        )
        for (o, n), capacity in zip(r.fleet.members, r.fleet.capacities)
    ]


def against(r: Recommendation, fleet: Fleet) -> str:
    """A fleet's cost against that of the choice."""
    same = str(fleet) == str(r.fleet)
    return "the choice" if same else f"{fleet.usd_per_h / r.usd_per_h - 1.0:+.0%}" if r.usd_per_h else ""


def fleet_table(title: str, r: Recommendation, fleets: Iterable[Fleet], remark: str = "") -> Table:
    """Fleets beside the chosen one."""
    rows = tuple(
        (str(f), str(f.gpus), f"{f.usd_per_h:,.2f}", against(r, f), number(f.capacity_per_s)) for f in fleets
    )  # fmt: skip
    return Table(title, ("fleet", "devices", "USD/h", "difference", "carries, 1/s"), rows, 1, remark, wrapped=True)


def choice(r: Recommendation) -> list[Table]:
    """The other fleets that keep the objective, and the frontier."""
    found = []
    if r.search is not None:
        fleets = [f for f in r.search.fleets(r.slo) if f.usd_per_h <= DEAR * r.usd_per_h]
        other = [f for f in by_devices(fleets) if str(f) != str(r.fleet)]
        same = [f for f in fleets if f.hardware <= r.fleet.hardware and str(f) != str(r.fleet)]
        carried = "What they carry is counted with the spares down." if r.fleet.spares else ""
        for title, few, remark in (
            ("Other devices", other, "The cheapest fleet of each other set of devices that keeps the objective."),
            ("Other layouts", same, "On the chosen devices alone, also within the objective."),
        ):
            more = f"The {MOST_ROWS} cheapest of {len(few)}." if len(few) > MOST_ROWS else ""
            if few:
                remark = " ".join(text for text in (remark, carried, more) if text)
                found.append(fleet_table(title, r, [r.fleet, *few[:MOST_ROWS]], remark))
    points = r.frontier_below(DEAR)
    rows = tuple(
        (f"{p.replicas} x [{p.fleet}]", str(p.gpus), f"{p.usd_per_h:,.2f}", seconds(p.ttft_s), seconds(p.tpot_s))
        for p in points[:MOST_ROWS]
    )
    if rows:
        remark = (
            "Fleets of like replicas for this load that no other beats in cost, TTFT and TPOT at once, all replicas "
            "up. Limits are left aside here: what costs less than the choice misses one, or would with the spares down."
        )
        header = ("fleet", "devices", "USD/h", "TTFT p90", "TPOT p90")
        found.append(Table("The frontier", header, rows, 1, remark, wrapped=True))
    return found


def changes(r: Recommendation) -> list[Table]:
    """The choice if load, limits, spares, prices or the error of the model were different."""
    found = []
    slow = r.pessimistic
    rows = [("times at the slow end of the 80 % band", slow)]
    if r.search is not None:
        rows += [(v.change, v.fleet) for v in variants(r.search, r.slo)]
    found.append(
        Table(
            "Load, limits, spares, error", ("if", "the cheapest fleet would be", "USD/h", "difference"),
            tuple(
                (what, "nothing that is allowed", "", "") if f is None else
                (what, str(f), f"{f.usd_per_h:,.2f}", against(r, f)) for what, f in rows
            ), 2, "Each alone, everything else as asked.", wrapped=True,
        )
    )  # fmt: skip
    if r.wins_below_usd_per_h:
        flips = sorted(r.wins_below_usd_per_h.items(), key=lambda kv: -kv[1] / max(r.usd_per_h_of[kv[0]], 1e-12))
        found.append(
            Table(
                "Prices", ("device", "USD/h now", "would win below", "cheaper by"),
                tuple(
                    (name, f"{r.usd_per_h_of[name]:.2f}", f"{below:.2f}", f"{1.0 - below / r.usd_per_h_of[name]:.0%}")
                    for name, below in flips
                ), 1, "The price at which a fleet of that device alone would cost what the choice costs.",
            )
        )  # fmt: skip
    return found


def refusals(r: Recommendation) -> list[Table]:
    """Layouts that fit and miss a limit at any load, and layouts that cannot run."""
    found = []
    missed = [] if r.search is None else refused(r.search, r.slo)
    for title, rejections in (("Too slow", missed), ("Does not run", r.rejections)):
        if rejections:
            more = len(rejections) - MOST_REFUSED
            remark = f"The first {MOST_REFUSED} of {len(rejections)}." if more > 0 else ""
            rows = tuple((x.what, x.why) for x in rejections[:MOST_REFUSED])
            found.append(Table(title, ("layout", "why"), rows, 2, remark, wrapped=True))
    return found


def member(r: Recommendation, place: int, e: Estimate, kinds: set[str] | None) -> Member:
    """One kind of replica at its share of the load; of a worker of a pool, its own step alone."""
    o, n = r.fleet.members[place]
    figures = MEMBER_FIGURES["second" if place and o.role == "replica" else o.role]
    limits = {f"slo_{name}": v for name, v in r.slo.limits.items() if name in ("ttft_s", "tpot_s")}
    wanted = [
        (kind, {**options, **(limits if kind == "frontier" else {})}, heading)
        for kind, options, heading in figures if kinds is None or kind in kinds
    ]  # fmt: skip
    shown, _ = figures_of(e, wanted, f"m{place}")
    steps = {"prefill": [op_table("Prefill, per device", e.prefill_table)],
             "decode": [op_table("Decode step, per device", e.decode_table)]}  # fmt: skip
    told = {
        "replica": f"{load_text(e)}, its share of the load. Numbers are means over requests of the mean length.",
        "prefill": f"A prompt of {number(e.isl)} tokens in one pass.",
        "decode": f"{e.batch:.3g} sequences decode together, on average.",
    }
    return Member(
        f"member-{place}", f"{ROLES[o.role]}: {o.deployment}", f"{n} of them. {told[o.role]}",
        e.violations if o.role == "replica" else [], estimate_page.cards(e) if o.role == "replica" else [],
        e.evidence, EVIDENCE[e.evidence], shown,
        [*steps.get(o.role, steps["decode"] + steps["prefill"]), memory_table(e)],
    )  # fmt: skip


def not_modelled(e: Estimate) -> list[str]:
    """What the estimate of a member leaves out; queueing before the workers of a pool is part of the plan."""
    return replace(e, load="open loop").not_modelled


def started(r: Recommendation) -> tuple[str | None, str]:
    """The launch script, or why there is none."""
    engine = r.fleet.members[0][0].deployment.engine.name
    try:
        return launch_plan(r, engine), ""
    except RooflineError as error:
        return None, f"No launch command: {error}."


def assumptions(r: Recommendation, estimates: Iterable[Estimate]) -> list[str]:
    """What was taken for granted, as sentences."""
    several = list(estimates)
    paid = merged((f"Price of {e.deployment.accelerator.name}: {r.price_sources[e.deployment.accelerator.name]}.",)
                  for e in several)  # fmt: skip
    each = merged(estimate_page.setting(e) for e in several)
    return [*each, *paid, *ASSUMED, *(f"{text[:1].upper()}{text[1:]}." for text in r.notes)]


def command_of(r: Recommendation) -> str:
    """The command line that asks for this plan again; lengths that vary have to come from their trace."""
    t, slo = r.traffic, r.slo
    words = ["roofline", "plan", model_of(r), "--hw", ",".join(r.usd_per_h_of), "--rate", f"{t.rate_per_s:g}"]
    words += ["--isl", f"{float(t.isl.mean):g}", "--osl", f"{float(t.osl.mean):g}"]
    words += ["--hit-rate", f"{t.hit_rate:g}"] if t.hit_rate else []
    for name, limit in slo.limits.items():
        share = slo.share_of(name)
        words += [f"--{name[:-2]}", f"{limit * 1e3:g}ms@" + ("mean" if share is None else f"p{100 * share:g}")]
    words += ["--goodput", f"{slo.goodput:g}"] if slo.goodput is not None else []
    given = [f"{name}={usd:g}" for name, usd in r.usd_per_h_of.items() if r.price_sources[name] == "as given"]
    words += [word for text in given for word in ("--price", text)]
    words += ["--budget", f"{r.budget_usd_per_h:g}"] if r.budget_usd_per_h is not None else []
    words += ["--spares", str(r.fleet.spares)] if r.fleet.spares else []
    if r.search is not None:
        tried = [o.deployment for o in r.search.offers]
        words += ["--weights", ",".join(merged([d.precision.name] for d in tried))]
        words += ["--kv", ",".join(merged([d.precision.kv.name] for d in tried))]
        words += ["--engine", ",".join(merged([d.engine.name] for d in tried))]
        words += ["--max-gpus", str(max(d.plan.gpus for d in tried))]
        words += [] if r.search.mix else ["--no-mix"]
        words += [] if r.search.prefills else ["--no-disaggregation"]
        words += ["--cross-vendor"] if r.search.cross_vendor else []
    return shlex.join(words)
