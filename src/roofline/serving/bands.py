"""How far measured servers lie from the closed form: factors that turn a prediction into its 80 % band.

The factors are quantiles of measured / predicted over rows whose model was left out of the fit, by the kind of model,
widened until the band covers its share of every left-out model on average.
"""

from __future__ import annotations

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.specs.model import Model

Band = tuple[Array, Array]

# Kind of model -> 10 % and 90 % points of measured / predicted, leave-one-model-out.
TPOT: dict[str, tuple[float, float]] = {
    "dense": (0.89, 1.12), "gqa moe": (0.84, 1.17), "mla moe": (0.84, 1.28), "linear moe": (0.84, 1.25),
}  # fmt: skip
TTFT: dict[str, tuple[float, float]] = {
    "dense": (0.75, 1.25), "gqa moe": (0.75, 1.3), "mla moe": (0.7, 1.5), "linear moe": (0.7, 1.5),
}  # fmt: skip
POOLS_TPOT = (0.75, 1.25)
POOLS_TTFT = (0.4, 2.5)


def kind_of(model: Model) -> str:
    """The kind of model as far as errors differ: dense, or a mixture with grouped, latent or linear attention.

    Source: step errors by class; a model of none of these kinds counts as the nearest
    """
    layers = [run.layer for run in model.layer_runs]
    if not any(getattr(layer.ffn, "kind", "") == "moe" for layer in layers):
        return "dense"
    kinds = {getattr(layer.attention, "kind", "") for layer in layers}
    if "mla" in kinds:
        return "mla moe"
    return "gqa moe" if kinds <= {"gqa"} else "linear moe"


def tpot_band(where: Deployment) -> Band:
    """Factors of the 80 % band of TPOT."""
    return TPOT[kind_of(where.model)]


def ttft_band(where: Deployment) -> Band:
    """Factors of the 80 % band of TTFT."""
    return TTFT[kind_of(where.model)]


ONLINE = (0.88, 1.15)


def online_band(where: Deployment) -> Band:
    """Factors of the 80 % band of latencies at a request rate."""
    return ONLINE
