"""Predicts tables of measured servers under a closed loop, and says how far off it is.

One row is one operating point: model, system, engine, formats, layout, lengths and concurrency in; TTFT and TPOT out.
Measured columns may be absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import InputError, RooflineError, SpecError
from roofline.parallel import Plan
from roofline.precision import Precision, precision_named
from roofline.serving.bands import tpot_band, ttft_band
from roofline.serving.capacity import kv_sequences
from roofline.serving.lengths import uniform
from roofline.serving.load import KNOBS
from roofline.serving.recipes import Run, configured, warm, with_graphs
from roofline.serving.steady import steady_state
from roofline.specs.engine import Engine, engine_named, release
from roofline.specs.hardware import Accelerator
from roofline.specs.hf import from_hf_config
from roofline.specs.library import hardware
from roofline.specs.model import Model
from roofline.validation.memory import resolve

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = ("row_id", "model", "system", "backend", "weight_dtype", "isl_max_tokens", "osl_max_tokens", "concurrency")
ANSWERS = ("ttft_s", "tpot_s", "ttft_lo_s", "ttft_hi_s", "tpot_lo_s", "tpot_hi_s")
REQUESTS_PER_SEAT = 10.0  # a run sends ten times as many requests as it keeps in flight; the first wave is a burst
MOST_UTILISATION = 0.95  # of the device's memory, as far as launch scripts go


@dataclass(frozen=True, slots=True)
class Point:
    """A row as far as it was understood: one replica, and its share of the load."""

    deployment: Deployment
    run: Run
    isl_max: float
    osl_max: float
    ratio: float
    concurrency: float


def predict_serving(frame: pd.DataFrame, models_dir: str | Path | None = None) -> pd.DataFrame:
    """TTFT and TPOT of every row, with 80 % bands, or the reason why not.

    Args:     frame: schema of the end-to-end serving table; models_dir: a folder of configs for models that the library
              lacks (the column `hf_config` names the file)
    Returns:  DataFrame[row_id, ttft_s, tpot_s, ttft_lo_s, ttft_hi_s, tpot_lo_s, tpot_hi_s, reason]
    Errors:   InputError for absent columns
    """
    import pandas as pd

    from roofline.validation.disaggregated import predict_pools

    if absent := [c for c in REQUIRED if c not in frame.columns]:
        raise InputError(f"the table lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)}")
    if models_dir is not None and not Path(models_dir).is_dir():
        raise InputError(f"'{models_dir}' is not a folder of model configs")
    out = pd.DataFrame(np.nan, index=range(len(frame)), columns=list(ANSWERS))
    reasons = [""] * len(frame)
    groups: dict[tuple, list[tuple[int, Point]]] = {}
    for i, row in enumerate(frame.to_dict(orient="records")):
        try:
            if str(row.get("serving_mode", "agg")) == "disagg":
                out.loc[i, list(ANSWERS)] = predict_pools(row, models_dir)
            else:
                key, point = point_of(row, models_dir)
                groups.setdefault(key, []).append((i, point))
        except RooflineError as error:
            reasons[i] = str(error)
    for members in groups.values():
        rows = [i for i, _ in members]
        try:
            out.loc[rows, list(ANSWERS)] = _predicted([p for _, p in members])
        except RooflineError as error:
            for i in rows:
                reasons[i] = str(error)
    out.insert(0, "row_id", frame["row_id"].to_numpy())
    return out.assign(reason=reasons)


def asked(points: list[Point]) -> dict[str, Any]:
    """What `steady_state` is asked for points that share a deployment: lengths, concurrency, knobs of scripts."""
    engines = [configured(points[0].deployment.engine, p.run).scheduler for p in points]
    knobs = {name: np.array([float(getattr(e, name)) for e in engines]) for name in KNOBS}
    isl, osl, ratio, concurrency = (
        np.array([getattr(p, name) for p in points]) for name in ("isl_max", "osl_max", "ratio", "concurrency")
    )
    lengths = {"isl": uniform(isl, ratio), "osl": uniform(osl, ratio)}
    return {**lengths, "concurrency": concurrency, "burst_share": 1.0 / REQUESTS_PER_SEAT, **knobs}


def _predicted(points: list[Point]) -> np.ndarray:
    """ANSWERS of points that share a deployment."""
    where = points[0].deployment
    state = steady_state(where, **asked(points))
    ttft, tpot = state.ttft_s, state.tpot_s
    low, high = ttft_band(where)
    first = (ttft * low, ttft * high)
    low, high = tpot_band(where)
    return np.stack([ttft, tpot, *first, tpot * low, tpot * high], axis=1)


def point_of(row: Mapping[str, Any], models_dir) -> tuple[tuple, Point]:
    """What a row asks, and a key that rows of one deployment share."""
    layout = tuple(_count(row, name, 1) for name in ("tp", "pp", "attn_dp", "moe_ep"))
    tp, pp, dp, ep = layout
    gpus = _count(row, "gpus", tp * pp * dp)
    replicas = _count(row, "replicas", max(gpus // (tp * pp * dp), 1))
    where, name = deployment_of(row, models_dir, Plan(tp=tp, pp=pp, dp=dp, ep=ep))
    run = run_of(row, name, tp, dp)
    ratio = float(row.get("length_ratio_min", 1.0))
    point = Point(
        where, run, _number(row, "isl_max_tokens"), _number(row, "osl_max_tokens"), 1.0 if math.isnan(ratio) else ratio,
        _number(row, "concurrency") / replicas,
    )  # fmt: skip
    return (id(where),), point


def deployment_of(row: Mapping[str, Any], models_dir, plan: Plan) -> tuple[Deployment, str]:
    """The replica that a row names, cut as `plan` says, and the name of its model."""
    name = str(row["model"])
    texts = {k: "" if _absent(row.get(k)) else str(row[k]) for k in ("hf_config", "kv_cache_dtype", "backend_version")}
    version = texts["backend_version"] if release(texts["backend_version"]) else None
    profile = with_graphs(engine_named(str(row["backend"]), version=version)).model_copy(update={"version": None})
    text = profile.model_dump_json()  # versions whose profiles agree share a deployment and its tables
    _PROFILES.setdefault(text, profile)
    folder = None if models_dir is None else str(models_dir)
    key = (name, texts["hf_config"], folder, str(row["system"]), str(row["weight_dtype"]), texts["kv_cache_dtype"])
    return _deployment(*key, text, plan), name


_PROFILES: dict[str, Engine] = {}


@lru_cache(maxsize=4096)
def _deployment(name, config, folder, system, weights, kv, profile, plan) -> Deployment:
    accelerator = hardware(system.replace("_", "-"))
    model = _model(name, config, folder)
    where = Deployment(model, accelerator, plan, served_precision(model, accelerator, weights, kv), _PROFILES[profile])
    if kv_sequences(where, 1.0) >= 1.0:
        return where
    # the row was measured, so its script gave the pool more of the memory than the engine does by itself
    return where.with_(engine=engine_named(where.engine, utilisation=MOST_UTILISATION))


@lru_cache(maxsize=256)
def _model(name: str, config: str, models_dir: str | None) -> Model:
    try:
        return resolve(name, models_dir).model
    except SpecError:
        path = Path(models_dir or ".") / config
        if models_dir is None or not config or not path.is_file():
            raise
        return from_hf_config(path, name=name).model


def served_precision(model: Model, accelerator: Accelerator, weights: str, kv: str) -> Precision:
    """The formats that a label of the table stands for in this model on this device.

    fp8: calibrated per tensor in dense checkpoints, in blocks in mixtures; nvfp4: every linear layer of a dense model,
    all but attention of a model with latent attention, the experts of other mixtures; mxfp4 experts meet 8-bit
    activations where the matrix unit takes them.

    Source: the public checkpoints that the launch scripts name
    """
    moe, latent = model.is_mixture, model.has_attention("mla")
    names = {
        "fp8": "fp8_block" if moe else "fp8_static",
        "nvfp4": ("nvfp4_mlp" if latent else "nvfp4_experts") if moe else "nvfp4",
        "mxfp4_experts": "bf16,expert=mxfp4_mxfp8" if accelerator.is_native("mxfp8") else "mxfp4_experts",
    }
    return precision_named(names.get(weights, weights), kv=kv or None)


def run_of(row: Mapping[str, Any], name: str, tp: int, dp: int, disaggregated: bool = False) -> Run:
    """The facts of a row that launch scripts look at."""
    day = str(row.get("measured_date") or "")[:10]
    try:
        when = date.fromisoformat(day)
    except ValueError:
        when = None
    engine: Engine = engine_named(str(row["backend"]))
    ratio = float(row.get("length_ratio_min", 1.0))
    return Run(
        engine.name, name, str(row["system"]).replace("_", "-"), str(row["weight_dtype"]), tp, dp,
        float(row["concurrency"]), float(row["isl_max_tokens"]), float(row["osl_max_tokens"]), ratio >= 1.0,
        release(str(row.get("backend_version") or "")), when, disaggregated,
    )  # fmt: skip


def _absent(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _number(row: Mapping[str, Any], name: str) -> float:
    value = float(row.get(name) if row.get(name) is not None else math.nan)
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: {row.get(name)!r} is not a positive number")
    return value


def _count(row: Mapping[str, Any], name: str, default: int) -> int:
    value = row.get(name)
    if _absent(value):
        return default
    number = float(value)
    if number != int(number) or number < 1:
        raise InputError(f"{name}: {value!r} is not a whole number of ranks")
    return int(number)


def error_tables(truth: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Errors of TPOT and TTFT over all sound rows and by group; empty where nothing was measured.

    Columns: rows, answered, median and mean absolute error [%], bias [%], rank correlation, share of rows in the band.
    Rows of another tier than A have a line of their own.
    """
    import pandas as pd

    tables = {}
    joined = truth.reset_index(drop=True).merge(predicted, on="row_id", how="left", suffixes=("", "_predicted"))
    if "serving_mode" not in joined:
        joined["serving_mode"] = "agg"
    for metric in ("tpot_s", "ttft_s"):
        if metric not in truth.columns or not truth[metric].notna().any():
            continue
        stem = metric.removesuffix("_s")
        lines = []
        for mode, part in joined.groupby("serving_mode"):
            for group, rows in _split(part[sound(part)], ("model", "system", "backend")):
                lines.append({"mode": mode, "group": group} | _errors(rows, metric, stem))
            for tier, rows in part[~sound(part)].groupby("tier"):
                lines.append({"mode": mode, "group": f"tier {tier}"} | _errors(rows, metric, stem))
        tables[f"{stem.upper()}, absolute errors in %"] = pd.DataFrame(lines)
    return tables


def sound(frame: pd.DataFrame) -> np.ndarray:
    """Which rows say well enough what was run: those of tier A; all where the table has no such column."""
    return (frame["tier"] == "A").to_numpy() if "tier" in frame else np.ones(len(frame), bool)


def _split(frame: pd.DataFrame, columns: Iterable[str]):
    yield "all", frame
    for column in columns:
        if column in frame:
            for value, rows in frame.groupby(frame[column].astype(str)):
                yield f"{column} {value}", rows


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's, ties in the order of the rows; NaN for fewer than three."""
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1]) if len(a) > 2 else math.nan


def _errors(rows: pd.DataFrame, metric: str, stem: str) -> dict[str, float]:
    truth, guess = rows[metric].to_numpy(float), rows[f"{metric}_predicted"].to_numpy(float)
    known = np.isfinite(truth) & (truth > 0)
    ok = known & np.isfinite(guess) & (guess > 0)
    if not ok.any():
        return {"rows": int(known.sum()), "answered": 0, "median": np.nan, "mean": np.nan, "bias": np.nan,
                "rank": np.nan, "in band": np.nan}  # fmt: skip
    ratio = guess[ok] / truth[ok]
    inside = (truth[ok] >= rows[f"{stem}_lo_s"].to_numpy(float)[ok]) & (
        truth[ok] <= rows[f"{stem}_hi_s"].to_numpy(float)[ok]
    )
    rank = rank_correlation(guess[ok], truth[ok])
    return {
        "rows": int(known.sum()), "answered": int(ok.sum()), "median": 100.0 * float(np.median(abs(ratio - 1.0))),
        "mean": 100.0 * float(np.mean(abs(ratio - 1.0))), "bias": 100.0 * float(np.expm1(np.log(ratio).mean())),
        "rank": rank, "in band": 100.0 * float(inside.mean()),
    }  # fmt: skip


__all__ = ["error_tables", "predict_serving", "served_precision", "warm"]
