"""How far measured servers lie from the closed form: factors that turn a prediction into its 80 % band.

The factors are quantiles of measured / predicted over rows whose model was left out of the fit, by the kind of model.
"""

from __future__ import annotations

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.specs.model import Model

Band = tuple[Array, Array]

# Kind of model -> 8 and 92 % points of measured / predicted over 1,272 rows, each predicted without its model. Bands
# made without the model too, from the others of its kind, cover 72 % (TPOT) and 78 % (TTFT) of its rows.
TPOT: dict[str, tuple[float, float]] = {
    "dense": (0.94, 1.15), "gqa moe": (0.83, 1.13), "mla moe": (0.81, 1.37), "linear moe": (0.85, 1.20),
}  # fmt: skip
TTFT: dict[str, tuple[float, float]] = {
    "dense": (0.78, 1.34), "gqa moe": (0.76, 1.43), "mla moe": (0.70, 1.56), "linear moe": (0.63, 1.28),
}  # fmt: skip
# 177 rows of separate pools and 37 stable open-loop runs: no step constant fitted on either. The open-loop bands are
# those of `validation.online.band_of`; made without its own rows, a model's lie 84 % inside.
POOLS_TPOT = (0.72, 1.34)
POOLS_TTFT = (0.70, 8.0)
ONLINE = {"ttft_mean_s": (0.95, 1.23), "tpot_mean_s": (0.91, 1.11), "e2e_mean_s": (0.91, 1.11)}


def kind_of(model: Model) -> str:
    """The kind of model as far as errors differ: dense, or a mixture with grouped, latent or linear attention.

    Source: step errors by class; a model of none of these kinds counts as the nearest
    """
    if not model.is_mixture:
        return "dense"
    kinds = {getattr(run.layer.attention, "kind", "") for run in model.layer_runs}
    if "mla" in kinds:
        return "mla moe"
    return "gqa moe" if kinds <= {"gqa"} else "linear moe"


def tpot_band(where: Deployment) -> Band:
    """Factors of the 80 % band of TPOT."""
    return TPOT[kind_of(where.model)]


def ttft_band(where: Deployment) -> Band:
    """Factors of the 80 % band of TTFT."""
    return TTFT[kind_of(where.model)]
