"""What a sweep can be asked for at every point, and which direction is better."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.economics import board_power_w, joules_per_token, usd_per_mtok
from roofline.errors import InputError, UnknownNameError
from roofline.serving.queueing import Spread
from roofline.serving.steady import SteadyState


@dataclass(frozen=True, slots=True)
class Answers:
    """What one deployment does over a block of points; every field broadcasts."""

    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    tokens_per_s: Array  # output tokens of the replica
    isl: Array
    osl: Array
    gpus: int
    usd_per_h: Array  # of one device; NaN where no price is known
    tdp_w: float  # of one device; NaN where it is not published
    resident: Array  # requests of this length whose KV fits
    state: SteadyState | None = None

    def spread(self, latency: str) -> Spread:
        """How a latency differs from request to request."""
        if self.state is None:
            raise InputError(f"{latency}: percentiles need concurrency or rate_per_s; a static batch has none")
        return getattr(self.state, latency)


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of a sweep."""

    unit: str
    larger_is_better: bool
    value: Callable[[Answers], Array]


METRICS: dict[str, Metric] = {
    "ttft_s": Metric("s", False, lambda a: a.ttft_s),
    "tpot_s": Metric("s", False, lambda a: a.tpot_s),
    "e2e_s": Metric("s", False, lambda a: a.e2e_s),
    "tokens_per_s": Metric("1/s", True, lambda a: a.tokens_per_s),
    "tokens_per_s_user": Metric("1/s", True, lambda a: 1.0 / a.tpot_s),
    "tokens_per_s_gpu": Metric("1/s", True, lambda a: a.tokens_per_s / a.gpus),
    "requests_per_s": Metric("1/s", True, lambda a: a.tokens_per_s / a.osl),
    "usd_per_mtok_output": Metric("USD/Mtok", False, lambda a: usd_per_mtok(a.usd_per_h * a.gpus, a.tokens_per_s)),
    "usd_per_mtok_blended": Metric(
        "USD/Mtok", False, lambda a: usd_per_mtok(a.usd_per_h * a.gpus, a.tokens_per_s * (a.isl + a.osl) / a.osl)
    ),
    "joules_per_token": Metric(
        "J", False, lambda a: joules_per_token(board_power_w(a.tdp_w, 1.0) * a.gpus, a.tokens_per_s)
    ),
    "resident": Metric("requests", True, lambda a: a.resident),
    "running": Metric("requests", True, lambda a: a.state.batch if a.state else np.nan),
    "utilisation": Metric("", False, lambda a: a.state.utilisation if a.state else np.nan),
    "gpus": Metric("devices", False, lambda a: float(a.gpus)),
}
DEFAULT = (
    "ttft_s", "tpot_s", "e2e_s", "tokens_per_s", "tokens_per_s_user", "tokens_per_s_gpu", "usd_per_mtok_output",
    "usd_per_mtok_blended", "resident", "gpus",
)  # fmt: skip
_PERCENTILE = re.compile(r"(ttft|tpot|e2e)_p(\d{1,2}(?:\.\d+)?)_s")


def metric(name: str) -> Metric:
    """The metric of that name; `ttft_p90_s` and the like are percentiles over requests.

    >>> metric("tokens_per_s").larger_is_better, metric("tpot_p99_s").unit
    (True, 's')
    """
    if found := METRICS.get(name):
        return found
    if match := _PERCENTILE.fullmatch(name):
        latency, share = match[1], float(match[2]) / 100.0
        return Metric("s", False, lambda a: a.spread(latency).at(share))
    raise UnknownNameError("metric", name, [*METRICS, "ttft_p90_s", "tpot_p90_s", "e2e_p90_s"])
