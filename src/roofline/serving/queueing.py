"""Waiting lines in closed form: how long requests wait, and how unequal their times are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.kernels.routing import normal_quantile as upper_quantile

NEWTON = 6  # rounds to the mean length of a service; from below they rise to it


def normal_quantile(q: Array) -> Array:
    """The value below which a share `q` of a standard normal variable lies.

    Formula:  that of the upper tail min(q, 1 - q), its sign turned below one half
    Args:     q [-] between 0 and 1
    Returns:  [-]
    Error:    3e-3
    Source:   `roofline.kernels.routing.normal_quantile`

    >>> round(float(normal_quantile(0.9)), 2)
    1.28
    """
    q = np.clip(np.asarray(q, float), 1e-12, 1.0 - 1e-12)
    return np.where(q < 0.5, -1.0, 1.0)[()] * upper_quantile(np.minimum(q, 1.0 - q))


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


def normal_share(z: Array) -> Array:
    """Share of a standard normal distribution below z, to 0.01.

    Formula:  1/(1 + exp(-1.702 z))
    Args:     z [-]
    Returns:  [-]
    Error:    at most 0.01, by the definition of 1.702
    Source:   Camilli 1994

    >>> round(float(normal_share(1.2816)), 2)
    0.9
    """
    return 1.0 / (1.0 + np.exp(-1.702 * np.clip(z, -40.0, 40.0)))


def queue_wait(
    utilisation: Array, service_s: Array, servers: Array = 1.0, arrivals_cv2: Array = 1.0, service_cv2: Array = 0.0
) -> Array:
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


def batch_service(
    rate: Array,
    fixed_s: Array,
    each_s: Array,
    most: Array,
    arrivals_cv2: Array = 1.0,
    service_cv2: Array = 0.0,
    saved_s: Array = 0.0,
    few: Array = 1.0,
) -> Array:
    """Mean time from arrival to the end of service where a server takes all who wait, up to `most`, at a time.

    Formula:  a service of N takes T = a + b N, of N <= m it takes d less; those who come meanwhile are the next N, or
              else the next one alone:
                E T = (a + b p0 - d p)/(1 - lam b),  p0 = ca2 exp(-y) + (1 - ca2) max(1 - y, 0),  y = lam E T
                p = P(N <= m) = Phi((m + 1/2 - y)/sqrt(ca2 y)),  n = min(E N, (m + 1)/2) the mean of such N
                E N = y + p0,  E T^2 = (a^2 + 2 a b E N + b^2 (ca2 y + p0 + cs2 E N) - d p (2 (a + b n) - d))
                                       /(1 - (lam b)^2)
                E N^2 = ca2 y + lam^2 E T^2 + p0
              (1 - p0/E N) E T^2/(2 E T) + a + b K - d p n/E N, K = E N^2/E N; of K beyond `most`, half is served before
              at least a + b - d + `queue_wait` of single services of a/most + b, which is exact for most = 1
    Args:     rate lam [1/s], fixed_s a, each_s b [s], most [-], arrivals_cv2 ca2, service_cv2 cs2 [-] of b; saved_s d
              [s] by services of at most few m [-]
    Returns:  [s]; inf where lam (a/most + b) reaches 1
    Assumes:  p0 at the mean service; numbers of arrivals vary in proportion to ca2
    Error:    against the event simulator: tests/test_serving_disaggregated.py
    Source:   derivation: moments of successive services; after Bailey 1954 for an unlimited batch

    >>> float(batch_service(1e-9, 0.2, 0.1, 8.0)), float(batch_service(0.5, 0.0, 1.0, 1.0))
    (0.3, 1.5)
    """
    a, b, lam = fixed_s, each_s, rate
    load, x = lam * (a / most + b), np.minimum(lam * b, 1.0 - 1e-9)
    mean = 0.0 * (load + x)
    less = 0.0
    for _ in range(NEWTON):
        y = lam * mean
        if np.any(saved_s):
            less = saved_s * normal_share((few + 0.5 - y) / np.sqrt(np.maximum(arrivals_cv2 * y, 1e-12)))
        none = arrivals_cv2 * np.exp(-y) + (1.0 - arrivals_cv2) * np.maximum(1.0 - y, 0.0)
        fewer = arrivals_cv2 * np.exp(-y) + (1.0 - arrivals_cv2) * (y < 1.0)
        mean = mean + (a + b * none - less - mean * (1.0 - x)) / (1.0 - x + x * fewer)
    y, each = lam * mean, lam * mean + none
    small = np.minimum(each, (few + 1.0) / 2.0)
    square = a * a + 2.0 * a * b * each + b * b * (arrivals_cv2 * y + none + service_cv2 * each)
    square = (square - less * (2.0 * (a + b * small) - saved_s)) / (1.0 - x * x)
    company = (arrivals_cv2 * y + lam * lam * square + none) / each
    served = np.minimum(company, most) + np.maximum(company - most, 0.0) / 2.0
    gathered = (1.0 - none / each) * square / (2.0 * mean) + a + b * served - less * np.minimum(small / each, 1.0)
    single = a + b - saved_s + queue_wait(load, a / most + b, 1.0, arrivals_cv2, service_cv2)
    return np.maximum(gathered, single)


def full_share(free: Array, utilisation: Array, arrivals_cv2: Array = 1.0, drains: Array = 1.0) -> Array:
    """Share of the requests that find every seat taken.

    Formula:  1/(1 + d sqrt(2 pi) y Phi(y) exp(y^2/2)),  y^2 = free ln(1/rho)/ca2,  Phi(y) = 1/(1 + exp(-1.702 y))
    Args:     free [-]: seats that nobody takes where Little's law is met; utilisation rho [-]: the rate over that of
              full seats; arrivals_cv2 ca2 [-]; drains d [-]: 1 - the factor from one more who waits to the next over
              1 - rho, where waiting requests make full seats slower than they were
    Returns:  [-]
    Assumes:  all in service go on at the same pace, which may fall as seats fill: then, whatever the lengths are, one
              more is as likely as one less times the rate over that of so many; the logarithm of that ratio falls
              evenly from nothing, where Little's law is met, to ln rho at full seats
    Error:    16 seats or more, against the exact sums: 0.02, 0.04 where full seats halve the pace, 0.1 a tenth of it
    Source:   Halfin and Whitt 1981, with that variance; insensitivity of processor sharing: Kelly 1979

    >>> round(float(full_share(27.0, 0.79)), 3)
    0.007
    """
    y = np.sqrt(np.minimum(np.maximum(free, 0.0) * -np.log(np.clip(utilisation, 1e-30, 1.0)) / arrivals_cv2, 1e3))
    return 1.0 / (1.0 + drains * np.sqrt(2.0 * np.pi) * y * np.exp(y * y / 2.0) * normal_share(y))


@dataclass(frozen=True, slots=True)
class Spread:
    """A time that differs from request to request: a floor that all pay, and a gamma-distributed rest.

    A share of the requests may be spread evenly from `even_low` to `even_high` instead: a burst at the start, or those
    that find nobody before them. Another share may be late: an exponentially distributed time after the mean of the
    others.
    """

    floor_s: Array
    mean_s: Array  # of the rest
    sd_s: Array  # of the rest
    even_share: Array = 0.0
    even_low_s: Array = 0.0
    even_high_s: Array = 0.0
    late_share: Array = 0.0
    late_s: Array = 0.0

    @property
    def prompt_s(self) -> Array:
        """Mean over the requests that are not late."""
        even = (self.even_low_s + self.even_high_s) / 2.0
        return (1.0 - self.even_share) * (self.floor_s + self.mean_s) + self.even_share * even

    @property
    def mean(self) -> Array:
        """Mean over all requests."""
        return self.prompt_s + self.late_share * self.late_s

    def at(self, q: float) -> Array:
        """The time below which a share `q` of the requests stays.

        Formula:  the weighted quantile of all parts, from 99 points of each
        """
        parts, weights = self._parts()
        if len(parts) == 1:
            return self.floor_s + gamma_quantile(q, self.mean_s, self.sd_s)
        return weighted_quantile(parts, weights, q)

    def within(self, limit_s: Array) -> Array:
        """Share of the requests whose time is at most `limit_s`.

        Formula:  weights of the points up to the limit, of 99 points of each part: the inverse of `at`, to 1 %
        """
        limit = np.asarray(limit_s, float)[..., None]
        return sum(w * np.mean(points <= limit, axis=-1) for points, w in zip(*self._parts()))

    def _parts(self) -> tuple[list[Array], list[Array]]:
        """Equally likely points of each part along a last axis, and the shares of the parts."""

        def last(x: Array) -> Array:
            return np.asarray(x, float)[..., None]

        even, late = np.asarray(self.even_share, float), np.asarray(self.late_share, float)
        low, high = last(self.even_low_s), last(self.even_high_s)
        parts = [last(self.floor_s) + gamma_quantile(POINTS, last(self.mean_s), last(self.sd_s))]
        weights = [(1.0 - even) * (1.0 - late)]
        if np.any(even > 0):
            parts.append(low + POINTS * (high - low))
            weights.append(even * (1.0 - late))
        if np.any(late > 0):
            parts.append(last(self.prompt_s) - np.log1p(-POINTS) * last(self.late_s))
            weights.append(late)
        return parts, weights


class Latencies:
    """The mean latencies of a record that says how they differ from request to request."""

    __slots__ = ()
    ttft: Spread
    tpot: Spread
    e2e: Spread

    @property
    def ttft_s(self) -> Array:
        """Mean time to first token."""
        return self.ttft.mean

    @property
    def tpot_s(self) -> Array:
        """Mean time per output token after the first."""
        return self.tpot.mean

    @property
    def e2e_s(self) -> Array:
        """Mean time from sending a request to its last token."""
        return self.e2e.mean


def end_to_end(ttft: Spread, tpot: Spread, osl: Array, osl_cv: Array = 0.0) -> Spread:
    """The time to the last token: the first one and the gaps after it.

    Formula:  TTFT + (O - 1) TPOT; sd^2 = (cv (O - 1) TPOT)^2 + ((O - 1) sd TPOT)^2 + (sd TTFT)^2
    Args:     ttft, tpot [s]; osl O [tokens], osl_cv [-]: mean and variation of the output lengths
    Returns:  [s]
    Assumes:  the first token, the pace and the length are independent; half of the gaps is the floor
    Source:   variances of sums
    """
    gaps = np.maximum(osl - 1.0, 0.0)
    decoding = gaps * tpot.mean
    sd = np.sqrt((decoding * osl_cv) ** 2 + (gaps * tpot.sd_s) ** 2 + ttft.sd_s**2)
    rest = ttft.prompt_s + 0.5 * decoding
    return Spread(0.5 * decoding, rest, sd, late_share=ttft.late_share, late_s=ttft.late_s)


POINTS = (np.arange(99) + 0.5) / 99.0  # of a distribution that is mixed with another


def mixed_quantile(spreads: Sequence[Spread], shares: Sequence[Array], q: float) -> Array:
    """The time below which a share `q` of all requests stays, of which `shares` belong to each of `spreads`.

    Formula:  t with sum of share_i F_i(t) = q, each F_i given by equally likely points
    Args:     spreads [s], shares [-] that add up to 1, q [-]
    Returns:  [s]
    Source:   definition of a mixture
    """
    parts, weights = [], []
    for spread, share in zip(spreads, shares):
        points, each = spread._parts()
        parts += points
        weights += [share * w for w in each]
    return weighted_quantile(parts, weights, q)


def weighted_quantile(parts: Sequence[Array], weights: Sequence[Array], q: float) -> Array:
    """Quantile of a mixture of distributions, each given by equally likely points along a last axis.

    Formula:  smallest value at which the weights of the points up to it reach q
    Args:     parts [any unit], weights [-] of each part (without the last axis), q [-]
    Returns:  [unit of parts]
    Source:   definition
    """
    shape = np.broadcast_shapes(*(np.shape(p)[:-1] for p in parts), *(np.shape(w) for w in weights))
    values = np.concatenate([np.broadcast_to(p, (*shape, np.shape(p)[-1])) for p in parts], axis=-1)
    each = [np.broadcast_to(np.asarray(w, float)[..., None], (*shape, np.shape(p)[-1])) for p, w in zip(parts, weights)]
    each = np.concatenate([w / w.shape[-1] for w in each], axis=-1)
    order = np.argsort(values, axis=-1)
    below = np.cumsum(np.take_along_axis(each, order, -1), axis=-1)
    place = np.argmax(below >= q * below[..., -1:], axis=-1)
    return np.take_along_axis(np.take_along_axis(values, order, -1), place[..., None], -1)[..., 0]
