"""What a simulation returns: a column per quantity, a row per request; aggregates; the life of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from roofline.errors import InputError
from roofline.plotted import Plotted

QUANTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a request's life."""

    kind: str  # front_end, queue, fetch_or_wait, wait, prefill, emit or transfer_and_seat, decode
    start_s: float
    end_s: float
    tokens: int = 0
    replica: int = 0

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Result(Plotted, figures=("timeline",)):
    """Columns over requests (NaN where a request did not get so far) and totals of the run.

    Times are on the trace's clock; first and finish as the client sees them. `cached` are prompt tokens not computed.
    Token gaps (ITL) are kept as (gap, how many tokens saw it); a run of decode steps is one entry with its mean gap.
    """

    isl: np.ndarray
    osl: np.ndarray
    sent_s: np.ndarray
    ready_s: np.ndarray
    seen_s: np.ndarray
    admitted_s: np.ndarray
    prefilled_s: np.ndarray
    first_s: np.ndarray
    finish_s: np.ndarray
    cached: np.ndarray
    preempted: np.ndarray
    replica: np.ndarray
    decode_replica: np.ndarray
    gap_s: np.ndarray
    gap_count: np.ndarray
    complete: bool
    totals: dict[str, float]
    block_hits: tuple[float, float]  # blocks hit, blocks asked
    chunks: list[tuple] = field(default_factory=list, repr=False)
    decodes: list[tuple] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        n, done = self.isl.size, int(self.done.sum())
        means = f", mean TTFT {np.nanmean(self.ttft_s):.4g} s, E2E {np.nanmean(self.e2e_s):.4g} s" if done else ""
        return f"<Result: {done} of {n} requests answered in {self.duration_s:.4g} s{means}>"

    @property
    def done(self) -> np.ndarray:
        """Requests that finished."""
        return np.isfinite(self.finish_s)

    @property
    def ttft_s(self) -> np.ndarray:
        """Time to first token of each request [s]."""
        return self.first_s - self.sent_s

    @property
    def e2e_s(self) -> np.ndarray:
        """Time to last token of each request [s]."""
        return self.finish_s - self.sent_s

    @property
    def tpot_s(self) -> np.ndarray:
        """Mean time per output token after the first, of each request [s]; NaN for a single token."""
        later = np.where(self.osl > 1, self.osl - 1.0, np.nan)
        return (self.finish_s - self.first_s) / later

    @property
    def queue_s(self) -> np.ndarray:
        """From sending to the first prompt step of each request [s]."""
        return self.admitted_s - self.sent_s

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        known = np.isfinite(self.admitted_s)
        return float(self.cached[known].sum() / max(self.isl[known].sum(), 1))

    @property
    def duration_s(self) -> float:
        """From the first request sent to the last token received."""
        done = self.done
        return float(self.finish_s[done].max() - np.nanmin(self.sent_s)) if done.any() else 0.0

    def itl_s(self, quantile: float) -> float:
        """Quantile (0 to 1) of the gap between two tokens of a request [s]."""
        if not self.gap_s.size or not self.gap_count.sum() > 0:
            return float("nan")
        order = np.argsort(self.gap_s)
        reached = np.cumsum(self.gap_count[order])
        return float(self.gap_s[order][min(np.searchsorted(reached, quantile * reached[-1]), order.size - 1)])

    def goodput_req_per_s(self, ttft_s: float = np.inf, tpot_s: float = np.inf, e2e_s: float = np.inf) -> float:
        """Requests a second that met every limit."""
        tpot = np.where(self.osl > 1, self.tpot_s, 0.0)
        good = self.done & (self.ttft_s <= ttft_s) & (tpot <= tpot_s) & (self.e2e_s <= e2e_s)
        return float(good.sum() / self.duration_s) if self.duration_s else 0.0

    def summary(self) -> dict[str, float]:
        """Aggregates over the finished requests: mean and p50, p90, p99 of each latency, rates, occupancy, events."""
        done = self.done
        out: dict[str, float] = {"requests": float(done.size), "finished": float(done.sum())}
        for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
            values = getattr(self, name)[done]
            values = values[np.isfinite(values)]
            out[f"{name[:-2]}_mean_s"] = float(values.mean()) if values.size else float("nan")
            for q in QUANTILES:
                out[f"{name[:-2]}_p{q}_s"] = float(np.percentile(values, q)) if values.size else float("nan")
        count = self.gap_count.sum()
        out["itl_mean_s"] = float((self.gap_s * self.gap_count).sum() / count) if count else float("nan")
        for q in QUANTILES:
            out[f"itl_p{q}_s"] = self.itl_s(q / 100)
        span = self.duration_s or float("nan")
        out["duration_s"] = self.duration_s
        out["req_per_s"] = done.sum() / span
        out["output_tok_per_s"] = self.osl[done].sum() / span
        out["input_tok_per_s"] = self.isl[done].sum() / span
        out["hit_rate"] = self.hit_rate
        out["preemptions"] = float(self.preempted.sum())
        return out | self.totals

    def to_frame(self):
        """One row a request, as a pandas DataFrame."""
        import pandas as pd

        columns = ("isl", "osl", "sent_s", "ready_s", "seen_s", "admitted_s", "prefilled_s", "first_s", "finish_s",
                   "ttft_s", "tpot_s", "e2e_s", "queue_s", "cached", "preempted", "replica",
                   "decode_replica")  # fmt: skip
        return pd.DataFrame({name: getattr(self, name) for name in columns})

    def life(self, i: int) -> list[Span]:
        """Spans of request i from sending to last token, without gaps; prompt chunks if `timeline` was on.

        A decode span covers mixed steps and stalls alike: what the user waits for between tokens.
        """
        if not 0 <= i < self.isl.size:
            raise InputError(f"request {i}: the trace has 0 to {self.isl.size - 1}")
        spans: list[Span] = []
        replica = int(self.replica[i])

        def add(kind, start, end, tokens=0, where=replica):
            if end > start:
                spans.append(Span(kind, float(start), float(end), int(tokens), where))

        add("front_end", self.sent_s[i], self.ready_s[i])
        add("queue", self.ready_s[i], self.seen_s[i])
        add("fetch_or_wait", self.seen_s[i], self.admitted_s[i])
        at = self.admitted_s[i]
        for request, where, start, end, tokens in self.chunks:
            if request == i and start < self.prefilled_s[i]:
                add("wait", at, start)
                add("prefill", start, end, tokens, where)
                at = end
        add("prefill" if not self.chunks else "wait", at, self.prefilled_s[i], self.isl[i] - self.cached[i])
        handed = self.decode_replica[i] >= 0
        add("transfer_and_seat" if handed else "emit", self.prefilled_s[i], self.first_s[i])
        where = int(self.decode_replica[i]) if handed else replica
        add("decode", self.first_s[i], self.finish_s[i], self.osl[i] - 1, where)
        return spans


def collect(trace, log, last_log, replicas, last, complete: bool) -> Result:
    """`Result` of the logs; with a decode pool, `log` has the prompts and `last_log` the answers."""
    columns = {name: np.asarray(getattr(log, name), float) for name in ("sent", "ready", "seen", "admitted")}
    first, finish = np.asarray(last_log.first, float), np.asarray(last_log.finish, float)
    runners = last or replicas
    span = max((r.now for r in runners), default=0.0) - np.nanmin(columns["sent"], initial=np.inf)
    steps = sum(r.steps for r in runners)
    seats = runners[0].scheduler.max_seqs
    busy = sum(r.busy_s for r in runners)
    totals = {
        "steps": float(sum(r.steps for r in (*replicas, *last))),
        "prompt_steps": float(sum(r.prompt_steps for r in (*replicas, *last))),
        "prompt_tokens_computed": float(sum(r.prompt_tokens for r in (*replicas, *last))),
        "busy_share": float(busy / (len(runners) * span)) if span > 0 else 0.0,
        "seat_occupancy": sum(r.seat_steps for r in runners) / (steps * seats) if steps else 0.0,
        "decode_batch_mean": sum(r.decode_area for r in runners) / busy if busy else 0.0,
    }
    hits, asked = 0.0, 0.0
    if log.ids is not None and replicas[0].cache is not None:
        known = np.isfinite(columns["admitted"])
        asked = float(sum(len(ids) for ids, k in zip(log.ids, known) if k))
        hits = float(sum(log.hit_blocks))
    return Result(
        isl=trace.isl, osl=trace.osl, sent_s=columns["sent"], ready_s=columns["ready"], seen_s=columns["seen"],
        admitted_s=columns["admitted"], prefilled_s=np.asarray(log.prefilled, float), first_s=first, finish_s=finish,
        cached=np.asarray(log.hits, float),
        preempted=np.asarray(log.preempted) + (np.asarray(last_log.preempted) if last else 0),
        replica=np.asarray(log.replica),
        decode_replica=np.asarray(last_log.replica) if last else np.full(len(first), -1),
        gap_s=np.asarray(last_log.gap_s, float), gap_count=np.asarray(last_log.gap_count, float), complete=complete,
        totals=totals, block_hits=(hits, asked), chunks=log.chunks or [],
        decodes=(last_log.decodes or []) + ((log.decodes or []) if last else []),
    )  # fmt: skip
