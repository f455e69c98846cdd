"""The exception tree. Every error that a user can cause is a `RooflineError` whose text says what to change.

RooflineError
|- SpecError          a hardware, model or engine description is wrong or contradictory
|  |- UnknownNameError   no such name; the nearest ones are suggested
|  `- UnsupportedError   well-formed, but an architecture or format that is not modelled
|- InputError         a value given to a function or on the command line is out of range
`- InfeasibleError    everything is well-formed, but it cannot run (does not fit, cannot be sharded)
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np


class RooflineError(Exception):
    """Base of all errors that a user can cause; `str(error)` is a message for people."""


class SpecError(RooflineError):
    """A description (hardware, model, engine, config.json) is wrong or contradicts itself."""


class UnknownNameError(SpecError):
    """A name that is not in the library."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = ""):
        known = list(known)
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        text = f"unknown {kind} '{name}'"
        if near:
            text += "; did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
        elif len(known) <= 12 or not hint:
            text += "; known: " + ", ".join(known)
        joint = "" if near or not hint else ";"
        super().__init__(text + joint + (f" {hint}" if hint else ""))
        self.kind, self.name, self.suggestions = kind, name, near


class UnsupportedError(SpecError):
    """An architecture, layer or format that is recognised but not modelled. Never guessed."""


class InputError(RooflineError):
    """A value that is not allowed."""


class InfeasibleError(RooflineError):
    """A deployment that cannot run: it does not fit, or cannot be cut the way that was asked."""


def check_number(name: str, value: float, *, low: float = 0.0, high: float = math.inf, integer: bool = False) -> float:
    """Return `value` if it is a finite number in [low, high] (and whole if `integer`), else raise InputError.

    >>> check_number("isl", 2000, low=1, integer=True)
    2000
    """
    try:
        v = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        v = math.nan
    if math.isnan(v) and not isinstance(value, float):
        raise InputError(f"{name}: {_shown(value)} is not a number")
    if not math.isfinite(v) or not low <= v <= high:
        top = f" to {high:g}" if math.isfinite(high) else " or more"
        raise InputError(f"{name}: {_shown(value)} is out of range; allowed: {low:g}{top}")
    if integer and v != int(v):
        raise InputError(f"{name}: {_shown(value)} must be a whole number")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]} ..."


def check_numbers(name: str, value: Any, *, low: float = 0.0, high: float = math.inf) -> None:
    """Raise InputError unless `value` is a finite number in [low, high], or an array of them.

    >>> check_numbers("isl", [2000, 4000], low=1)
    """
    try:
        values = np.asarray(value)
        numbers = values.dtype.kind in "iuf" and values.size > 0
    except (TypeError, ValueError):  # lists of unequal lengths
        numbers = False
    if not numbers:
        raise InputError(f"{name}: {_shown(value)} is not a number or an array of numbers")
    wrong = values[~(np.isfinite(values) & (values >= low) & (values <= high))]
    if wrong.size:
        top = f" to {high:g}" if math.isfinite(high) else " or more"
        raise InputError(f"{name}: {wrong.flat[0]:g} is out of range; allowed: {low:g}{top}")
