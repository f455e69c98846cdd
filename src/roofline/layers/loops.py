"""How much of its state a looped block keeps from one loop to the next."""

from __future__ import annotations

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError


def loop_radius(log_decay: Array, step: Array) -> Array:
    """The spectral radius of the diagonal state transition of a looped block: the largest share that a loop keeps.

    Formula:  rho = max over channels of exp(step A), A = -exp(log_decay)
    Args:     log_decay [..., channels] [-], any real number; step [-], above 0, broadcasts with it
    Returns:  [...] [-] between 0 and 1: loops forget where they started, so that more of them than in training converge
    Assumes:  the rest of the block does not feed the state back
    Error:    none as algebra
    Source:   Parcae, arXiv 2604.12946: a negative diagonal keeps the radius under 1 by construction

    >>> round(float(loop_radius([0.0, 1.0], 0.5)), 4)
    0.6065
    """
    step, rate = np.asarray(step, float), np.exp(np.asarray(log_decay, float))
    if not np.all(step > 0):
        raise InputError("step: of a loop it is above 0")
    return np.max(np.exp(-step * rate), axis=-1)


def loops_to_settle(log_decay: Array, step: Array, share: Array = 0.01) -> Array:
    """The loops after which less than `share` of the starting state is left: more of them cost time and change little.

    Formula:  ln(share) / ln(rho)
    Args:     log_decay, step as `loop_radius`; share [-] between 0 and 1
    Returns:  [loops], not rounded
    Assumes:  as `loop_radius`; the slowest channel decides
    Error:    none as algebra; whether quality follows is the model's own measurement
    Source:   derivation

    >>> round(float(loops_to_settle([0.0, 1.0], 0.5)), 1)
    9.2
    """
    share = np.asarray(share, float)
    if not np.all((share > 0) & (share < 1)):
        raise InputError("share: of the state that may be left it is between 0 and 1")
    return np.log(share) / np.log(loop_radius(log_decay, step))
