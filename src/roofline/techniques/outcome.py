"""What a deployment does under a load, in the numbers by which techniques are ranked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.deployment import Deployment
from roofline.economics import usd_per_mtok
from roofline.errors import RooflineError
from roofline.serving.steady import SteadyState, steady_state

POINTS = 24  # concurrencies between one and the fullest, where the peak is looked for
GAINS = ("tpot", "ttft", "throughput", "peak", "usd")


@dataclass(frozen=True, slots=True)
class Scene:
    """The load under which techniques are compared: the same for all."""

    isl: float
    osl: float
    concurrency: float  # of one replica
    cached: float = 0.0
    usd_per_h: float | None = None  # of one device, in place of the price list's


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies and rates at the load, and at the fullest that the replica can run. Per device where so named."""

    ttft_s: float
    tpot_s: float
    tokens_per_s_gpu: float
    peak_tokens_per_s_gpu: float
    usd_per_mtok: float  # all cost over output tokens, at the load; NaN without a price
    peak_concurrency: float
    gpus: int
    osl: float
    seated: float = 1.0  # share of the requests whose KV there is room for at a time

    def gains_over(self, base: Outcome) -> dict[str, float]:
        """How many times better than `base`, by name of GAINS: above 1 is better.

        Formula:  base / this for times and cost, this / base for rates
        """
        return {
            "tpot": base.tpot_s / self.tpot_s,
            "ttft": base.ttft_s / self.ttft_s,
            "throughput": self.tokens_per_s_gpu / base.tokens_per_s_gpu,
            "peak": self.peak_tokens_per_s_gpu / base.peak_tokens_per_s_gpu,
            "usd": base.usd_per_mtok / self.usd_per_mtok,
        }


class NotPossibleError(RooflineError):
    """A technique that does not apply here; the message says why."""


def outcome(where: Deployment, scene: Scene, usd_per_h: float) -> Outcome:
    """The outcome of a deployment under a load.

    Args:     usd_per_h: of one device [USD/h], NaN where not known
    Errors:   NotPossibleError where it does not fit
    """
    memory = where.footprint(scene.isl + scene.osl)
    if not bool(memory.fits):
        raise NotPossibleError(f"does not fit: {memory.failure}")
    fullest = max(float(memory.max_concurrency) * where.plan.dp, 1.0)
    points = np.concatenate(([scene.concurrency], np.geomspace(1.0, fullest, POINTS)))
    state = _closed(where, scene, points)
    if not bool(np.all(state.feasible)):
        raise NotPossibleError("its KV pool does not hold one running request")
    rate = np.asarray(state.tokens_per_s, float) / where.plan.gpus
    best = 1 + int(np.argmax(rate[1:]))
    return Outcome(
        float(np.broadcast_to(state.ttft_s, points.shape)[0]), float(np.broadcast_to(state.tpot_s, points.shape)[0]),
        float(rate[0]), float(max(rate[best], rate[0])), float(usd_per_mtok(usd_per_h, rate[0])), float(points[best]),
        where.plan.gpus, scene.osl, min(float(np.ravel(state.batch)[0]) / scene.concurrency, 1.0),
    )  # fmt: skip


def _closed(where: Deployment, scene: Scene, concurrency) -> SteadyState:
    return steady_state(where, isl=scene.isl, osl=scene.osl, concurrency=concurrency, cached=scene.cached)


def running(where: Deployment, scene: Scene) -> float:
    """Sequences that decode together at the load."""
    return max(float(_closed(where, scene, scene.concurrency).batch), 1.0)
