"""How much load a replica takes: until it saturates, and until its users have waited too long."""

from __future__ import annotations

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError
from roofline.serving.lengths import Lengths
from roofline.serving.steady import steady_state

HALVINGS = 16  # of the interval in which the rate lies: 0.0015 % of the saturation rate


def saturation_rate(deployment: Deployment, *, isl: Array | Lengths, osl: Array | Lengths, **load) -> Array:
    """Requests per second beyond which a replica falls behind.

    Formula:  seats / (O tpot(seats)) per rank, times the ranks
    Args:     isl, osl [tokens]; load: cached, prefixes, max_seqs and knobs as for `steady_state`
    Returns:  [1/s]
    Source:   Little's law at the fullest batch
    """
    probe = 1.0
    return probe / steady_state(deployment, isl=isl, osl=osl, rate_per_s=probe, **load).utilisation


def goodput(
    deployment: Deployment,
    *,
    isl: Array | Lengths,
    osl: Array | Lengths,
    ttft_s: Array = np.inf,
    tpot_s: Array = np.inf,
    e2e_s: Array = np.inf,
    quantile: float = 0.9,
    **load,
) -> Array:
    """Largest rate at which a share `quantile` of the requests meets every limit, in requests per second.

    Formula:  bisection over the rate; the quantile of each of TTFT, TPOT and end-to-end time is held to its limit
    Args:     isl, osl [tokens]; ttft_s, tpot_s, e2e_s [s]: limits; quantile [-]; load: cached, prefixes, arrivals_cv2,
              max_seqs and knobs as for `steady_state`
    Returns:  [1/s], 0 where a single request is too slow already
    Assumes:  times grow with the rate; each limit by itself (the share that meets all of them is a little less)
    Source:   DistServe (Zhong et al. 2024): goodput
    """
    if not 0.0 < quantile < 1.0:
        raise InputError(f"quantile: {quantile!r}; allowed: between 0 and 1")
    highest = saturation_rate(deployment, isl=isl, osl=osl, **{k: v for k, v in load.items() if k != "arrivals_cv2"})

    def meets(rate: Array) -> Array:
        state = steady_state(deployment, isl=isl, osl=osl, rate_per_s=rate, **load)
        limits = ((state.ttft, ttft_s), (state.tpot, tpot_s), (state.e2e, e2e_s))
        return np.logical_and.reduce(np.broadcast_arrays(*(spread.at(quantile) <= limit for spread, limit in limits)))

    low = np.zeros(np.broadcast_shapes(*(np.shape(x) for x in (highest, ttft_s, tpot_s, e2e_s))))
    high = low + highest
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        good = meets(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return low[()]
