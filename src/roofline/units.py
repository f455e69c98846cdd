"""Reads and prints quantities; the only place where a prefix is a number.

A dimensional quantity in a spec or on a command line is text with its unit ('3.35 TB/s'); inside the package it is a
float in SI units (bytes, FLOP, seconds, watts) or US dollars. Decimal and binary prefixes differ: GB = 1e9 B,
GiB = 2**30 B.

    >>> parse("3.35 TB/s", "B/s"), parse("80 GiB", "B")
    (3350000000000.0, 85899345920.0)
    >>> format(3.35e12, "B/s"), format(85.03e9, "GiB")
    ('3.35 TB/s', '79.19 GiB')
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from roofline.errors import InputError

__all__ = [
    "Bytes",
    "BytesPerS",
    "FlopPerS",
    "Hertz",
    "Joules",
    "Params",
    "Seconds",
    "Usd",
    "UsdPerHour",
    "Watts",
    "format",
    "parse",
    "scale",
]

_LARGE = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SMALL = {"": 0, "m": -3, "u": -6, "µ": -6, "μ": -6, "n": -9}  # micro has two code points (U+00B5, U+03BC)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SHORT_SCALE = {"": 0, "k": 3, "K": 3, "M": 6, "B": 9, "T": 12}  # parameters: '70.6 B' is billions


@dataclass(frozen=True, slots=True)
class _Dimension:
    example: str
    units: dict[str, tuple[int, int]]  # spelling -> (power of ten, factor)
    shown: tuple[str, ...]  # spellings used for printing, smallest first


def _dimension(example: str, spellings: tuple[str, ...], prefixes: dict[str, int], shown: str, binary: bool = False):
    units = {p + s: (e, 1) for s in spellings for p, e in prefixes.items()}
    if binary:
        units |= {p + s: (0, 2**e) for s in spellings for p, e in _BINARY.items()}
    steps = sorted((e, p) for p, e in prefixes.items() if p not in ("K", "µ", "μ"))
    return _Dimension(example, units, tuple(p + shown for _, p in steps))


_DIMENSIONS: dict[str, _Dimension] = {
    "B": _dimension("80 GB", ("B",), _LARGE, "B", binary=True),
    "B/s": _dimension("3.35 TB/s", ("B/s",), _LARGE, "B/s", binary=True),
    "FLOP": _dimension("141 GFLOP", ("FLOP", "OP"), _LARGE, "FLOP"),
    "FLOP/s": _dimension("989.4 TFLOP/s", ("FLOP/s", "FLOPS", "OP/s", "OPS"), _LARGE, "FLOP/s"),
    "s": _dimension("3 us", ("s",), _SMALL, "s"),
    "Hz": _dimension("1.83 GHz", ("Hz",), _LARGE, "Hz"),
    "W": _dimension("700 W", ("W",), _LARGE | _SMALL, "W"),
    "J": _dimension("0.4 J", ("J",), _LARGE | _SMALL, "J"),
    "USD": _dimension("2.95 USD", ("USD",), {"": 0}, "USD"),
    "USD/h": _dimension("2.95 USD/h", ("USD/h",), {"": 0}, "USD/h"),
    "params": _dimension("70.6 B", ("", " params"), _SHORT_SCALE, ""),
}
_DIMENSIONS["W"].units.pop("KW")
_DIMENSIONS["s"].units.update({"min": (0, 60), "h": (0, 3600)})

_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*)", re.DOTALL | re.ASCII)


def parse(text: str, unit: str) -> float:
    """The quantity written in `text`, as a float in the base unit `unit` ('B', 'B/s', 'FLOP/s', 's', 'Hz', 'W', ...).

    Raises InputError for a missing or foreign unit, a bare number, a negative, an infinite or a not-a-number value.

    >>> parse("400 GB", "B/s")
    Traceback (most recent call last):
    ...
    roofline.errors.InputError: '400 GB' is not a quantity in B/s; e.g. '3.35 TB/s'
    """
    dimension = _DIMENSIONS[unit]
    if isinstance(text, bool) or not isinstance(text, str):
        raise InputError(f"{_short(text)} has no unit; write text with a unit in {unit}, e.g. '{dimension.example}'")
    match = _QUANTITY.fullmatch(text.strip())
    spelled = match and dimension.units.get(match[2])
    if not spelled:
        hint = "; a bare number has no unit" if match and not match[2] else ""
        raise InputError(f"{_short(text)} is not a quantity in {unit}{hint}; e.g. '{dimension.example}'")
    power, factor = spelled
    value = float(Decimal(match[1]).scaleb(power)) * factor  # Decimal: '989.4 TFLOP/s' is 9.894e14 to the last bit
    if value < 0 or not math.isfinite(value):
        raise InputError(f"{_short(text)} is out of range; a quantity in {unit} is finite and not negative")
    return value


@lru_cache(maxsize=256)
def scale(unit: str) -> float:
    """How many base units one `unit` is: scale('GiB') = 1073741824.0."""
    for dimension in _DIMENSIONS.values():
        if unit in dimension.units:
            return _base_units(dimension, unit)
    raise InputError(f"unknown unit {_short(unit)}")


def format(value: float, unit: str, digits: int = 4) -> str:
    """Text for people with `digits` significant digits: in a fitting decimal prefix if `unit` is a base unit,
    else in exactly that unit.

    >>> format(0.0273, "s"), format(9.894e14, "FLOP/s"), format(1.5e11, "GiB"), format(7.0553706496e10, "params")
    ('27.3 ms', '989.4 TFLOP/s', '139.7 GiB', '70.55 B')
    """
    value = float(value)
    dimension = _DIMENSIONS.get(unit)
    if dimension is None:
        return f"{_significant(value / scale(unit), digits)} {unit}"
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit if unit != 'params' else ''}".strip()
    chosen = dimension.shown[0]
    for spelling in dimension.shown:  # the largest unit in which the rounded number is at least 1
        if abs(float(f"{value / _base_units(dimension, spelling):.{digits}g}")) >= 1:
            chosen = spelling
    return f"{_significant(value / _base_units(dimension, chosen), digits)} {chosen}".strip()


def _base_units(dimension: _Dimension, spelling: str) -> float:
    power, factor = dimension.units[spelling]
    return float(Decimal(1).scaleb(power)) * factor


def _significant(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e" in text and 1 <= abs(value) < 1e15 else text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _reader(unit: str):
    def read(value: Any) -> float:
        try:
            return parse(value, unit)
        except InputError as error:  # pydantic collects ValueErrors and adds the field's path
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


# Field types of the specs: text with a unit in, float in SI units out.
Bytes = Annotated[float, _reader("B"), Field(gt=0)]
BytesPerS = Annotated[float, _reader("B/s"), Field(gt=0)]
FlopPerS = Annotated[float, _reader("FLOP/s"), Field(gt=0)]
Seconds = Annotated[float, _reader("s")]
Hertz = Annotated[float, _reader("Hz"), Field(gt=0)]
Watts = Annotated[float, _reader("W"), Field(gt=0)]
Joules = Annotated[float, _reader("J")]
Usd = Annotated[float, _reader("USD")]
UsdPerHour = Annotated[float, _reader("USD/h")]
Params = Annotated[float, _reader("params"), Field(gt=0)]
