"""Predicts tables of measured servers at a request rate, and says how far off it is.

One row is one load stage of a run, or the whole run: model, device, settings and rate in; TTFT, TPOT and end-to-end
latency out, under the names of the measured columns. Measured columns may be absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import InfeasibleError, InputError, RooflineError
from roofline.parallel import Plan
from roofline.precision import precision_named
from roofline.serving.bands import ONLINE
from roofline.serving.capacity import held_tokens, kv_sequences
from roofline.serving.queueing import Spread, mixed_quantile
from roofline.serving.steady import SteadyState, steady_state
from roofline.simulation import Trace, deployed, simulate
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
NEW_MODEL = 1.3  # log bands of known models are widened by this for one more
JOINED = 0.5  # least share of the tokens made that a client finds when it encodes a text again
FULL = "the rate is more than the server can do: latencies are those of a full server"
REQUESTS = 3000  # simulated of a stage where the row does not say


def predict_online(
    frame: pd.DataFrame, models_dir: str | Path | None = None, *, simulated: bool = False
) -> pd.DataFrame:
    """Latencies of every row, or the reason why not; where a rate is more than the server can do, that is said.

    Args:     frame: schema of the online serving table; models_dir: a folder of configs for models that the library
              lacks; simulated: by sending the requests one by one through the simulator, not in closed form
    Returns:  DataFrame[exp_key, stage, the measured columns' names, *_lo_s and *_hi_s of the means, reason]
    Errors:   InputError for absent columns
    """
    import pandas as pd

    if absent := [c for c in REQUIRED if c not in frame.columns]:
        raise InputError(f"the table lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)}")
    if models_dir is not None and not Path(models_dir).is_dir():
        raise InputError(f"'{models_dir}' is not a folder of model configs")
    answer = _simulated if simulated else _solved
    rows = []
    for row in frame.to_dict(orient="records"):
        given = {k: v for k, v in row.items() if not (v is None or v == "" or (isinstance(v, float) and math.isnan(v)))}
        try:
            answers = answer(given, run_of(given, models_dir))
        except RooflineError as error:
            answers = {"reason": str(error)}
        for name in BANDED:
            if name in answers:
                low, high = ONLINE[name]
                stem = name.removesuffix("_s")
                answers |= {f"{stem}_lo_s": answers[name] * low, f"{stem}_hi_s": answers[name] * high}
        rows.append(answers)
    bands = [f"{name.removesuffix('_s')}_{end}_s" for name in BANDED for end in ("lo", "hi")]
    out = pd.DataFrame(rows, columns=[*ANSWERS, *bands, "reason"])
    out.insert(0, "exp_key", frame["exp_key"].to_numpy())
    out.insert(1, "stage", frame["stage"].to_numpy())
    return out


@dataclass(frozen=True, slots=True)
class Run:
    """One row as both models see it: a server, its settings, and the load of each stage."""

    where: Deployment
    rates: np.ndarray  # of its stages, requests per second of one replica
    replicas: float
    isl: float
    made: float  # output tokens that the server makes
    counted: float  # output tokens that the client counts
    prefixes: float  # prompts that are sent again and again; 0: every prompt is new
    max_seqs: float
    budget: float
    requests: float  # of one replica, all stages; 0 where the row does not say

    @property
    def shares(self) -> np.ndarray:
        """Share of the requests in each stage: stages last equally long."""
        return self.rates / self.rates.sum()

    @property
    def cached(self) -> float:
        """Prompt tokens found in the cache once all prompts are known."""
        return self.isl - hit_remainder() if self.prefixes > 0 else 0.0


def run_of(row: Mapping[str, Any], models_dir: str | Path | None) -> Run:
    """What a row of the table asks for."""
    replicas, seqs = float(row.get("dp", 1)), float(row.get("max_num_seqs", 256))
    budget = float(row.get("max_num_batched_tokens", 8192))
    where = _deployment(
        str(row["model"]), str(row["gpu"]), int(row.get("tp", 1)), str(row.get("weight_dtype", "16-bit")),
        str(row.get("engine", "vllm")), str(row.get("engine_version", "")),
        float(row.get("gpu_memory_utilization", 0.9)), int(seqs), int(budget),
        None if models_dir is None else str(models_dir),
    )  # fmt: skip
    isl = float(row.get("isl_mean_tokens", row.get("isl_nominal_tokens", math.nan)))
    counted = float(row.get("osl_mean_tokens", row.get("osl_limit_tokens", math.nan)))
    if not (isl > 0 and counted > 0):
        raise InputError("isl_mean_tokens, osl_mean_tokens: both lengths are needed")
    ends = not _flag(row["ignore_eos"]) if "ignore_eos" in row else None
    return Run(
        where, np.array([float(r) for r in str(row["rate_req_per_s"]).split("/")]) / replicas, replicas, isl,
        tokens_made(counted, float(row.get("osl_limit_tokens", counted)), ends), counted,
        float(row.get("distinct_prompts", 0)) if _flag(row.get("prefix_caching", False)) else 0.0, seqs, budget,
        float(row.get("n_requests", 0)) / replicas,
    )  # fmt: skip


def _solved(row: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The answers of one row in closed form: a mixture of its stages, each a steady state."""
    load = {
        "isl": run.isl, "osl": run.made, "rate_per_s": run.rates, "max_seqs": run.max_seqs, "token_budget": run.budget,
    }  # fmt: skip
    state = steady_state(run.where, cached=run.cached, prefixes=run.prefixes, **load)
    first = _first_share(row, run)
    unseen = steady_state(run.where, **load) if np.any(first > 0) else state
    answers = _mixed(state, unseen, run.shares, first, run.counted, run.replicas)
    full = np.asarray(state.saturated).any()
    return answers | {"reason": FULL if full else ""}


def _first_share(row: Mapping[str, Any], run: Run) -> np.ndarray:
    """Share of each stage's requests whose prompt nobody has sent before: all of them come in the first stage."""
    first = np.zeros_like(run.shares)
    if run.prefixes and run.requests and str(row["stage"]) in ("0", "all"):
        first[0] = min(run.prefixes / (run.requests * run.shares[0]), 1.0)
    return first


def tokens_made(counted: float, limit: float, ends: bool | None = None) -> float:
    """Tokens that the server made for a request of which the client counted `counted`, on average.

    Formula:  the limit, unless texts end; else what is counted
    Args:     counted, limit (max_tokens) [tokens]; ends: whether texts may end before the limit; None: they do where
              less than half of the limit is counted, which no tokeniser explains
    Returns:  [tokens]
    Source:   kubernetes-sigs/inference-perf asks to ignore ends of text unless told otherwise (ModelServerClientConfig)
              and counts by encoding the answer again (docs/metrics.md), which joins tokens: 1 % fewer for most models,
              4 % for Llama-3.1-8B, 16 to 21 % for Llama-2-7B, whose end-to-end times are those of equal lengths
    """
    may_end = counted < JOINED * limit if ends is None else ends
    return counted if may_end else limit


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


def _simulated(row: Mapping[str, Any], run: Run, seed: int = 0) -> dict[str, Any]:
    """The answers of one row from its requests, sent one by one; each stage starts with an empty server."""
    # seats where prompts are shared: the simulator would have every request hold its own
    seats = kv_sequences(
        run.where, held_tokens(run.isl, run.made), run.cached, run.prefixes, run.max_seqs
    )  # fmt: skip
    if seats < 1:
        raise InfeasibleError(f"{run.where}: not even one request of {run.isl:g} prompt tokens fits beside the weights")
    first, results = _first_share(row, run), []
    for rate, share, cold in zip(run.rates, run.shares, first):
        n = max(round(run.requests * share), 2) if run.requests else REQUESTS
        trace = _requests(run, rate, n, round(cold * n), np.random.default_rng(seed))
        pool = deployed(
            run.where, trace, max_seqs=int(seats), token_budget=int(run.budget), kv_blocks=math.inf, seed=seed
        )  # fmt: skip
        results.append(simulate(trace, pool))
    answers: dict[str, Any] = {}
    for name in ("ttft", "e2e"):
        seconds = np.concatenate([getattr(r, f"{name}_s") for r in results])
        answers[f"{name}_mean_s"] = float(seconds.mean())
        answers |= {f"{name}_{label}_s": float(np.quantile(seconds, q)) for label, q in PERCENTILES.items()}
    answers["tpot_mean_s"] = (answers["e2e_mean_s"] - answers["ttft_mean_s"]) / max(run.counted - 1.0, 1.0)
    served = run.replicas * sum(len(r.isl) for r in results) / sum(r.duration_s for r in results)
    return answers | {"achieved_req_per_s": served, "output_tok_per_s": served * run.counted, "reason": ""}


def _requests(run: Run, rate: float, n: int, cold: int, rng: np.random.Generator) -> Trace:
    """A stage: `n` requests at random times that fill it, the first `cold` of prompts that nobody has sent before."""
    gaps = rng.exponential(size=n)
    arrived = (np.cumsum(gaps) - gaps[0]) * (n / rate / gaps.sum())
    isl = np.full(n, round(run.isl))
    left = rng.integers(1, BLOCK_TOKENS + 1, n)  # prompt tokens after the last whole block
    cached = np.where(np.arange(n) < cold, 0, isl - left) if run.prefixes else np.zeros(n, int)
    return Trace(isl, np.full(n, round(run.made)), arrived, cached=np.maximum(cached, 0), name="stage")


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
    return Deployment(resolve(model, folder).model, hardware(GPUS.get(key, key)), Plan(tp=tp), precision, profile)


def error_tables(truth: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Errors per metric over stable whole runs, stages, by device and model, and how often bands held; empty where
    nothing was measured."""
    import pandas as pd

    joined = truth.reset_index(drop=True).merge(
        predicted, on=["exp_key", "stage"], how="left", suffixes=("", "_predicted")
    )
    if "regime" in joined:
        joined = joined[joined["regime"] == "stable"]
    measured = [metric for metric in JUDGED if metric in truth.columns and truth[metric].notna().any()]
    lines = [
        {"metric": metric, "group": group} | _errors(rows, metric)
        for metric in measured
        for group, rows in _groups(joined, metric in BANDED)
    ]
    whole = joined[joined["stage"].astype(str) == "all"]
    bands = [
        {"metric": metric, "group": group} | line
        for metric in measured
        if metric in BANDED
        for group, line in _in_bands(whole, metric)
    ]
    tables = {"stable rows, absolute errors in %": lines, "stable whole runs in their 80 % band, in %": bands}
    return {title: pd.DataFrame(rows) for title, rows in tables.items() if rows}


def _groups(frame: pd.DataFrame, by_model: bool):
    whole = frame["stage"].astype(str) == "all"
    yield "whole runs", frame[whole]
    yield "stages", frame[~whole]
    for gpu, rows in frame[whole].groupby(frame["gpu"].astype(str)):
        yield f"whole runs, {gpu}", rows
    if by_model:
        for model, rows in frame[whole].groupby(frame["model"].astype(str)):
            yield f"whole runs, {model.rpartition('/')[2]}", rows


def _in_bands(whole: pd.DataFrame, metric: str):
    """How many rows lie in the band as shipped, and in one from the other models' rows: all, and by kind of model."""
    stem = metric.removesuffix("_s")
    known = whole[(whole[metric] > 0) & (whole[f"{metric}_predicted"] > 0)]
    ratio, models = (known[metric] / known[f"{metric}_predicted"]).to_numpy(float), known["model"].to_numpy(str)
    if len(set(models)) < 2:
        return
    shipped = ((known[metric] >= known[f"{stem}_lo_s"]) & (known[metric] <= known[f"{stem}_hi_s"])).to_numpy(bool)
    apart = np.zeros(len(ratio), bool)
    for model in set(models):
        low, high = band_of(ratio[models != model], models[models != model])
        apart |= (models == model) & (ratio >= low) & (ratio <= high)
    low, high = band_of(ratio, models)
    mixture = np.array([_is_mixture(name) for name in models])
    for group, rows in (("all", np.full(len(ratio), True)), ("dense", ~mixture), ("mixtures", mixture)):
        if rows.any():
            yield group, {
                "rows": int(rows.sum()), "measured/predicted from": low, "to": high,
                "as shipped": 100.0 * shipped[rows].mean(), "from other models": 100.0 * apart[rows].mean(),
            }  # fmt: skip


def _is_mixture(name: str) -> bool:
    try:
        return resolve(name, None).model.is_mixture
    except RooflineError:
        return False


def band_of(ratio: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """The 80 % band of measured over predicted for a model that is none of `groups`.

    Formula:  quantiles 0.1 and 0.9 of ln ratio, each group counting alike, times 1.3
    Args:     ratio [-]: one a row; groups: the model of each
    Returns:  low and high [-]
    Source:   derivation; rows of one model err together, so bands of few models are too narrow for another: 1.3 is what
              the closed-loop rows want (80 % of a left-out model's rows in most cases)
    """
    names, row, count = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(ratio)
    weight = 1.0 / count[row][order] / len(names)
    inner = np.interp((0.1, 0.9), np.cumsum(weight) - weight / 2.0, np.log(ratio)[order])
    low, high = np.exp(NEW_MODEL * inner)
    return float(low), float(high)


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
