"""How one call is timed: warm-up, cold caches, enough samples, and robust statistics of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from roofline.errors import InputError

if TYPE_CHECKING:
    from roofline.measure.device import Device

Call = Callable[[], object]

WARM_UPS = 3  # calls before the first timed one: lazy initialisation, autotuning, clocks
FEWEST, MOST = 5, 200  # samples of one case
BLOCK = 5  # samples between two looks at the budget


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: median, spread and how many were timed."""

    time_s: float
    p10_s: float
    p90_s: float
    samples: int

    def to_dict(self) -> dict[str, float]:
        """As plain data, seconds to five significant digits."""
        return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in asdict(self).items()}


def summary(samples: Sequence[float], per: float = 1.0) -> Timing:
    """The timing of samples that each took `per` calls.

    >>> summary([2.0, 4.0, 3.0], per=2).time_s
    1.5
    """
    values = np.asarray(samples, float) / per
    if not len(values) or not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise InputError("a call took no measurable time: the clock of this device is too coarse for it")
    low, middle, high = (float(q) for q in np.quantile(values, (0.1, 0.5, 0.9)))
    return Timing(middle, low, high, len(values))


def time_calls(
    device: Device, calls: Sequence[Call], *, budget_s: float, cold: bool = True, per: float = 1.0
) -> Timing:
    """The timing of a call, cycling through `calls`: the same work on buffers of their own.

    Args:     calls: at least one; budget_s: stop sampling after about so long, but not before FEWEST samples;
              cold: caches are evicted before every sample, as weights and cache are when a step comes round again;
              per: executions inside one call
    """
    for i in range(WARM_UPS):
        calls[i % len(calls)]()
    device.synchronize()
    samples: list[float] = []
    spent = 0.0
    while len(samples) < FEWEST or (spent < budget_s and len(samples) < MOST):
        block = device.samples([calls[(len(samples) + i) % len(calls)] for i in range(BLOCK)], cold=cold)
        samples += block
        spent += sum(block)
    return summary(samples, per)
