"""How the number of sequences varies that run together where requests arrive at a rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.serving.queueing import full_share

CALM = 0.999  # utilisation above which a queue is not extrapolated
CROWDED = 0.9  # drag, and share of the time that prompts take, above which crowds are not extrapolated


@dataclass(frozen=True, slots=True)
class Crowd:
    """Sequences in an open loop, about the level at which Little's law is met."""

    more: Array  # beyond that level, on average
    spread: Array  # standard deviation of their number
    stay: Array  # of the mean that a request meets while it stays
    full: Array  # share of the time in which all seats are taken
    beyond: Array  # share of the time in which more than there are seats would run, were there any


def crowd(
    wanted: Array, cap: Array, drag: Array, prompts: Array, company: Array, bursts: Array, edge: Array, full: Array
) -> Crowd:
    """How the number of sequences varies, and how often all seats are taken.

    Formula:  s^2 = b c/(1 - e), c = ca2/(1 - r)^2;  more = e s^2/b + k r^2/(1 - r), at most cap - b
              stay = s sqrt(2 (x - 1 + exp(-x)))/x,  x = 1 - e
              full: `full_share` with c, queues of full seats growing by the rate over that of full seats
    Args:     wanted b [-]: sequences where Little's law is met, below one: the share of the time in which there is one;
              cap [-]: seats; drag e [-]: rise of a step without prompts with one more, times b over that step;
              prompts r [-]: rate times the time that one more prompt takes; company k [-]: prompts in a step;
              bursts ca2 [-] of arrivals; edge [-]: rate over that of just full seats whose prompts come at this rate;
              full [-]: rate over that of seats that are always full
    Returns:  Crowd
    Assumes:  in the time that is left for decodes every arrival brings those who come while its prompt is computed, and
              while theirs are: a busy period, 1/(1 - r) arrivals, of squares 1/(1 - r)^3 on average. Each stays for its
              answer's steps, which are longer where more run: crowds slow themselves down, last and grow. Long steps
              count for more of the time; who came in my busy period after me delays me beside all others. What a stay
              sees is the mean of a fluctuation that lasts a stay/(1 - e)
    Error:    variance against the event simulator, 70B and 8B, up to 90 % of full seats: 10 %
    Source:   derivation: busy periods of a queue (Borel 1942); variance of arrivals that excite themselves (Hawkes
              1971); mean of an Ornstein-Uhlenbeck process over a time
    """
    level, x, left = np.maximum(wanted, 1.0), 1.0 - drag, 1.0 - prompts
    free, clusters = np.maximum(cap - level, 0.0), bursts / left**2
    variance = np.minimum(clusters * level / x, free**2)
    part = np.minimum(wanted, 1.0)
    more = np.minimum(clusters * drag / x * part, free) + np.minimum(company, cap) * prompts**2 / left * part
    spread = np.sqrt(np.maximum(variance, 1e-6))
    drains = (1.0 - np.minimum(full, CALM)) / (1.0 - np.minimum(edge, CALM))
    return Crowd(
        more,
        spread,
        np.sqrt(variance * 2.0 * (x - 1.0 + np.exp(-x))) / x,
        np.where(full < 1.0, full_share(free, np.minimum(edge, CALM), clusters, drains), 1.0),
        1.0 / (1.0 + np.exp(1.702 * np.clip((cap - level - more) / spread, -3.0, 300.0))),
    )
