"""An analytic 70B on four H100s, for tests that need step costs but no step model."""

import numpy as np

from roofline.simulation.costs import StepCosts, from_terms

WEIGHT_BYTES = 70.6e9 * 2 / 4  # bf16 over four ranks
KV_BYTES = 2 * 80 * 8 * 128 * 2 / 4  # per token and rank
BANDWIDTH = 3.35e12 * 0.85
FLOPS = 989.4e12 * 0.65


def llama_70b_tp4(max_batch: int = 256, **extra) -> StepCosts:
    """Weights and KV over bandwidth, 2 FLOPs a weight, 4 x 80 x 8192 FLOPs a pair, 3 ms of launches and collectives."""
    batch = np.arange(1, max_batch + 1)
    weights = np.maximum(WEIGHT_BYTES / BANDWIDTH, 2 * 70.6e9 / 4 * batch / FLOPS)
    return from_terms(
        weights + 3e-3 + 5e-6 * batch,
        KV_BYTES / BANDWIDTH,
        prompt_token_s=2 * 70.6e9 / 4 / FLOPS,
        pair_s=4 * 80 * 8192 / 4 / 2 / (989.4e12 * 0.5),
        **({"eager_s": 2e-3, "launch_floor_s": 60e-3} | extra),
    )
