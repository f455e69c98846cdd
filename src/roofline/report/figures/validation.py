"""Predicted against measured, with the bands that were promised and the errors that came out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullFormatter

from roofline.errors import InputError
from roofline.report.style import MARKERS, SERIES, Look, Picture, legend, logarithmic, title

if TYPE_CHECKING:
    import pandas as pd

MOST_GROUPS = 7
UNITS = {"_s": "s", "_us": "us", "_ms": "ms", "_bytes": "B", "_gib": "GiB"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of one quantity; `low` and `high` are the predicted 80 % band where there is one."""

    about: str
    quantity: str
    unit: str
    measured: np.ndarray
    predicted: np.ndarray
    group: tuple[str, ...]
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    @property
    def error(self) -> np.ndarray:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1.0

    @property
    def coverage(self) -> float | None:
        """Share of the measurements inside the band; None without one."""
        if self.low is None or self.high is None:
            return None
        return float(np.mean((self.measured >= self.low) & (self.measured <= self.high)))

    @property
    def summary(self) -> dict[str, float]:
        """Median and 90th percentile of the absolute error, and the median error."""
        size = np.abs(self.error)
        middle, high = np.quantile(size, (0.5, 0.9))
        return {"median": float(middle), "p90": float(high), "bias": float(np.median(self.error))}


def of(
    predictions: pd.DataFrame | str | Path,
    truth: pd.DataFrame | str | Path | None = None,
    quantity: str | None = None,
    by: str | None = None,
    about: str = "",
) -> Comparison:
    """A comparison of two tables that share `row_id`, or of one with columns `measured` and `predicted`.

    Args:     predictions: what 'roofline validate ... --out' writes, or one table with both; truth: the measured table;
              quantity: column that both have (of one table: what to call it); by: column to tell groups apart
    """
    ours = _table(predictions)
    if truth is None:
        if missing := {"measured", "predicted"} - set(ours.columns):
            raise InputError(f"the table lacks {', '.join(sorted(missing))}; or give the measured table, too (truth)")
        pairs = ours.assign(**{name: ours[name] for name in ("low", "high") if name in ours.columns})
        name = quantity or "value"
    else:
        pairs, name = _joined(ours, _table(truth), quantity)
    numbers = pairs[["measured", "predicted"]].apply(lambda c: c.where(c > 0)).notna().all(axis=1)
    pairs = pairs[numbers]
    if pairs.empty:
        raise InputError(f"no row has both a measured and a predicted '{name}'")
    if by is not None and by not in pairs.columns:
        raise InputError(f"by: there is no column '{by}'; there are {', '.join(map(str, pairs.columns))}")
    banded = {"low", "high"} <= set(pairs.columns) and pairs[["low", "high"]].notna().all(axis=None)
    unit = next((u for ending, u in UNITS.items() if name.endswith(ending)), "")
    return Comparison(
        about, name, unit, pairs["measured"].to_numpy(float), pairs["predicted"].to_numpy(float),
        tuple("all" if by is None else str(v) for v in (pairs[by] if by else pairs["measured"])),
        pairs["low"].to_numpy(float) if banded else None, pairs["high"].to_numpy(float) if banded else None,
    )  # fmt: skip


def _table(source: Any) -> pd.DataFrame:
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source
    if isinstance(source, (str, Path)):
        try:
            return pd.read_csv(source)
        except (OSError, ValueError) as error:
            raise InputError(f"'{source}' is not a table: {error}") from None
    raise InputError(f"predicted against measured is drawn of tables, not of a {type(source).__name__}")


def _joined(ours: pd.DataFrame, truth: pd.DataFrame, quantity: str | None) -> tuple[pd.DataFrame, str]:
    for name, table in (("predictions", ours), ("measurements", truth)):
        if "row_id" not in table.columns:
            raise InputError(f"the {name} lack the column row_id")
    both = [c for c in ours.columns if c in truth.columns and c != "row_id" and ours[c].dtype.kind == "f"]
    name = quantity or next(iter(both), None)
    if name not in both:
        raise InputError(f"quantity: '{name}' is not measured and predicted; both have {', '.join(both) or 'nothing'}")
    stem, _, unit = name.rpartition("_")
    bands = {f"{stem}_lo_{unit}": "low", f"{stem}_hi_{unit}": "high"}
    kept = ours[["row_id", name, *(c for c in bands if c in ours.columns)]].rename(columns={name: "predicted", **bands})
    return truth.rename(columns={name: "measured"}).merge(kept, on="row_id", validate="one_to_one"), name


def caption(c: Comparison) -> str:
    """What the figure says."""
    s = c.summary
    text = (
        f"{c.measured.size:,} rows of {c.quantity}: median error {s['median']:.1%}, 90th percentile {s['p90']:.1%}, "
        f"bias {s['bias']:+.1%}"
    )
    return text + (f"; {c.coverage:.0%} of the measurements lie in the 80 % band." if c.coverage is not None else ".")


def draw(figure: Picture, how: Look, c: Comparison) -> None:
    """Draw it, on logarithmic axes of one scale."""
    s = c.summary
    errors = f"{c.measured.size:,} rows, median error {s['median']:.1%}, p90 {s['p90']:.1%}"
    title(figure, how, f"Predicted against measured: {c.quantity}", f"{c.about}: {errors}" if c.about else errors)
    axes = figure.subplots()
    every = np.concatenate((c.measured, c.predicted))
    span = (float(every.min()) / 1.4, float(every.max()) * 1.4)
    logarithmic(axes, span, span)
    ends = np.array(span)
    for share, alpha in ((0.2, 0.5), (0.1, 0.9)):
        axes.fill_between(ends, ends * (1 - share), ends * (1 + share), color=how.theme.grid, alpha=alpha, linewidth=0,
                          zorder=0.5)  # fmt: skip
    axes.plot(ends, ends, color=how.theme.muted, linewidth=1.0, zorder=1)
    names, counts = np.unique(c.group, return_counts=True)
    names = names[np.argsort(-counts, kind="stable")]
    if len(names) > MOST_GROUPS:
        names = np.append(names[: MOST_GROUPS - 1], "others")
    group = np.array([g if g in names else "others" for g in c.group])
    size = 1.9 * how.size.text * np.clip(60.0 / c.measured.size, 0.25, 1.0) ** 0.5
    for i, name in enumerate(names):
        mine = group == name
        if c.low is not None and c.high is not None and c.measured.size <= 400:
            bars = {"color": SERIES[i], "alpha": 0.35, "linewidth": 1.0, "zorder": 2}
            axes.vlines(c.measured[mine], c.low[mine], c.high[mine], **bars)
        axes.scatter(c.measured[mine], c.predicted[mine], s=size, color=SERIES[i], marker=MARKERS[i], alpha=0.8,
                     edgecolors=how.theme.paper, linewidths=0.3, zorder=3)  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(EngFormatter(unit=c.unit if c.unit in ("s", "B") else "", sep=" "))
        axis.set_minor_formatter(NullFormatter())
    unit = f" [{c.unit}]" if c.unit else ""
    axes.set_xlabel(f"Measured {c.quantity}{unit}")
    axes.set_ylabel(f"Predicted{unit}" if how.narrow else f"Predicted {c.quantity}{unit}")
    handles = [
        Line2D([], [], linestyle="", marker=MARKERS[i], color=SERIES[i], label=name)
        for i, name in enumerate(names)
        if name != "all"
    ]
    handles += [
        Line2D([], [], color=how.theme.grid, linewidth=8, label="within 10 and 20 %"),
        Line2D([], [], color=how.theme.muted, linewidth=1.0, label="equal"),
    ]
    if c.coverage is not None:
        handles.append(Line2D([], [], color=SERIES[0], alpha=0.5, marker="|", linestyle="", markersize=how.size.text,
                              label=f"80 % band: holds {c.coverage:.0%}"))  # fmt: skip
    legend(figure, how, handles)
