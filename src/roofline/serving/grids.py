"""Functions of one or two numbers as tables, linear between points whose place the bits of a number say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array, larger

MANTISSA, EXPONENT = 52, 1023  # of a double: bits after the point, and the exponent of 1 as it is stored

Place = tuple[np.ndarray, np.ndarray]  # on an axis: the cell, and the share of the way through it


@dataclass(frozen=True, slots=True)
class Axis:
    """Points from 1 on: every octave is cut into 2**cuts equal parts, so that the bits of a number say its place."""

    cuts: int
    octaves: int

    @property
    def points(self) -> np.ndarray:
        """The points themselves."""
        cells = np.arange(self.octaves << self.cuts)
        parts = 1 << self.cuts
        return np.append(2.0 ** (cells // parts) * (1.0 + cells % parts / parts), 2.0**self.octaves)

    def place(self, x: Array) -> Place:
        """Cell of x and the share of the way through it; below 1 the first point, beyond the end on its last slope."""
        x = np.asarray(larger(x, 1.0), float)
        bits = x.view(np.int64)
        cell = (bits >> (MANTISSA - self.cuts)) - (EXPONENT << self.cuts)
        # the bits after those that name the cell, under the exponent of 1: 1 + share
        share = (((bits << self.cuts) & ((1 << MANTISSA) - 1)) | (EXPONENT << MANTISSA)).view(np.float64) - 1.0
        last = (self.octaves << self.cuts) - 1
        if cell.max(initial=0) > last:
            low, end = self.points[-2:]
            share = np.where(cell > last, (x - low) / (end - low), share)
            cell = np.minimum(cell, last)
        return cell, share


@dataclass(frozen=True, slots=True)
class Line:
    """Lanes along an axis, linear between its points."""

    values: np.ndarray  # [lane, point]
    rises: np.ndarray  # [lane, cell], to the next point

    @classmethod
    def of(cls, values: np.ndarray) -> Line:
        """The line through values at the points of an axis, which comes last."""
        return cls(values, np.diff(values))

    def at(self, place: Place) -> np.ndarray:
        """Lanes at a place on the axis."""
        i, share = place
        return self.values.take(i, axis=1) + share * self.rises.take(i, axis=1)


@dataclass(frozen=True, slots=True)
class Sheet:
    """Lanes along two axes, linear in both directions between their points. All fields [lane, cell of x and of y]."""

    values: np.ndarray  # at the lower corner
    along_x: np.ndarray  # rises from there to the next point
    along_y: np.ndarray
    twist: np.ndarray  # by which a rise grows along the other axis
    columns: int  # cells of y

    @classmethod
    def of(cls, values: np.ndarray) -> Sheet:
        """The sheet through values at the points of two axes, which come last."""
        along_x, along_y = np.diff(values, axis=1), np.diff(values, axis=2)
        cells = values[:, :-1, :-1], along_x[..., :-1], along_y[:, :-1], np.diff(along_x, axis=2)
        return cls(*(each.reshape(len(values), -1) for each in cells), columns=values.shape[2] - 1)

    def at(self, x: Place, y: Place) -> np.ndarray:
        """Lanes at a place on each axis."""
        (i, u), (j, v) = x, y
        cell = i * self.columns + j
        values, along_x, along_y, twist = (
            each.take(cell, axis=1) for each in (self.values, self.along_x, self.along_y, self.twist)
        )
        return values + v * along_y + u * (along_x + v * twist)
