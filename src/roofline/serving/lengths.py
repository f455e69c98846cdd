"""Distributions of prompt and output lengths, and what a batch of unequal lengths wastes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError
from roofline.speculative.acceptance import cycles_spread, expected_cycles


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths as steady states use it: its mean, its longest, its variation. Fields broadcast."""

    mean: Array
    longest: Array
    cv: Array = 0.0  # standard deviation over mean

    @property
    def ratio_min(self) -> Array:
        """Shortest over longest of the uniform distribution with this mean and longest.

        Formula:  2 mean / longest - 1, at least 0
        Source:   derivation
        """
        return np.clip(2.0 * np.asarray(self.mean, float) / self.longest - 1.0, 0.0, 1.0)


def fixed(length: Array) -> Lengths:
    """Every request has this length."""
    return Lengths(length, length, 0.0)


def uniform(longest: Array, ratio_min: Array = 0.0) -> Lengths:
    """Uniform between ratio_min x longest and longest.

    Formula:  mean = longest (1 + r)/2, cv = (1 - r)/(sqrt(3) (1 + r))
    Args:     longest [tokens], ratio_min r [-]
    Source:   derivation

    >>> uniform(1024, 0.8).mean
    921.6
    """
    return Lengths(longest * (1.0 + ratio_min) / 2.0, longest, (1.0 - ratio_min) / (np.sqrt(3.0) * (1.0 + ratio_min)))


def observed(lengths: np.ndarray) -> Lengths:
    """Mean, longest and variation of lengths that were seen."""
    values = np.asarray(lengths, float)
    if values.size == 0 or not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise InputError("lengths: one or more positive numbers are needed")
    return Lengths(float(values.mean()), float(values.max()), float(values.std() / values.mean()))


def of_mean(length: Array) -> Lengths:
    """Requests of this length that run out of step with each other, as they do where lengths vary."""
    return Lengths(length, 2.0 * np.asarray(length, float), 0.0)


def as_lengths(value: Array | Lengths) -> Lengths:
    """`value` itself; a plain number (or array: one for each point of a sweep) is a mean, see `of_mean`."""
    return value if isinstance(value, Lengths) else of_mean(value)


def in_cycles(outputs: Lengths, shares: Array) -> Lengths:
    """Outputs counted in steps where every step is a cycle of speculation that yields several tokens.

    Formula:  n = 1 + N(O - 1), N the mean number of cycles; variances of outputs and of N add, the longest follows as
              that of a uniform distribution
    Args:     outputs O [tokens]; shares [-] of cycles that yield 1, 2, .. tokens
    Returns:  Lengths [steps], the first of which is that of the prompt
    Source:   derivation
    """
    longest = 1.0 + expected_cycles(np.asarray(outputs.longest, float) - 1.0, shares)
    mean = 1.0 + expected_cycles(np.asarray(outputs.mean, float) - 1.0, shares)
    sd = cycles_spread(np.maximum(np.asarray(outputs.mean, float) - 1.0, 0.0), shares)
    return Lengths(mean, mean + np.hypot(longest - mean, np.sqrt(3.0) * sd), np.hypot(outputs.cv, sd / mean))


def static_occupancy(lengths: np.ndarray, axis: int = -1) -> Array:
    """Share of seat-steps in use when a batch runs until its longest request has ended.

    Formula:  sum(len) / (seats max(len))
    Args:     lengths [tokens], one per seat along `axis`
    Returns:  [-]
    Source:   derivation: seats of requests that ended stay empty until the last one ends

    >>> round(float(static_occupancy(np.array([3, 7, 5, 11]))), 4)
    0.5909
    """
    values = np.asarray(lengths, float)
    return values.sum(axis) / (values.shape[axis] * values.max(axis))


def continuous_occupancy(backlog: Array, seats: Array) -> Array:
    """Share of seats in use when a seat is refilled as soon as its request ends.

    Formula:  min(backlog / seats, 1)
    Args:     backlog [requests] in the system, seats [-]
    Returns:  [-] 1 as long as something waits
    Source:   Yu et al. 2022 (Orca): iteration-level scheduling
    """
    return np.minimum(np.asarray(backlog, float) / seats, 1.0)


def expected_static_occupancy(lengths: Lengths, seats: Array) -> Array:
    """The mean of `static_occupancy` over batches of uniformly distributed lengths.

    Formula:  mean / E[max],  E[max] = longest (r + (1 - r) seats/(seats + 1))
    Assumes:  lengths are independent and uniform between r and 1 times the longest; ratio of means
    Source:   derivation: mean of the largest of `seats` uniform draws
    """
    r = lengths.ratio_min
    return lengths.mean / (lengths.longest * (r + (1.0 - r) * seats / (seats + 1.0)))
