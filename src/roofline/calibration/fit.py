"""Fits the constants of a kernel model to measured times, and says how far to trust the result.

A model is any function `model(constants, columns) -> seconds`, where `constants` is a frozen dataclass with a
class variable `BOUNDS = {field: (low, high)}` and `columns` maps names to arrays with one element per measured row.
The residual of a row is ln(predicted / measured): relative errors count alike at 2 us and at 2 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from roofline.errors import InputError

C = TypeVar("C")
Columns = Mapping[str, np.ndarray]
Model = Callable[[Any, Columns], np.ndarray]

LOSS_SCALE = 0.1  # [-] log residuals below this count squared, above it linearly (soft L1): outliers do not steer
AT_BOUND = 0.005  # [-] share of the transformed range within which a constant counts as sitting on its bound


@dataclass(frozen=True, slots=True)
class Fit:
    """The constants found, with residuals ln(predicted / measured) of the rows they were fitted on."""

    constants: Any
    residuals: np.ndarray  # [-] one per row
    at_bound: dict[str, str]  # field -> "low" or "high", for each fitted constant that ended on its bound
    cost: float  # soft-L1 loss at the optimum, priors included


@dataclass(frozen=True, slots=True)
class Errors:
    """How predictions compare with measurements; `bias` is the median of predicted/measured - 1 (+ = too slow)."""

    rows: int
    mape: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the `achieved` block of a hardware file: constants, where they come from and how good they are."""

    format: str
    engine: str
    kernel: str
    constants: dict[str, float]
    rows: int
    mape: float
    bias: float
    bands: dict[str, list[float]]
    date: str
    source: str
    method: str
    at_bound: dict[str, str] = field(default_factory=dict)


# --- the fit ---------------------------------------------------------------------------------------------------


def _forward(x: float, low: float, high: float) -> float:
    """Return the coordinate in which a constant is fitted: ln x, or ln(1 + 100 x / high) where 0 is allowed."""
    return math.log(x) if low > 0 else math.log1p(100.0 * x / high)


def _inverse(u: float, low: float, high: float) -> float:
    """Return the constant at coordinate `u`; the inverse of `_forward`, kept inside the bounds."""
    x = math.exp(u) if low > 0 else math.expm1(u) * high / 100.0
    return min(max(x, low), high)


def fit(
    model: Model,
    start: C | Sequence[C],
    columns: Columns,
    measured_s: np.ndarray,
    *,
    free: Iterable[str] | None = None,
    priors: Mapping[str, tuple[float, float]] | None = None,
    weights: np.ndarray | None = None,
    start_rows: int = 300,
    max_evaluations: int = 40,
) -> Fit:
    """Return the constants within `BOUNDS` whose predictions lie closest to the measured times.

    Formula:  min over c of  sum_i w_i rho(ln(t_i(c) / t_i) / 0.1) + sum_j ((u(c_j) - u(c_j0)) / sigma_j)^2,
              rho(z) = 2 (sqrt(1 + z^2) - 1); u is ln c, or ln(1 + 100 c / high) where 0 is allowed
    Args:     model (constants, columns) -> [s]; start: one or several records to begin from (the best start on
              `start_rows` rows is polished on all); columns: name -> array [rows]; measured_s [s];
              free: fields to fit (all in BOUNDS unless said), the others keep their value of `start`;
              priors: field -> (value, sigma in units of u): a pull towards a physical value; weights [-] per row
    Returns:  Fit
    Assumes:  the model is finite and positive everywhere inside the bounds; small jumps (tile choice) are allowed,
              derivatives are taken over 0.2 % steps
    Source:   soft-L1 least squares, scipy.optimize.least_squares (trust region reflective)
    """
    from scipy.optimize import least_squares

    starts = list(start) if isinstance(start, (list, tuple)) else [start]
    bounds = type(starts[0]).BOUNDS
    names = [f.name for f in fields(starts[0]) if f.name in (bounds if free is None else set(free))]
    if free is not None and set(free) - set(names):
        raise InputError(f"free: no such constants {sorted(set(free) - set(names))}; allowed: {', '.join(bounds)}")
    measured_s = np.asarray(measured_s, float)
    if not len(measured_s):
        raise InputError("measured_s: no rows to fit")
    if not np.all(np.isfinite(measured_s)) or np.any(measured_s <= 0):
        raise InputError("measured_s: every measured time must be finite and positive")
    columns = {k: np.asarray(v) for k, v in columns.items()}
    root_w = np.sqrt(np.ones(len(measured_s)) if weights is None else np.asarray(weights, float))
    low = np.array([_forward(bounds[n][0], *bounds[n]) for n in names])
    high = np.array([_forward(bounds[n][1], *bounds[n]) for n in names])
    pulls = [(names.index(n), _forward(v, *bounds[n]), s) for n, (v, s) in (priors or {}).items() if n in names]

    def constants_at(base, u):
        return replace(base, **{n: _inverse(ui, *bounds[n]) for n, ui in zip(names, u)})

    def residuals_at(base, u, rows):
        predicted = model(constants_at(base, u), {k: v[rows] for k, v in columns.items()})
        r = root_w[rows] * np.log(predicted / measured_s[rows]) / LOSS_SCALE
        # sqrt(2 (sqrt(1 + z^2) - 1)): its square is the soft-L1 loss, so that the priors can stay plain squares
        r = np.sign(r) * np.sqrt(2.0 * (np.sqrt(1.0 + r * r) - 1.0))
        return np.concatenate([r, [(u[j] - u0) / s for j, u0, s in pulls]])

    def solve(base, u, rows, evaluations):
        u = np.clip(u, low + 1e-6 * (high - low), high - 1e-6 * (high - low))
        return least_squares(
            lambda v: residuals_at(base, v, rows), u, bounds=(low, high), diff_step=2e-3, x_scale="jac",
            xtol=1e-4, ftol=1e-5, max_nfev=evaluations,
        )

    everything = np.arange(len(measured_s))
    if not names:
        residuals = np.log(model(starts[0], columns) / measured_s)
        return Fit(starts[0], residuals, {}, float("nan"))
    begins = [(s, np.array([_forward(getattr(s, n), *bounds[n]) for n in names])) for s in starts]
    if len(begins) > 1:
        few = sample_rows(len(everything), start_rows)
        tried = [(solve(s, u, few, max(8, max_evaluations // 3)), s) for s, u in begins]
        best, base = min(tried, key=lambda pair: pair[0].cost)
        begins = [(base, best.x)]
    base, u = begins[0]
    found = solve(base, u, everything, max_evaluations)
    constants = constants_at(base, found.x)
    near = AT_BOUND * (high - low)
    at_bound = {n: "low" for n, ui, lo, d in zip(names, found.x, low, near) if ui < lo + d}
    at_bound |= {n: "high" for n, ui, hi, d in zip(names, found.x, high, near) if ui > hi - d}
    return Fit(constants, np.log(model(constants, columns) / measured_s), at_bound, float(found.cost))


def sample_rows(rows: int, limit: int, strata: Sequence | None = None, seed: int = 0) -> np.ndarray:
    """Return sorted indices of at most `limit` of `rows` rows, drawn evenly over `strata` where given."""
    if rows <= limit:
        return np.arange(rows)
    rng = np.random.default_rng(seed)
    order = rng.permutation(rows)
    if strata is not None:
        labels = np.unique(np.asarray(strata), return_inverse=True)[1][order]
        nth = np.empty(rows, int)  # how many of the same stratum come before this row
        for label in range(labels.max() + 1):
            where = np.flatnonzero(labels == label)
            nth[where] = np.arange(len(where))
        order = order[np.argsort(nth, kind="stable")]
    return np.sort(order[:limit])


def group_folds(groups: Sequence, folds: int = 5, seed: int = 0) -> np.ndarray:
    """Return the fold number of every row, so that rows of one group share a fold and folds have like sizes."""
    labels, inverse, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(-counts[order], kind="stable")]
    fold_of, filled = np.zeros(len(labels), int), np.zeros(folds)
    for label in order:
        fold_of[label] = int(np.argmin(filled))
        filled[fold_of[label]] += counts[label]
    return fold_of[inverse]


def held_out_residuals(
    model: Model,
    start: C | Sequence[C],
    columns: Columns,
    measured_s: np.ndarray,
    groups: Sequence,
    *,
    folds: int = 5,
    seed: int = 0,
    **fit_arguments: Any,
) -> np.ndarray:
    """Return ln(predicted / measured) of every row, predicted by constants fitted without the row's group.

    Rows are cut by `group_folds`; with a single group there is nothing to hold out and every residual is nan.
    """
    measured_s = np.asarray(measured_s, float)
    columns = {k: np.asarray(v) for k, v in columns.items()}
    folds = min(folds, len(np.unique(np.asarray(groups))))
    residuals = np.full(len(measured_s), np.nan)
    if folds < 2:
        return residuals
    fold = group_folds(groups, folds, seed)
    weights = fit_arguments.pop("weights", None)
    for f in range(folds):
        keep, out = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        inside = {k: v[keep] for k, v in columns.items()}
        w = None if weights is None else np.asarray(weights)[keep]
        constants = fit(model, start, inside, measured_s[keep], weights=w, **fit_arguments).constants
        residuals[out] = np.log(model(constants, {k: v[out] for k, v in columns.items()}) / measured_s[out])
    return residuals


# --- what to say about it --------------------------------------------------------------------------------------


def errors(residuals: np.ndarray) -> Errors:
    """Return the error summary of residuals ln(predicted / measured); nan rows are left out."""
    relative = np.expm1(np.asarray(residuals, float))
    relative = relative[np.isfinite(relative)]
    if not len(relative):
        return Errors(0, math.nan, math.nan, math.nan, math.nan)
    size = np.abs(relative)
    return Errors(
        len(size), float(size.mean()), float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(relative))
    )


def bands(
    residuals: np.ndarray, regimes: Sequence[str], *, share: float = 0.8, least: int = 20
) -> dict[str, list[float]]:
    """Return [low, high] of measured / predicted that holds `share` of the rows, per regime and under `all`.

    Formula:  quantiles (1 - share)/2 and (1 + share)/2 of exp(-residual), at position (n + 1) q of the sorted rows, so
              that a further row of the same kind falls inside with probability `share` (few rows: wider bands)
    Regimes with fewer than `least` rows are left out; the reader falls back on `all`.
    """
    ratio = np.exp(-np.asarray(residuals, float))
    regimes = np.asarray(regimes)
    good = np.isfinite(ratio)
    cuts = [(1 - share) / 2, (1 + share) / 2]
    out = {"all": ratio[good]} | {str(r): ratio[good & (regimes == r)] for r in np.unique(regimes[good])}
    return {
        name: [round(float(q), 3) for q in np.quantile(v, cuts, method="weibull")]
        for name, v in out.items()
        if len(v) and (name == "all" or len(v) >= least)
    }


def entry(
    found: Fit,
    held_out: np.ndarray,
    regimes: Sequence[str],
    *,
    format: str,
    engine: str,
    kernel: str = "any",
    date: str,
    source: str,
    method: str = "soft-L1 log ratio; grouped folds",
) -> Entry:
    """Return the record for the `achieved` block: constants from all rows, errors and bands from held-out rows."""
    e = errors(held_out)
    bounds = type(found.constants).BOUNDS
    values = {f.name: float(f"{getattr(found.constants, f.name):.4g}") for f in fields(found.constants)}
    # a time or share that the fit drove towards 0 is written as 0, not as 1e-17
    values = {n: 0.0 if n in bounds and bounds[n][0] == 0 and v < 1e-4 * bounds[n][1] else v for n, v in values.items()}
    return Entry(
        str(format), str(engine), str(kernel), values, len(found.residuals), round(e.mape, 4), round(e.bias, 4),
        bands(held_out, regimes), date, source, method, found.at_bound,
    )


def bound_report(entries: Iterable[Entry]) -> list[str]:
    """Return one line for every constant that ended on its bound: an effective number rather than a physical one."""
    return [
        f"{e.format} {e.engine} {e.kernel}: {name} = {e.constants[name]:.4g} is at its {side} bound"
        for e in entries
        for name, side in e.at_bound.items()
    ]


# --- YAML ------------------------------------------------------------------------------------------------------


def flow_line(e: Entry) -> str:
    """Return an entry as one line of YAML in flow style, fields in their declared order, empty ones left out."""
    record = {f.name: getattr(e, f.name) for f in fields(e) if getattr(e, f.name) not in ({}, "")}
    return yaml.safe_dump(record, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True).strip()


def write_entries(path: Path | str, op: str, entries: Sequence[Entry]) -> None:
    """Write `achieved: {op: [entries]}` with one line per entry, replacing the file at once."""
    path = Path(path)
    lines = ["achieved:", f"  {op}:", *(f"    - {flow_line(e)}" for e in entries)]
    scratch = path.with_name(path.name + ".part")
    scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    scratch.replace(path)


def read_entries(path: Path | str) -> dict[str, list[Entry]]:
    """Return the entries of an `achieved` file by op."""
    blocks = yaml.safe_load(Path(path).read_text(encoding="utf-8"))["achieved"]
    return {op: [Entry(**record) for record in records] for op, records in blocks.items()}
