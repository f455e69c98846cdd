"""Waiting lines in closed form: how long requests wait, and how unequal their times are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array

# Rational approximation of the normal quantile, |error| < 4.5e-4: Abramowitz and Stegun 1964, 26.2.23.
_TOP = (2.515517, 0.802853, 0.010328)
_BOTTOM = (1.0, 1.432788, 0.189269, 0.001308)


def normal_quantile(q: Array) -> Array:
    """The value below which a share `q` of a standard normal variable lies.

    Formula:  rational in t = sqrt(-2 ln min(q, 1 - q))
    Args:     q [-] between 0 and 1
    Returns:  [-]
    Error:    4.5e-4
    Source:   Abramowitz and Stegun 1964, 26.2.23

    >>> round(float(normal_quantile(0.9)), 2)
    1.28
    """
    q = np.clip(np.asarray(q, float), 1e-12, 1.0 - 1e-12)
    t = np.sqrt(-2.0 * np.log(np.minimum(q, 1.0 - q)))
    z = t - np.polynomial.polynomial.polyval(t, _TOP) / np.polynomial.polynomial.polyval(t, _BOTTOM)
    return np.where(q < 0.5, -z, z)[()]


def gamma_quantile(q: Array, mean: Array, sd: Array) -> Array:
    """The quantile of a gamma variable of that mean and standard deviation.

    Formula:  mean (1 - c/9 + z sqrt(c/9))^3,  c = (sd/mean)^2, z the normal quantile
    Args:     q [-], mean, sd [any unit]
    Returns:  [unit of mean], never negative
    Error:    below 1 % of the mean for sd < mean and q between 0.05 and 0.99
    Source:   Wilson and Hilferty 1931
    """
    c = np.square(sd / np.maximum(mean, 1e-300)) / 9.0
    return mean * np.maximum(1.0 - c + normal_quantile(q) * np.sqrt(c), 0.0) ** 3


def queue_wait(utilisation: Array, service_s: Array, servers: Array = 1.0, arrivals_cv2: Array = 1.0, service_cv2: Array = 0.0):
    """Mean wait before service in a queue with several servers.

    Formula:  (ca2 + cs2)/2 rho^(sqrt(2 (c + 1)) - 1) / (c (1 - rho)) T
    Args:     utilisation rho [-] below 1, service_s T [s], servers c [-], arrivals_cv2, service_cv2: squared
              coefficients of variation [-] (Poisson arrivals: 1, equal lengths: 0)
    Returns:  [s]; inf at and above utilisation 1
    Assumes:  general renewal arrivals and services, first come first served; exact for M/M/1 and M/G/1
    Error:    a few per cent for c > 1 near saturation
    Source:   Sakasegawa 1977; Allen and Cunneen

    >>> float(queue_wait(0.5, 1.0, 1.0, 1.0, 1.0))
    1.0
    """
    rho = np.asarray(utilisation, float)
    busy = rho ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0)
    with np.errstate(divide="ignore"):
        wait = (arrivals_cv2 + service_cv2) / 2.0 * busy / (servers * np.maximum(1.0 - rho, 0.0)) * service_s
    return np.where(rho < 1.0, wait, np.inf)[()]


@dataclass(frozen=True, slots=True)
class Spread:
    """A time that differs from request to request: a floor that all pay, and a gamma-distributed rest.

    A share of the requests may belong to a burst at the start instead, spread evenly from `burst_low` to `burst_high`.
    """

    floor_s: Array
    mean_s: Array  # of the rest
    sd_s: Array  # of the rest
    burst_share: Array = 0.0
    burst_low_s: Array = 0.0
    burst_high_s: Array = 0.0

    @property
    def mean(self) -> Array:
        """Mean over all requests."""
        burst = (self.burst_low_s + self.burst_high_s) / 2.0
        return (1.0 - self.burst_share) * (self.floor_s + self.mean_s) + self.burst_share * burst

    def at(self, q: float) -> Array:
        """The time below which a share `q` of the requests stays.

        Formula:  the weighted quantile of both parts, from 99 points of each
        """
        if not np.any(np.asarray(self.burst_share) > 0):
            return self.floor_s + gamma_quantile(q, self.mean_s, self.sd_s)
        points = (np.arange(99) + 0.5) / 99.0
        shape = np.broadcast_shapes(*(np.shape(getattr(self, name)) for name in self.__slots__))
        rest, burst, share = (
            np.broadcast_to(np.asarray(a)[..., None], (*shape, n))
            for a, n in ((self.floor_s, 1), (self.burst_low_s, 1), (self.burst_share, 1))
        )
        rest = rest + gamma_quantile(points, np.asarray(self.mean_s)[..., None], np.asarray(self.sd_s)[..., None])
        burst = burst + points * np.asarray(self.burst_high_s - self.burst_low_s)[..., None]
        values = np.concatenate(np.broadcast_arrays(rest, burst), axis=-1)
        weights = np.concatenate(np.broadcast_arrays(1.0 - share + 0.0 * rest, share + 0.0 * rest), axis=-1)
        order = np.argsort(values, axis=-1)
        below = np.cumsum(np.take_along_axis(weights, order, -1), axis=-1)
        place = np.argmax(below >= q * below[..., -1:], axis=-1)
        return np.take_along_axis(np.take_along_axis(values, order, -1), place[..., None], -1)[..., 0]
