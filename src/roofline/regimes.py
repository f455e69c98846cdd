"""What a step is bound by, and where that changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment, deployment
from roofline.errors import check_number
from roofline.step import StepTime

# The name of a regime by the part of the step that is largest.
REGIMES = {
    "weights": "weights-bound",
    "kv": "KV-bound",
    "compute": "compute-bound",
    "network": "network-bound",
    "overhead": "overhead-bound",
    "activations": "activation-bound",
}
_LABELS = np.array(list(REGIMES.values()))
BATCHES = np.array(sorted(set(np.round(np.geomspace(1, 8192, 105)))))  # np.unique would import numpy.ma
CONTEXTS = np.round(np.geomspace(128, 4_194_304, 121))


@dataclass(frozen=True, slots=True)
class Regime:
    """The bound of a decode step, the share of the step that it takes, and where another one takes over.

    `next_batch` and `next_context` are the first (value, regime) in that direction with everything else fixed, or
    None if there is none up to a batch of 8,192 or a context of 4 Mi tokens.
    """

    name: str
    share: float
    shares: dict[str, float]
    next_batch: tuple[int, str] | None
    next_context: tuple[int, str] | None

    def __str__(self) -> str:
        text = f"{self.name} ({self.share:.0%} of the step)"
        if self.next_batch:
            text += f"; {self.next_batch[1]} from batch {self.next_batch[0]:,}"
        if self.next_context:
            text += f"; {self.next_context[1]} from context {self.next_context[0]:,}"
        return text


def regime_of(step: StepTime) -> Array:
    """The regime of a step: the name of its largest part (an array of names where the step is an array)."""
    shape = np.shape(step.total_s)
    stacked = np.stack([np.broadcast_to(step.parts_s[part], shape) for part in REGIMES])
    names = _LABELS[np.argmax(stacked, axis=0)]
    return str(names) if names.ndim == 0 else names


def decode_regime(
    where: Deployment | str, batch: float = 1, context: float = 4096, *, hw: str = "h100-sxm", **layout: Any
) -> Regime:
    """What decoding waits for at this batch and context, and at which batch or context that changes.

    Formula:  the largest of the seconds spent on weights, KV, compute, network and overhead
    Args:     where: a Deployment, or the name of a model with `hw` and the layout, formats and engine of
              `roofline.deployment.deployment`; batch [sequences over the replica], context [cached tokens per sequence]
    Returns:  Regime
    Source:   Williams, Waterman, Patterson 2009, applied per op and summed

    >>> decode_regime("llama-3.1-70b", 1, 2000, hw="h100-sxm", weights="bf16", engine="ideal").name
    'weights-bound'
    """
    where = where if isinstance(where, Deployment) else deployment(where, hw, **layout)
    batch = float(check_number("batch", batch, low=1e-9, high=1e9))
    context = float(check_number("context", context, low=0, high=1e12))
    here = where.decode_step(batch, context)
    name = str(regime_of(here))
    shares = {part: float(s / here.total_s) for part, s in here.parts_s.items()}
    part = next(p for p, label in REGIMES.items() if label == name)
    batches = BATCHES[batch < BATCHES]
    contexts = CONTEXTS[context < CONTEXTS]
    return Regime(
        name,
        shares[part],
        shares,
        _first_other(name, batches, regime_of(where.decode_step(batches, context))),
        _first_other(name, contexts, regime_of(where.decode_step(batch, contexts))),
    )


def _first_other(name: str, values: np.ndarray, regimes: np.ndarray) -> tuple[int, str] | None:
    other = np.flatnonzero(np.broadcast_to(regimes, values.shape) != name)
    return (int(values[other[0]]), str(regimes[other[0]])) if len(other) else None


def critical_batch(deployment: Deployment) -> float:
    """Tokens in a step at which reading dense weights takes as long as multiplying by them, at datasheet peaks.

    Formula:  ridge point x bytes per weight / 2
    Args:     deployment: the format of its feed-forward weights and the peak of the format they are multiplied in
    Returns:  [tokens]
    Source:   derivation: 2 T P / F = P b / BW

    >>> from roofline.deployment import deployment
    >>> round(critical_batch(deployment("llama-3.1-70b", "h100-sxm", weights="bf16", engine="ideal")))
    295
    """
    fmt = deployment.precision.of("ffn")
    machine = deployment.machine
    return machine.matmul_flops_per_s(fmt) / machine.chip.bandwidth_bytes_per_s * fmt.element_bytes / 2.0
