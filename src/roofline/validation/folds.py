"""Closed loops predicted with a group of rows left out: what a table of servers fixed is refitted on the others.

Kernel constants come from other tables and stay; so do the structure and the recipe table. Refitted are factors on the
engine constants of steps with prompts and of the tokeniser.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import InputError, RooflineError
from roofline.serving.steady import steady_state
from roofline.serving.steps import step_table
from roofline.validation.serving import asked, point_of, rank_correlation, sound

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("model", "system", "backend")
SCALE = 0.15  # of the logarithm of an error, beyond which it counts less
FARTHEST = 1.2  # logarithm of a factor
PULL = 0.05  # weight of a factor's logarithm beside the rows: what they do not determine stays
EVALUATIONS = 8


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors on the constants that a table of servers fixed; 1 is what the engine profiles say."""

    launch: float = 1.0
    hopper: float = 1.0  # beside `launch`, on that architecture
    latent: float = 1.0  # beside `launch`, with latent attention
    linear: float = 1.0  # beside `launch`, with linear attention
    layer: float = 1.0
    text: float = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """Rows that share a deployment, and what is asked of it."""

    rows: np.ndarray
    deployment: Deployment
    ask: dict[str, Any]

    def predicted(self, f: Factors) -> np.ndarray:
        """TPOT and TTFT of the rows [s]."""
        table, kinds = step_table(self.deployment), self.deployment.model.has_attention
        launch = f.launch * (f.hopper if self.deployment.accelerator.architecture == "Hopper" else 1.0)
        launch *= (f.latent if kinds("mla") else 1.0) * (f.linear if kinds("gated_delta") or kinds("kda") else 1.0)
        where = copy.copy(self.deployment)
        vars(where)["_step_table"] = replace(table, launch_s=table.launch_s * launch, layers_s=table.layers_s * f.layer)
        state = steady_state(where, **self.ask | {"tokenizer_token_s": self.ask["tokenizer_token_s"] * f.text})
        return np.stack([state.tpot_s, state.ttft_s], axis=1)


def cases(frame: pd.DataFrame, models_dir: str | Path | None = None) -> Iterator[Case]:
    """The aggregated rows of a table that can be answered, by deployment."""
    groups: dict[tuple, list] = {}
    for i, row in enumerate(frame.to_dict(orient="records")):
        if str(row.get("serving_mode", "agg")) == "agg":
            try:
                key, point = point_of(row, models_dir)
            except RooflineError:
                continue
            groups.setdefault(key, []).append((i, point))
    for members in groups.values():
        points = [p for _, p in members]
        yield Case(np.array([i for i, _ in members]), points[0].deployment, asked(points))


def predicted(found: list[Case], f: Factors, rows: int) -> np.ndarray:
    """TPOT and TTFT [rows, 2] [s] of all cases; NaN where a row is in none."""
    out = np.full((rows, 2), np.nan)
    for case in found:
        out[case.rows] = case.predicted(f)
    return out


def fitted(found: list[Case], truth: np.ndarray, known: np.ndarray) -> Factors:
    """The factors that bring the rows `known` nearest to their measurements.

    Formula:  least soft-L1 of ln(predicted/measured), TPOT and TTFT alike, plus PULL ln(factor)
    Args:     truth [rows, 2] [s]; known [rows]
    Returns:  Factors [-]
    Source:   scipy.optimize.least_squares
    """
    from scipy.optimize import least_squares

    def residuals(logs: np.ndarray) -> np.ndarray:
        ratio = predicted(found, Factors(*np.exp(logs)), len(truth)) / truth
        return np.append(np.log(ratio[known]).ravel(), PULL * logs)

    start = np.zeros(len(Factors.__slots__))
    fit = least_squares(
        residuals, start, loss="soft_l1", f_scale=SCALE, diff_step=0.02, max_nfev=EVALUATIONS,
        bounds=(-FARTHEST, FARTHEST),
    )  # fmt: skip
    return Factors(*np.exp(fit.x))


def left_out(frame: pd.DataFrame, models_dir: str | Path | None = None) -> dict[str, pd.DataFrame]:
    """For model, system and engine: errors of each group, and of all, predicted by factors that never saw the group.

    Of a table with tiers only the rows of tier A are used.

    Args:     frame: schema of the end-to-end serving table, measured; models_dir: as `predict_serving`
    Returns:  title -> DataFrame[left out, rows, tpot mean, tpot median, tpot rank, ttft mean, ...]: errors in %,
              rank correlation [-]
    Errors:   InputError for absent columns
    """
    import pandas as pd

    frame = frame[sound(frame)].reset_index(drop=True)
    if absent := [c for c in (*COLUMNS, "tpot_s", "ttft_s") if c not in frame.columns]:
        raise InputError(f"leaving groups out needs the column{'s' * (len(absent) > 1)} {', '.join(absent)}")
    found, truth = list(cases(frame, models_dir)), frame[["tpot_s", "ttft_s"]].to_numpy(float)
    shipped = predicted(found, Factors(), len(frame))
    usable = np.all(np.isfinite(shipped) & (truth > 0), axis=1)
    tables = {}
    for column in COLUMNS:
        names, out, lines = frame[column].astype(str).to_numpy(), shipped.copy(), []
        for name in np.unique(names[usable]):
            group = usable & (names == name)
            if np.any(usable & ~group):
                out[group] = predicted(found, fitted(found, truth, usable & ~group), len(frame))[group]
                lines.append({"left out": name} | _line(out[group], truth[group]))
        lines.append({"left out": "each in turn"} | _line(out[usable], truth[usable]))
        tables[f"errors in %, {column} left out"] = pd.DataFrame(lines)
    return tables


def _line(guess: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    off, line = 100.0 * np.abs(guess / truth - 1.0), {"rows": len(truth)}
    for j, name in enumerate(("tpot", "ttft")):
        line |= {f"{name} mean": off[:, j].mean(), f"{name} median": np.median(off[:, j])}
        line[f"{name} rank"] = rank_correlation(guess[:, j], truth[:, j])
    return line
