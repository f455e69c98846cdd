"""The ways in which a model can be laid over devices of one kind: what a planner tries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from roofline.deployment import Deployment
from roofline.errors import InfeasibleError, RooflineError
from roofline.machine import CARDS_PER_HOST
from roofline.memory import fewest_gpus
from roofline.parallel import Plan
from roofline.precision import Precision
from roofline.specs.engine import Engine
from roofline.specs.hardware import Accelerator
from roofline.specs.model import Model
from roofline.speculative import Speculation, speculating

MAX_GPUS = 32  # of one replica
MAX_TP = 16
STAGES = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A layout that was not tried further, and why."""

    what: str
    why: str


def plans(model: Model, accelerator: Accelerator, max_gpus: int = MAX_GPUS) -> Iterator[Plan]:
    """Layouts worth a try, small ones first.

    Tensor parallelism inside the scale-up domain (eight PCIe cards share a host), pipeline stages across domains, and
    for mixtures of experts expert parallelism and attention data parallelism. Devices that nothing connects stand
    alone. What divides is checked later.
    """
    max_gpus = max_gpus if accelerator.connected else 1
    inside = accelerator.domain if accelerator.scale_up else CARDS_PER_HOST
    widths = [2**i for i in range(7) if 2**i <= min(inside, max_gpus)]
    found: list[Plan] = []
    for n in widths:
        if n <= MAX_TP:
            found += [Plan(tp=n, pp=pp) for pp in STAGES if n * pp <= max_gpus and (pp == 1 or n >= min(inside, 8))]
        if model.is_mixture and n > 1:
            found += [Plan(tp=n, ep=n)] if n <= MAX_TP else []
            found += [Plan(tp=1, dp=n, ep=n)]
            found += [Plan(tp=n // 2, dp=2, ep=n)] if 4 <= n <= 2 * MAX_TP else []
    if model.is_mixture:  # wide expert parallelism over the network between domains
        found += [Plan(tp=1, dp=n, ep=n) for n in (16, 32) if inside < n <= max_gpus]
    return iter(sorted(dict.fromkeys(found), key=lambda p: p.gpus))


def candidates(
    model: Model,
    accelerators: Iterable[Accelerator],
    precisions: Iterable[Precision],
    engines: Iterable[Engine],
    longest: float,
    max_gpus: int = MAX_GPUS,
    speculation: str | Speculation | None = None,
    specs: str | Path | None = None,
) -> tuple[list[Deployment], list[Rejection]]:
    """Deployments that start and hold at least one request of `longest` tokens, and those that do not.

    Args:     speculation: of all of them, see `speculating`
    Returns:  (deployments, rejections); nothing here depends on load, objectives or prices
    """
    good: list[Deployment] = []
    bad: list[Rejection] = []
    for accelerator in accelerators:
        for precision in precisions:
            for engine in engines:
                for plan in plans(model, accelerator, max_gpus):
                    tried = speculating(Deployment(model, accelerator, plan, precision, engine), speculation, specs)
                    why = obstacle(tried, longest)
                    if why is None:
                        good.append(tried)
                    else:
                        bad.append(Rejection(str(tried), why))
    return good, bad


def obstacle(tried: Deployment, longest: float) -> str | None:
    """Why a deployment cannot run at all; None where it can."""
    runs_on = tried.engine.vendors
    if runs_on and tried.accelerator.vendor not in runs_on:
        return f"{tried.engine.name} does not run on {tried.accelerator.vendor} devices"
    try:
        memory = tried.footprint(longest)
        if not bool(memory.fits):
            return memory.failure or "does not fit"
        tried.check()
    except InfeasibleError as error:
        return str(error)
    except RooflineError as error:  # a format or layer that is not modelled on this device
        return str(error)
    return None


def smallest(model: Model, accelerator: Accelerator, precision: Precision, engine: Engine, longest: float) -> str:
    """What the smallest layout that fits would be, in words."""
    found = fewest_gpus(model, accelerator, precision, engine, longest)
    if found is None:
        return f"no layout of up to 64 {accelerator.name}"
    return f"{found[0].gpus} x {accelerator.name} ({found[0]})"
