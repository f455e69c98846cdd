"""Experts under load: how many a step touches, how uneven ranks are, what bringing tokens to them costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.kernels.routing import power_law_loads
from roofline.ops import NETWORK, distinct_experts
from roofline.step import StepTime


def coverage(experts: Array, top_k: Array, tokens: Array) -> Array:
    """Return the share of the experts whose weights a step reads.

    Formula:  1 - (1 - k/E)^T
    Args:     experts E [-], top_k k [-], tokens T [-] that enter the layer; floats or arrays that broadcast
    Returns:  [-] k/E for one token, near 1 beyond a few E/k tokens
    Assumes:  as `ops.distinct_experts`: uniform routing, real routers touch fewer
    Error:    as `ops.distinct_experts`
    Source:   `ops.distinct_experts`

    >>> [round(float(coverage(256, 8, t)), 3) for t in (1, 32, 128)]
    [0.031, 0.638, 0.983]
    """
    return distinct_experts(experts, top_k, tokens) / experts


def tokens_for_coverage(experts: Array, top_k: Array, share: Array) -> Array:
    """Return the tokens in a step at which it reads `share` of the experts: beyond, more tokens cost no more weights.

    Formula:  ln(1 - s) / ln(1 - k/E)
    Args:     experts E, top_k k [-], share s [-] below 1
    Returns:  [tokens]
    Assumes:  as `coverage`
    Error:    as `coverage`
    Source:   inverse of `coverage`

    >>> round(float(tokens_for_coverage(256, 8, 0.95)), 1), round(float(tokens_for_coverage(8, 2, 0.95)), 1)
    (94.4, 10.4)
    """
    return np.log1p(-np.asarray(share, float)) / np.log1p(-np.asarray(top_k, float) / experts)


def skewed_imbalance(tokens: Array, experts: Array, top_k: Array, ep: Array, exponent: Array) -> Array:
    """Return how many times the mean the busiest expert-parallel rank has to do when popularity is a power law.

    Formula:  pairs of the busiest rank (`kernels.routing.power_law_loads`) / (T k / ep)
    Args:     tokens T, experts E, top_k k, ep [-], exponent a [-]: 1.01 mild to 1.3 strong, not 1
    Returns:  [-] 1 or more: give it as `Deployment.expert_imbalance`
    Assumes:  experts dealt to ranks at random, none copied; a load balancer (EPLB) brings it back towards 1
    Error:    5 % mean against sampled loads (docs/kernels/moe.md)
    Source:   `kernels.routing.power_law_loads`
    """
    mean = np.asarray(tokens, float) * top_k / ep
    return np.maximum(power_law_loads(tokens, experts, top_k, ep, exponent).pairs / mean, 1.0)


@dataclass(frozen=True, slots=True)
class ExpertCost:
    """What of a step goes to routed experts and to bringing tokens to them. Seconds; every field broadcasts."""

    step_s: Array
    experts_s: Array  # grouped products of the busiest rank
    exchange_s: Array  # dispatch and combine, or the all-reduce where experts are not exchanged
    idle_s: Array  # that the mean rank waits for the busiest

    @property
    def exchange_share(self) -> Array:
        """Share of the step that moves tokens between ranks."""
        return self.exchange_s / self.step_s


def expert_cost(deployment: Deployment, *, batch: Array, context: Array) -> ExpertCost:
    """Return what experts, their exchange and their imbalance cost in a decode step.

    Formula:  sums over the step's ops of kind `experts`; of kind `exchange` (attention data parallel: dispatch and
              combine) and of all-reduces; idle = step at the deployment's imbalance - step at 1
    Args:     batch [sequences] of the whole replica, context [tokens]
    Returns:  ExpertCost [s]
    Assumes:  all ranks wait for the busiest in every layer
    Error:    as the step model
    Source:   derivation
    """
    found = deployment.decode_step(batch, context)
    even = deployment.with_(expert_imbalance=1.0).decode_step(batch, context)
    moved = _of(found, NETWORK)
    return ExpertCost(found.total_s, _of(found, ("experts",)), moved, found.total_s - even.total_s)


def _of(step: StepTime, kinds: tuple[str, ...]) -> Array:
    return sum((t.op.count * t.total_s * step.scale for t in step.times if t.op.kind in kinds), 0.0)


def attention_dp_gain(tensor: Deployment, data: Deployment, *, batch: Array, context: Array) -> Array:
    """Return the throughput with attention data parallelism over that with tensor parallelism, at one batch.

    Formula:  step of `tensor` / step of `data`
    Args:     tensor, data: the same model on as many devices, tp = n and dp = n; batch [sequences], context [tokens]
    Returns:  [-] above 1 where each rank attending to its own sequences saves more than exchanging tokens costs
    Assumes:  sequences divide evenly; both hold the batch (`kv_tokens` says: MLA's one latent is copied on every
              tensor-parallel rank, so that data parallelism also holds n times as many sequences)
    Error:    as the step model
    Source:   derivation; SGLang v0.4 blog, data-parallel attention
    """
    return tensor.decode_step(batch, context).total_s / data.decode_step(batch, context).total_s
