"""What a sweep returns: named arrays over a mesh, and the questions one asks of them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.errors import InfeasibleError, InputError, RooflineError, UnknownNameError, check_number
from roofline.estimates import estimate
from roofline.files import write_atomically
from roofline.plotted import Plotted
from roofline.serving.load import KNOBS
from roofline.serving.recipes import with_scheduler
from roofline.specs.engine import engine_named
from roofline.sweeps.evaluate import TEXTS, Reason
from roofline.sweeps.grid import Grid, label
from roofline.sweeps.metrics import metric

if TYPE_CHECKING:
    import pandas as pd

    from roofline.estimates import Estimate

MISSING = "the optional package '{0}' is needed for that; install it with: pip install 'roofline[{1}]'"


@dataclass(frozen=True)
class Point:
    """One point of a sweep: where it is, and what was found there."""

    index: tuple[int, ...]
    inputs: Mapping[str, Any]  # every input, swept or not, as `estimate` takes it
    values: Mapping[str, float]  # every metric

    def __getitem__(self, name: str) -> Any:
        return self.values[name] if name in self.values else self.inputs[name]

    def __str__(self) -> str:
        where = ", ".join(f"{k} {label(v)}" for k, v in self.inputs.items() if v is not None)
        return f"{where}: " + ", ".join(f"{k} {v:.4g}" for k, v in self.values.items())

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Sweep(Plotted, figures=("frontier", "cost")):
    """Metrics over a mesh of inputs. Every metric and every swept input is an attribute: an array that broadcasts.

    >>> from roofline.sweeps import sweep
    >>> s = sweep("llama-3.1-8b", "h100-sxm", tp=[1, 2], batch=[1, 8, 64], isl=1000, osl=100)
    >>> s.shape, bool(s.tpot_s[1, 0] < s.tpot_s[0, 0])
    ((2, 3), True)
    """

    grid: Grid
    columns: Mapping[str, np.ndarray]
    reasons: np.ndarray  # Reason flags
    messages: Mapping[int, str] = field(default_factory=dict)  # of combinations without a deployment
    chosen: np.ndarray | None = None  # what `where` left

    def __getattr__(self, name: str) -> np.ndarray:
        columns = self.__dict__.get("columns", {})
        if name in columns:
            return columns[name]
        if not name.startswith("_") and name in self.__dict__.get("grid", _NO_GRID).swept:
            return self.grid.coordinate(name)
        known = [*columns, *self.__dict__.get("grid", _NO_GRID).swept]
        raise AttributeError(f"a sweep has no '{name}'; it has {', '.join(known)}")

    def __len__(self) -> int:
        return int(self.reasons.size)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the swept dimensions."""
        return self.reasons.shape

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Swept inputs and their values, in the order of the dimensions."""
        return {name: [label(v) for v in self.grid.coordinate(name).ravel().tolist()] for name in self.grid.swept}

    @property
    def feasible(self) -> np.ndarray:
        """True where the point can be run and `where` left it in."""
        runs = self.reasons == 0
        return runs if self.chosen is None else runs & self.chosen

    def why_not(self) -> dict[str, int]:
        """How many points cannot be run, by reason."""
        return {TEXTS[r]: n for r in Reason if (n := int(np.count_nonzero(self.reasons & int(r))))}

    # Questions.

    def where(self, condition: np.ndarray | bool) -> Sweep:
        """The same sweep with only the points that meet a condition left in; it broadcasts: `s.where(s.tp <= 4)`."""
        told = np.asarray(condition)
        if told.dtype != bool:
            raise InputError(f"where: {condition!r:.60} is no condition; give one such as s.tpot_s < 0.03")
        try:
            mask = np.broadcast_to(told, self.shape)
        except ValueError:
            raise InputError(f"where: a condition of shape {np.shape(condition)} does not fit {self.shape}") from None
        return replace(self, chosen=mask if self.chosen is None else self.chosen & mask)

    def best(self, name: str, largest: bool | None = None) -> Point:
        """The feasible point with the best value of a metric (of equals the first); `largest` turns the direction."""
        values = self._column(name)
        allowed = self.feasible & np.isfinite(values)
        if not allowed.any():
            raise InfeasibleError(f"no point is left: {self._reasons_text()}")
        up = metric(name).larger_is_better if largest is None else largest
        flat = np.where(allowed, -values if up else values, np.inf).argmin()
        return self.point(tuple(int(i) for i in np.unravel_index(flat, self.shape)))

    def pareto(self, x: str, y: str) -> list[Point]:
        """Feasible points that no other beats in both metrics, by x from best to worst.

        Formula:  sort by x; keep what improves y
        """
        xs, ys = (self._column(n) * (-1.0 if metric(n).larger_is_better else 1.0) for n in (x, y))
        flat = np.flatnonzero(self.feasible & np.isfinite(xs) & np.isfinite(ys))
        order = flat[np.lexsort((ys.ravel()[flat], xs.ravel()[flat]))]
        best = ys.ravel()[order]
        keep = np.concatenate(([True], best[1:] < np.minimum.accumulate(best)[:-1])) if order.size else []
        return [self.point(tuple(int(i) for i in np.unravel_index(f, self.shape))) for f in order[keep]]

    def point(self, index: tuple[int, ...]) -> Point:
        """The point with that place in the arrays."""
        inputs: dict[str, Any] = {name: values[0] for name, values in self.grid.structure.items()}
        inputs |= {name: float(values[0]) for name, values in self.grid.numbers.items()}
        for (names, values), i in zip(self.grid.dimensions, index):
            inputs |= dict(zip(names, values[i])) if len(names) > 1 else {names[0]: values[i]}
        return Point(tuple(index), inputs, {name: float(column[index]) for name, column in self.columns.items()})

    def at(self, point: Point | None = None, **inputs: Any) -> Estimate:
        """The full estimate of a point, or of the point nearest to the named numbers; names and layouts are exact.

        An input that is not named is at its first value.

        >>> from roofline.sweeps import sweep
        >>> s = sweep("llama-3.1-8b", "h100-sxm", batch=[1, 8, 64])
        >>> bool(s.at(batch=8).tpot_s.value == s.tpot_s[1])
        True
        """
        found = point or self.point(self._nearest(inputs))
        given = dict(found.inputs)
        knobs = {name: given.pop(name) for name in KNOBS if name in given}
        if knobs:
            whole = {k: int(v) if v == int(v) and not k.endswith("_s") else v for k, v in knobs.items()}
            given["engine"] = with_scheduler(engine_named(given["engine"]), whole)
        return estimate(given.pop("model"), given.pop("hw"), specs=self.grid.specs, **given)

    def _nearest(self, inputs: Mapping[str, Any]) -> tuple[int, ...]:
        index = [0] * len(self.grid.dimensions)
        for name, wanted in inputs.items():
            place = next((i for i, (names, _) in enumerate(self.grid.dimensions) if name in names), None)
            if place is None:
                raise UnknownNameError("swept input", name, self.grid.swept)
            values = self.grid.coordinate(name).ravel()
            if name in self.grid.structure:
                known = [str(v) for v in values]
                if str(label(wanted)) not in known:
                    raise UnknownNameError(f"{name} of this sweep", str(label(wanted)), known)
                index[place] = known.index(str(label(wanted)))
            else:
                index[place] = int(np.abs(values - check_number(name, wanted)).argmin())
        return tuple(index)

    def _column(self, name: str) -> np.ndarray:
        if name not in self.columns:
            metric(name)
            raise InputError(f"'{name}' was not computed; add it: sweep(..., metrics=[{name!r}, ...])")
        return self.columns[name]

    def _reasons_text(self) -> str:
        told = [f"{n} x {text}" for text, n in self.why_not().items()] + list(dict.fromkeys(self.messages.values()))[:3]
        return "; ".join(told) or "every point was excluded by where()"

    # Elsewhere.

    def to_pandas(self, feasible_only: bool = False) -> pd.DataFrame:
        """One row a point: swept inputs, metrics, and why it cannot be run (0: it can)."""
        import pandas as pd

        frame = pd.DataFrame({name: values.ravel() for name, values in self.table().items()})
        return frame[self.feasible.ravel()].reset_index(drop=True) if feasible_only else frame

    def table(self) -> dict[str, np.ndarray]:
        """Inputs, metrics and reasons by name, all in the shape of the mesh."""
        inputs = {n: np.broadcast_to(self.grid.coordinate(n), self.shape) for n in self.grid.swept}
        return inputs | dict(self.columns) | {"reasons": self.reasons}

    def to_parquet(self, path: str | Path) -> None:
        """Write the table of `to_pandas` as one parquet file."""
        require("pyarrow", "parquet")
        held = io.BytesIO()
        self.to_pandas().to_parquet(held, index=False)
        write_atomically(path, held.getvalue())

    def to_xarray(self):
        """The metrics as an xarray Dataset with named dimensions."""
        xarray = require("xarray", "xarray")
        names = ["_".join(names) for names, _ in self.grid.dimensions]
        coords = {}
        for place, (each, _) in zip(names, self.grid.dimensions):
            coords |= {name: (place, self.grid.coordinate(name).ravel()) for name in each}
        data = {k: (names, v, {"unit": metric(k).unit}) for k, v in self.columns.items()}
        return xarray.Dataset(data | {"reasons": (names, self.reasons)}, coords)

    def __repr__(self) -> str:
        axes = " x ".join(f"{name} ({len(values)})" for name, values in self.axes.items()) or "one point"
        left = int(np.count_nonzero(self.feasible))
        excluded = int(np.count_nonzero(self.reasons == 0)) - left
        why = [f"{n:,} {text}" for text, n in self.why_not().items()] + ([f"{excluded:,} excluded"] if excluded else [])
        told = f"; {', '.join(why)}" if why else ""
        return f"Sweep of {len(self):,} points: {axes}; {left:,} feasible{told}"


class _NoGrid:
    swept: tuple[str, ...] = ()


_NO_GRID = _NoGrid()


class MissingPackageError(RooflineError):
    """An optional package is not installed."""


def require(package: str, extra: str):
    """The optional package, or a message that says how to get it."""
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError:
        raise MissingPackageError(MISSING.format(package, extra)) from None
