"""Predicts tables of measured servers at a request rate, and says how far off it is.

One row is one load stage of a run, or the whole run: model, device, settings and rate in; TTFT, TPOT and end-to-end
latency out, under the names of the measured columns. Measured columns may be absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import InputError, RooflineError
from roofline.parallel import Plan
from roofline.precision import precision_named
from roofline.serving.bands import ONLINE
from roofline.serving.queueing import Spread, mixed_quantile
from roofline.serving.steady import SteadyState, steady_state
from roofline.specs.engine import engine_named, release
from roofline.specs.library import hardware
from roofline.validation.memory import resolve

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = ("exp_key", "stage", "model", "gpu", "rate_req_per_s")
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
ANSWERS = (
    "ttft_mean_s", *(f"ttft_{p}_s" for p in PERCENTILES), "tpot_mean_s", "e2e_mean_s",
    *(f"e2e_{p}_s" for p in PERCENTILES), "achieved_req_per_s", "output_tok_per_s",
)  # fmt: skip
JUDGED = ("tpot_mean_s", "ttft_mean_s", "e2e_mean_s", "ttft_p50_s", "ttft_p90_s", "e2e_p90_s", "ttft_p99_s")
BANDED = ("ttft_mean_s", "tpot_mean_s", "e2e_mean_s")
GPUS = {"h100-sxm5-80gb": "h100-sxm", "a100-80gb": "a100-sxm", "l40s-48gb": "l40s"}
FORMATS = {"16-bit": "bf16", "fp8-dynamic": "fp8_channel"}
BLOCK_TOKENS = 16
JOINED = 0.7  # least share of the tokens made that a client finds when it encodes a text again


def predict_online(frame: pd.DataFrame, models_dir: str | Path | None = None) -> pd.DataFrame:
    """Latencies of every row, or the reason why not; where a rate is more than the server can do, that is said.

    Args:     frame: schema of the online serving table; models_dir: a folder of configs for models that the library
              lacks
    Returns:  DataFrame[exp_key, stage, the measured columns' names, *_lo_s and *_hi_s of the means, reason]
    Errors:   InputError for absent columns
    """
    import pandas as pd

    if absent := [c for c in REQUIRED if c not in frame.columns]:
        raise InputError(f"the table lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)}")
    if models_dir is not None and not Path(models_dir).is_dir():
        raise InputError(f"'{models_dir}' is not a folder of model configs")
    rows = []
    for row in frame.to_dict(orient="records"):
        given = {k: v for k, v in row.items() if not (v is None or v == "" or (isinstance(v, float) and math.isnan(v)))}
        try:
            rows.append(_predicted(given, models_dir))
        except RooflineError as error:
            rows.append({"reason": str(error)})
    bands = [f"{name.removesuffix('_s')}_{end}_s" for name in BANDED for end in ("lo", "hi")]
    out = pd.DataFrame(rows, columns=[*ANSWERS, *bands, "reason"])
    out.insert(0, "exp_key", frame["exp_key"].to_numpy())
    out.insert(1, "stage", frame["stage"].to_numpy())
    return out


def _predicted(row: Mapping[str, Any], models_dir) -> dict[str, Any]:
    """The answers of one row: a mixture of its stages, each a steady state."""
    rates = np.array([float(r) for r in str(row["rate_req_per_s"]).split("/")])
    replicas = float(row.get("dp", 1))
    where = _deployment(
        str(row["model"]), str(row["gpu"]), int(row.get("tp", 1)), str(row.get("weight_dtype", "16-bit")),
        str(row.get("engine", "vllm")), str(row.get("engine_version", "")),
        float(row.get("gpu_memory_utilization", 0.9)), int(row.get("max_num_seqs", 256)),
        int(row.get("max_num_batched_tokens", 8192)),
        None if models_dir is None else str(models_dir),
    )  # fmt: skip
    isl = float(row.get("isl_mean_tokens", row.get("isl_nominal_tokens", math.nan)))
    osl = float(row.get("osl_mean_tokens", row.get("osl_limit_tokens", math.nan)))
    if not (isl > 0 and osl > 0):
        raise InputError("isl_mean_tokens, osl_mean_tokens: both lengths are needed")
    made = tokens_made(osl, float(row.get("osl_limit_tokens", osl)))
    prefixes = float(row.get("distinct_prompts", 0)) if _flag(row.get("prefix_caching", False)) else 0.0
    cached = isl - hit_remainder() if prefixes > 0 else 0.0
    knobs = {"token_budget": float(row.get("max_num_batched_tokens", 8192))}
    load = {
        "isl": isl, "osl": made, "rate_per_s": rates / replicas, "max_seqs": float(row.get("max_num_seqs", 256)),
    } | knobs  # fmt: skip
    state = steady_state(where, cached=cached, prefixes=prefixes, **load)
    shares = rates / rates.sum()
    first = _first_share(row, shares, prefixes)
    unseen = steady_state(where, **load) if np.any(first > 0) else state
    answers = _mixed(state, unseen, shares, first, osl, replicas)
    for name in BANDED:
        low, high = ONLINE[name]
        stem = name.removesuffix("_s")
        answers |= {f"{stem}_lo_s": answers[name] * low, f"{stem}_hi_s": answers[name] * high}
    full = np.asarray(state.saturated).any()
    answers["reason"] = "the rate is more than the server can do: latencies are those of a full server" if full else ""
    return answers


def _first_share(row: Mapping[str, Any], shares: np.ndarray, prefixes: float) -> np.ndarray:
    """Share of each stage's requests whose prompt nobody has sent before: all of them come in the first stage."""
    requests = float(row.get("n_requests", 0))
    first = np.zeros_like(shares)
    if prefixes and requests and str(row["stage"]) in ("0", "all"):
        first[0] = min(prefixes / (requests * shares[0]), 1.0)
    return first


def tokens_made(counted: float, limit: float) -> float:
    """Tokens that the server made for a request of which the client counted `counted`, on average.

    Formula:  the limit, where at least 0.7 of it are counted; else what is counted
    Args:     counted, limit (max_tokens) [tokens]
    Returns:  [tokens]
    Assumes:  ends of text are ignored, and the client counts by encoding the text again, which joins tokens: 1 % fewer
              for most models, 4 % for Llama-3.1-8B, 16 to 21 % for Llama-2-7B. A client that counts far fewer saw
              texts end
    Source:   kubernetes-sigs/inference-perf counts so; end-to-end times of Llama-2-7B differ by 8 % from median to p90,
              as times of equal lengths do, though 20 % of the tokens seem to be missing
    """
    return limit if counted >= JOINED * limit else counted


def hit_remainder() -> float:
    """Prompt tokens that a full prefix hit still computes, on average.

    Formula:  (16 + 1)/2: whole blocks are cached, and at least one token is computed
    Source:   vLLM: hits are whole blocks of the prompt without its last token
    """
    return (BLOCK_TOKENS + 1.0) / 2.0


def _mixed(
    state: SteadyState, unseen: SteadyState, shares: np.ndarray, first: np.ndarray, osl: float, replicas: float
) -> dict[str, Any]:
    """Means and percentiles over requests of all stages; in each, the share `first` waits for a whole prompt."""
    answers: dict[str, Any] = {}
    n = len(shares)
    weights = [*(shares * (1.0 - first)), *(shares * first)]
    for name in ("ttft", "e2e"):
        spreads = [_stage(getattr(s, name), i, n) for s in (state, unseen) for i in range(n)]
        if name == "e2e":  # a whole prompt delays the first token, not the others
            later = np.maximum(np.broadcast_to(unseen.ttft_s - state.ttft_s, (n,)), 0.0)
            spreads[n:] = [replace(s, floor_s=s.floor_s + later[i]) for i, s in enumerate(spreads[:n])]
        answers[f"{name}_mean_s"] = float(sum(w * s.mean for w, s in zip(weights, spreads)))
        for label, q in PERCENTILES.items():
            answers[f"{name}_{label}_s"] = float(mixed_quantile(spreads, weights, q))
    gap = np.sum(shares * (np.broadcast_to(state.e2e_s, shares.shape) - state.ttft_s)) / max(osl - 1.0, 1.0)
    served = np.broadcast_to(state.requests_per_s, shares.shape) * replicas
    answers["tpot_mean_s"] = float(gap)
    answers["achieved_req_per_s"] = float(np.mean(served))
    answers["output_tok_per_s"] = float(np.mean(served) * osl)
    return answers


def _stage(spread: Spread, i: int, n: int) -> Spread:
    return Spread(*(np.broadcast_to(getattr(spread, name), (n,))[i] for name in spread.__slots__))


def _flag(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "1", "1.0", "yes")


@lru_cache(maxsize=1024)
def _deployment(model, gpu, tp, weights, engine, version, utilisation, seqs, tokens, folder) -> Deployment:
    profile = engine_named(
        engine, version=version if release(version) else None, utilisation=utilisation, max_num_seqs=seqs,
        max_num_batched_tokens=tokens, small_max_num_seqs=seqs, small_max_num_batched_tokens=tokens,
    )  # fmt: skip
    key = gpu.strip().lower()
    precision = precision_named(FORMATS.get(weights, weights))
    return Deployment(
        resolve(model, folder).model, hardware(GPUS.get(key, key)), Plan(tp=tp), precision, profile
    )


def error_tables(truth: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Errors per metric over stable whole runs, stages, and by device; empty where nothing was measured."""
    import pandas as pd

    joined = truth.reset_index(drop=True).merge(
        predicted, on=["exp_key", "stage"], how="left", suffixes=("", "_predicted")
    )
    if "regime" in joined:
        joined = joined[joined["regime"] == "stable"]
    lines = []
    for metric in JUDGED:
        if metric not in truth.columns or not truth[metric].notna().any():
            continue
        for group, rows in _groups(joined):
            lines.append({"metric": metric, "group": group} | _errors(rows, metric))
    return {"stable rows, absolute errors in %": pd.DataFrame(lines)} if lines else {}


def _groups(frame: pd.DataFrame):
    whole = frame["stage"].astype(str) == "all"
    yield "whole runs", frame[whole]
    yield "stages", frame[~whole]
    for gpu, rows in frame[whole].groupby(frame["gpu"].astype(str)):
        yield f"whole runs, {gpu}", rows


def _errors(rows: pd.DataFrame, metric: str) -> dict[str, float]:
    truth, guess = rows[metric].to_numpy(float), rows[f"{metric}_predicted"].to_numpy(float)
    known = np.isfinite(truth) & (truth > 0)
    ok = known & np.isfinite(guess) & (guess > 0)
    out = {"rows": int(known.sum()), "answered": int(ok.sum()), "median": np.nan, "mean": np.nan, "bias": np.nan}
    if ok.any():
        ratio = guess[ok] / truth[ok]
        out |= {
            "median": 100.0 * float(np.median(abs(ratio - 1.0))), "mean": 100.0 * float(np.mean(abs(ratio - 1.0))),
            "bias": 100.0 * float(np.expm1(np.log(ratio).mean())),
        }  # fmt: skip
    return out


__all__ = ["error_tables", "predict_online"]
