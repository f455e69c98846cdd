"""Pipeline stages: what filling and draining them costs, for prompts whole or in chunks, and for decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, check_number
from roofline.workload import Sequences


def bubble_share(stages: Array, micro_batches: Array) -> Array:
    """Return the share of its time that a stage idles when micro-batches pass through like stages once.

    Formula:  (p - 1) / (m + p - 1)
    Args:     stages p [-], micro_batches m [-]; floats or arrays that broadcast
    Returns:  [-] 0 for one stage
    Assumes:  stages and micro-batches take equal times
    Error:    none as algebra
    Source:   Huang et al. 2019 (GPipe), section 2.3

    >>> bubble_share(4, 12), bubble_share(1, 1)
    (0.2, 0.0)
    """
    return (stages - 1.0) / (micro_batches + stages - 1.0)


def decode_share(stages: Array, batch: Array) -> Array:
    """Return the share of the stages that decodes keep busy: sequences are dealt to as many micro-batches as stages.

    Formula:  min(1, b / p)
    Args:     stages p [-], batch b [sequences]
    Returns:  [-]
    Assumes:  like stages; a sequence is in one stage at a time, as its next token needs the last
    Error:    none as algebra
    Source:   derivation

    >>> float(decode_share(4, 2.0)), float(decode_share(4, 64.0))
    (0.5, 1.0)
    """
    return np.minimum(1.0, batch / stages)


@dataclass(frozen=True, slots=True)
class Passage:
    """Work passing through pipeline stages: when the last of it leaves, and how busy the stages were."""

    total_s: Array
    first_s: Array  # when the first job has left the last stage
    busy: Array  # mean share of the stages that worked
    slowest: Array  # time of the slowest stage over the mean of all

    @property
    def bubble(self) -> Array:
        """Share of stage-seconds without work: filling, draining, and waiting for the slowest stage."""
        return 1.0 - self.busy


def passage(times: Sequence[Sequence[Array]]) -> Passage:
    """Return when jobs have passed all stages, in order, one at a time in each stage.

    Formula:  end[s, j] = max(end[s - 1, j], end[s, j - 1]) + t[s, j]
    Args:     times t [stage][job] [s]; floats or arrays that broadcast
    Returns:  Passage
    Assumes:  a stage hands over without waiting for the next one to be free
    Error:    none as algebra; equal times give `bubble_share`
    Source:   permutation flow shop (Johnson 1954)

    >>> p = passage([[1.0] * 12] * 4)
    >>> float(p.total_s), round(float(p.bubble), 3)
    (15.0, 0.2)
    """
    ends: list[Array] = [0.0] * len(times[0])
    for stage in times:
        before: Array = 0.0
        for j, seconds in enumerate(stage):
            ends[j] = before = np.maximum(ends[j], before) + seconds
    work = [sum(stage) for stage in times]
    mean = sum(work) / len(work)
    return Passage(ends[-1], ends[0], mean / ends[-1], np.max(np.broadcast_arrays(*work), axis=0) / mean)


def prefill_pipelined(
    deployment: Deployment, *, batch: Array, isl: Array, micro_batches: int = 1, chunks: int = 1, cached: Array = 0.0
) -> Passage:
    """Return the passage of prompts through the stages of a replica, cut by prompts, by tokens, or both.

    Formula:  job (i, c): batch/m prompts, chunk c of isl/chunks tokens over what is cached before it; then `passage`
    Args:     batch [sequences], isl [tokens], cached [tokens]; micro_batches m, chunks [-]
    Returns:  Passage [s]; total_s is the TTFT of the last prompt, first_s that of a first micro-batch of one chunk
    Assumes:  stages as the engine cuts the layers (unequal where they do not divide; the last one has the head)
    Error:    not measured
    Source:   derivation
    """
    for name, value in (("micro_batches", micro_batches), ("chunks", chunks)):
        check_number(name, value, low=1, high=4096, integer=True)
    if np.any(np.asarray(batch) < micro_batches):
        raise InputError(f"micro_batches: {micro_batches} are more than there are prompts")
    count, new = np.asarray(batch, float) / micro_batches, (np.asarray(isl, float) - cached) / chunks
    times = []
    for stage in range(deployment.plan.pp):
        parts = [
            deployment.step(Sequences(count, new, cached + c * new, float(c == chunks - 1)), stage=stage).total_s
            for c in range(chunks)
        ]
        times.append(parts * micro_batches)
    return passage(times)
