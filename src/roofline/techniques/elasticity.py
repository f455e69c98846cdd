"""What ten per cent more of one resource would bring: bandwidth, FLOP/s, capacity, links, launches."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.deployment import Deployment
from roofline.specs.engine import Engine
from roofline.specs.hardware import Accelerator, Achieved
from roofline.techniques.outcome import NotPossibleError, Outcome, Scene, outcome

MORE = 1.1
RESOURCES = ("bandwidth", "FLOP/s", "HBM capacity", "link bandwidth", "launch speed")


@dataclass(frozen=True, slots=True)
class Elasticity:
    """Gains from 10 % more of a resource: 0.05 is 5 % better."""

    resource: str
    tpot: float
    ttft: float
    throughput: float
    peak: float


def with_more(d: Deployment, resource: str, factor: float = MORE) -> Deployment:
    """The deployment with `factor` times as much of a resource; calibrated fractions of it stay.

    Launch speed: every fixed time of kernels, links and host is divided by the factor.
    """
    a, engine = d.accelerator, d.engine
    if resource == "bandwidth":
        a = a.model_copy(update={"memory": a.memory.model_copy(update={"bandwidth": a.memory.bandwidth * factor})})
    elif resource == "FLOP/s":
        c = a.compute
        more = {"dense": {fmt: rate * factor for fmt, rate in c.dense.items()}}
        if c.fp16_sums is not None:
            more["fp16_sums"] = c.fp16_sums * factor
        a = a.model_copy(update={"compute": c.model_copy(update=more)})
    elif resource == "HBM capacity":
        fields = ("capacity", "usable", "driver_total")
        more = {f: v * factor for f in fields if (v := getattr(a.memory, f)) is not None}
        a = a.model_copy(update={"memory": a.memory.model_copy(update=more)})
    elif resource == "link bandwidth":
        a = _linked(a, factor)
    else:
        a, engine = _prompt(a, factor), _quick(engine, factor)
    return d.with_(accelerator=a, engine=engine)


def _linked(a: Accelerator, factor: float) -> Accelerator:
    changed = {}
    for block, fields in (("scale_up", ("bandwidth", "pair_bandwidth")), ("scale_out", ("bandwidth",)),
                          ("host", ("bandwidth",))):  # fmt: skip
        found = getattr(a, block)
        if found is not None:
            more = {f: v * factor for f in fields if (v := getattr(found, f)) is not None}
            changed[block] = found.model_copy(update=more)
    return a.model_copy(update=changed)


def _prompt(a: Accelerator, factor: float) -> Accelerator:
    def faster(entry: Achieved) -> Achieved:
        constants = {k: v / factor if k.endswith("_s") else v for k, v in entry.constants.items()}
        return entry.model_copy(update={"constants": constants})

    return a.model_copy(update={"achieved": {op: tuple(map(faster, rows)) for op, rows in a.achieved.items()}})


def _quick(engine: Engine, factor: float) -> Engine:
    step = engine.step
    times = {f: getattr(step, f) / factor for f in type(step).model_fields if f.endswith("_s")}
    return engine.model_copy(update={"step": step.model_copy(update=times)})


def elasticities(d: Deployment, scene: Scene, base: Outcome | None = None) -> list[Elasticity]:
    """What +10 % of each resource brings at this load, largest gain in TPOT first.

    Formula:  base / changed - 1 for times, changed / base - 1 for rates
    Returns:  list of Elasticity; bandwidth, FLOP/s, links and launches together explain a step: their gains in TPOT
              add up to about 10 %
    Assumes:  calibrated fractions of the peaks stay as they are
    Source:   definition
    """
    price = float("nan")
    start = base or outcome(d, scene, price)
    out = []
    for resource in RESOURCES:
        try:
            gains = outcome(with_more(d, resource), scene, price).gains_over(start)
        except NotPossibleError:
            continue
        out.append(Elasticity(resource, *(gains[k] - 1.0 for k in ("tpot", "ttft", "throughput", "peak"))))
    return sorted(out, key=lambda e: -e.tpot)
