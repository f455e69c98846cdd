"""No measurement is faster than the hardware: what claims to be is an error in its input, and is refused."""

from __future__ import annotations

from roofline.errors import InputError
from roofline.units import format as quantity

TOLERANCE = 0.02  # [-] datasheet peaks are rounded and clocks boost a little


def utilisation(achieved: float, peak: float, unit: str, what: str, of: str) -> float:
    """achieved / peak, refused above 1.

    Args:     achieved, peak in `unit` ('FLOP/s' or 'B/s'); what: the measurement, of: whose peak it is, for the message
    Returns:  [-]
    Errors:   InputError that prints both numbers: usually the peak is of one die, of another clock or of sparse
              matrices, or the time is not of what was thought

    >>> utilisation(2.5e12, 3.35e12, "B/s", "copy of 4 GB", "h100-sxm")
    0.746268656716418
    """
    if not peak > 0:
        raise InputError(f"{of}: a peak must be positive, not {peak:g}")
    share = achieved / peak
    if share > 1.0 + TOLERANCE:
        raise InputError(
            f"{what}: {quantity(achieved, unit)} is {share:.0%} of the peak {quantity(peak, unit)} of {of}. More than "
            "100 % of a ceiling is an input error: is the peak of one die where the measurement is of the whole chip, "
            "or was the data in a cache, or another amount of work timed?"
        )
    return share
