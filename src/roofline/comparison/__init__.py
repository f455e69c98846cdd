"""Comparison: predictions beside what benchmarks measured and engines logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roofline.comparison.readers import LATENCIES, Measured, StartUp, read_log, read_results
from roofline.comparison.transfer import Transfer, transferred
from roofline.deployment import Deployment
from roofline.errors import InputError, RooflineError
from roofline.explain import plain
from roofline.serving.bands import tpot_band, ttft_band
from roofline.serving.steady import SteadyState, steady_state
from roofline.specs.library import locate

__all__ = [
    "Comparison", "Measured", "Row", "StartUp", "Transfer", "compare", "compare_log", "read_log", "read_results",
    "transferred",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity, predicted and measured."""

    run: str
    quantity: str
    unit: str
    predicted: float
    measured: float
    low: float  # 80 % band of the prediction; equal to it where there is none
    high: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted if self.predicted else float("nan")

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the band; None where there is no band."""
        return None if self.low == self.high else self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Comparison:
    """Rows of predictions beside measurements."""

    deployment: Deployment
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def to_pandas(self):
        """One row a quantity."""
        import pandas as pd

        names = ("run", "quantity", "unit", "predicted", "measured", "low", "high", "ratio", "inside")
        return pd.DataFrame([{n: getattr(r, n) for n in names} for r in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, in SI units."""
        names = ("run", "quantity", "unit", "predicted", "measured", "low", "high", "ratio", "inside")
        rows = [{n: getattr(r, n) for n in names} for r in self.rows]
        return plain({"deployment": str(self.deployment), "rows": rows, "notes": list(self.notes)})

    def __str__(self) -> str:
        out = [str(self.deployment), f"{'':34s} {'predicted':>12s} {'measured':>12s} {'ratio':>7s}  80 % band"]
        run = None
        for r in self.rows:
            if r.run != run:
                run = r.run
                out.append(run)
            scale, unit = (1e3, "ms") if r.unit == "s" else (2.0**-30, "GiB") if r.unit == "bytes" else (1.0, r.unit)
            band = "" if r.inside is None else f"{r.low * scale:,.4g} to {r.high * scale:,.4g}"
            mark = {True: "", False: "  outside", None: ""}[r.inside]
            name = f"  {r.quantity} [{unit}]" if unit else f"  {r.quantity}"
            out.append(
                f"{name:34s} {r.predicted * scale:>12,.4g} {r.measured * scale:>12,.4g} {r.ratio:>7.2f}  {band}{mark}"
            )
        return "\n".join([*out, *self.notes])

    __repr__ = __str__


def compare(
    where: Deployment,
    results: str | Path | Sequence[Measured],
    *,
    isl: float | None = None,
    osl: float | None = None,
    concurrency: float | None = None,
    rate_per_s: float | None = None,
    cached: float = 0.0,
    replicas: int = 1,
    then: Deployment | Sequence[Deployment] = (),
) -> Comparison:
    """Predictions beside the runs of a benchmark.

    Args:     results: file for `read_results`, or its result; isl, osl, concurrency, rate_per_s: in place of what the
              file says, or where it does not; cached [tokens] of each prompt; replicas that share the load; then:
              further deployments, of which a note says what the measured TPOT lets expect, see `transferred`
    Returns:  Comparison with TTFT, TPOT, E2E at every percentile that was measured, and throughput
    Assumes:  a closed loop where a concurrency is stated, else Poisson arrivals; of both what holds the run up: a rate
              that keeps fewer in flight is open; lengths all at their mean
    Errors:   InputError where load or lengths are neither in the file nor given
    """
    runs = read_results(results) if isinstance(results, (str, Path)) else list(results)
    others = [then] if isinstance(then, Deployment) else list(then)
    rows: list[Row] = []
    notes: list[str] = []
    for number, run in enumerate(runs):
        asked = replace(
            run, isl=isl or run.isl, osl=osl or run.osl,
            concurrency=concurrency or (None if rate_per_s else run.concurrency),
            rate_per_s=rate_per_s or (None if concurrency else run.rate_per_s),
        )  # fmt: skip
        if asked.concurrency is not None and asked.rate_per_s is not None:
            asked = _slower(where, asked, number, cached, replicas)
        load = _load(asked, number, cached, replicas)
        state = steady_state(where, **load)
        notes += [note for note in _cautions(where, asked) if note not in notes]
        rows += _rows(where, asked, state, replicas)
        if measured := asked.stats.get("tpot_s", {}).get("mean"):
            notes += [_onward(where, other, measured, state, load) for other in others]
    return Comparison(where, tuple(rows), tuple(notes))


def _slower(where: Deployment, run: Measured, number: int, cached: float, replicas: int) -> Measured:
    """The run with that of its rate and its limit of requests in flight that holds it up."""
    free = replace(run, concurrency=None)
    state = steady_state(where, **_load(free, number, cached, replicas))
    crowded = bool(state.saturated) or float(state.concurrency) * replicas > run.concurrency
    return replace(run, rate_per_s=None) if crowded else free


def _cautions(where: Deployment, run: Measured) -> list[str]:
    """What a run says of itself that a comparison should not go without."""
    out = []
    try:
        name = locate("model", run.model).stem if run.model else where.model.name
    except RooflineError:  # a path or an own name
        name = where.model.name
    if name != where.model.name:
        out.append(f"the file measures {run.model}, predicted is {where.model.name}")
    if run.failed:
        out.append(f"{run.tool}: {run.failed:,} requests failed; the others had the device to themselves")
    return out


def _load(run: Measured, number: int, cached: float, replicas: int) -> dict[str, Any]:
    """What one replica is asked for in a run, as `steady_state` takes it."""
    for name in ("isl", "osl"):
        if not getattr(run, name):
            raise InputError(f"{run.tool}, run {number + 1}: {name} is not in the file; give {name}")
    closed = run.concurrency is not None
    if not closed and run.rate_per_s is None:
        raise InputError(f"{run.tool}, run {number + 1}: neither concurrency nor request rate in the file; give one")
    burst = min(run.concurrency / run.requests, 1.0) if closed and run.requests else 0.0
    load = {"concurrency": run.concurrency / replicas} if closed else {"rate_per_s": run.rate_per_s / replicas}
    return {"isl": run.isl, "osl": run.osl, "cached": cached, "burst_share": burst, **load}


def _onward(where: Deployment, then: Deployment, measured: float, state: SteadyState, load: dict[str, Any]) -> str:
    """What another deployment is expected to do under the load, where TPOT of this one was measured."""
    other, context = steady_state(then, **load), load["isl"] + load["osl"] / 2.0
    plain = float(where.decode_step(state.batch, context).total_s)
    found = transferred(measured * plain / float(state.tpot_s), where, then, float(state.batch), context)
    ms, plain_ms = (float(other.tpot_s * share) * 1e3 for share in (found.seconds / found.plain_s, 1.0))
    who, factor = ("launching", found.host) if found.host != 1.0 and found.device == 1.0 else ("device", found.device)
    return (
        f"from TPOT {measured * 1e3:,.4g} ms on: {then} would take {ms:,.4g} ms ({plain_ms:,.4g} without the "
        f"measurement; {who} at {float(factor):.2f} of the model's time)"
    )


def _rows(where: Deployment, run: Measured, state: SteadyState, replicas: int) -> list[Row]:
    closed = run.concurrency is not None
    how = f"{run.concurrency:g} in flight" if closed else f"{run.rate_per_s:g} requests/s"
    title = f"{run.tool}: {run.isl:,.0f} in, {run.osl:,.0f} out, {how}"
    return [*_latency_rows(where, run, state, title), *_rate_rows(run, state, title, replicas)]


def _latency_rows(where: Deployment, run: Measured, state: SteadyState, title: str) -> list[Row]:
    bands = {"ttft_s": ttft_band(where), "tpot_s": tpot_band(where), "e2e_s": tpot_band(where)}
    out = []
    for latency in LATENCIES:
        spread = getattr(state, latency[:-2])
        for stat, measured in run.stats.get(latency, {}).items():
            share = None if stat == "mean" else float(stat[1:]) / 100.0
            if share is not None and not 0.01 <= share <= 0.999:
                continue
            predicted = float(spread.mean if share is None else spread.at(share))
            low, high = (predicted * factor for factor in bands[latency])
            out.append(Row(title, f"{latency[:-2].upper()} {stat}", "s", predicted, measured, low, high))
    return out


def _rate_rows(run: Measured, state: SteadyState, title: str, replicas: int) -> list[Row]:
    out = []
    for name, measured, predicted in (
        ("output tokens/s", run.tokens_per_s, float(state.tokens_per_s) * replicas),
        ("requests/s", run.requests_per_s, float(state.requests_per_s) * replicas),
    ):
        if measured is not None:
            out.append(Row(title, name, "", predicted, measured, predicted, predicted))
    return out


def compare_log(where: Deployment, log: str | Path | StartUp) -> Comparison:
    """Predictions beside the memory lines of a vLLM start-up log.

    Args:     log: file for `read_log`, or its result
    Returns:  Comparison with weights, KV pool, cached tokens, concurrency and graphs, as far as they were logged
    """
    found = log if isinstance(log, StartUp) else read_log(log)
    length = found.max_model_len or float(where.model.max_positions or 4096)
    memory = where.footprint(length)
    stage = memory.tightest
    pairs = (
        ("weights", "bytes", stage.weights, found.weight_bytes),
        ("KV pool", "bytes", stage.kv_pool, found.kv_pool_bytes),
        ("cached tokens", "", memory.kv_tokens, found.kv_tokens),
        (f"requests of {length:,.0f} tokens", "", memory.max_concurrency, found.max_concurrency),
        ("tokens in such requests", "", memory.pool.capacity, found.capacity),
        ("CUDA graphs", "bytes", stage.graphs, found.graph_bytes),
    )
    rows = [Row("start-up log", n, u, float(p), m, float(p), float(p)) for n, u, p, m in pairs if m is not None]
    return Comparison(where, tuple(rows), _capacity_note(found))


def _capacity_note(found: StartUp) -> tuple[str, ...]:
    """Says it where a log prints fewer tokens than requests can have."""
    if found.capacity is None or found.kv_tokens is None or found.capacity < 1.5 * found.kv_tokens:
        return ()
    return (
        f"the log prints {found.kv_tokens:,.0f} tokens of cache, requests can have {found.capacity:,.0f} "
        f"({found.max_concurrency:g} x {found.max_model_len:,.0f}): layers of unlike kinds share its blocks",
    )
