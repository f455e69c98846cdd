"""Request traces: read, written, or drawn from a seed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from roofline.errors import InputError, check_number

Lengths = int | float | tuple[int, int] | Sequence[int] | np.ndarray | Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival. Open loop has `arrived_s`, closed loop `concurrency` clients."""

    isl: np.ndarray  # prompt tokens
    osl: np.ndarray  # output tokens
    arrived_s: np.ndarray | None = None
    concurrency: int | None = None
    cached: np.ndarray | None = None  # prompt tokens that are cached whatever happens
    block_ids: list[list[int]] | None = None  # prefix block ids of each prompt
    block_tokens: int = 0
    name: str = "trace"
    notes: str = ""

    def __post_init__(self):
        n = self.isl.size
        if n == 0:
            raise InputError(f"{self.name}: no requests")
        if (self.arrived_s is None) == (self.concurrency is None):
            raise InputError(f"{self.name}: give either arrival times (open loop) or concurrency (closed loop)")
        columns = {"isl": self.isl, "osl": self.osl, "arrived_s": self.arrived_s, "cached": self.cached}
        for column, values in columns.items():
            if values is None:
                continue
            low = 1 if column in ("isl", "osl") else 0
            bad = np.flatnonzero(~(np.isfinite(values) & (values >= low)))
            if values.shape != (n,):
                raise InputError(f"{self.name}: {column} has shape {values.shape}, isl has {n} rows")
            if bad.size:
                first = bad[0]
                raise InputError(f"{self.name}: {column} of request {first} is {values[first]}; allowed: {low} or more")
        if self.cached is not None and (over := np.flatnonzero(self.cached > self.isl)).size:
            raise InputError(f"{self.name}: cached of request {over[0]} exceeds its isl {self.isl[over[0]]}")
        if self.arrived_s is not None and (back := np.flatnonzero(np.diff(self.arrived_s) < 0)).size:
            raise InputError(f"{self.name}: request {back[0] + 1} arrives before the one above it; sort by arrival")
        if self.concurrency is not None:
            check_number(f"{self.name}: concurrency", self.concurrency, low=1, integer=True)
        if self.block_ids is not None and (len(self.block_ids) != n or self.block_tokens < 1):
            raise InputError(f"{self.name}: block_ids need one list a request and block_tokens of 1 or more")

    def __len__(self) -> int:
        return self.isl.size

    @property
    def rate_req_per_s(self) -> float:
        """Mean arrival rate of an open loop."""
        span = float(self.arrived_s[-1] - self.arrived_s[0]) if self.arrived_s is not None else 0.0
        return (len(self) - 1) / span if span > 0 else float("nan")

    def head(self, n: int) -> Trace:
        """The first n requests."""
        cut = slice(0, n)
        return replace(
            self, isl=self.isl[cut], osl=self.osl[cut],
            arrived_s=None if self.arrived_s is None else self.arrived_s[cut],
            cached=None if self.cached is None else self.cached[cut],
            block_ids=None if self.block_ids is None else self.block_ids[cut],
        )  # fmt: skip

    def at_rate(self, factor: float) -> Trace:
        """The same requests arriving `factor` times as fast."""
        check_number("factor", factor, low=1e-12)
        if self.arrived_s is None:
            raise InputError(f"{self.name}: a closed loop has no arrival rate")
        return replace(self, arrived_s=self.arrived_s / factor)

    def followed_by(self, other: Trace, at_s: float) -> Trace:
        """This open-loop trace, then `other` from `at_s` on (load stages)."""
        if self.arrived_s is None or other.arrived_s is None:
            raise InputError("only open-loop traces follow each other")
        if (self.block_ids is None) != (other.block_ids is None) or (self.cached is None) != (other.cached is None):
            raise InputError("both traces need the same columns")
        return replace(
            self, isl=np.concatenate((self.isl, other.isl)), osl=np.concatenate((self.osl, other.osl)),
            arrived_s=np.concatenate((self.arrived_s, other.arrived_s + at_s)),
            cached=None if self.cached is None else np.concatenate((self.cached, other.cached)),
            block_ids=None if self.block_ids is None else self.block_ids + other.block_ids,
        )  # fmt: skip


# -- files

COLUMNS = {  # what a column may be called, in lower case, and the factor to seconds or tokens
    "arrived_s": {"arrived_s": 1.0, "arrived_at": 1.0, "timestamp": 1.0, "arrival_time": 1.0},
    "isl": {"isl": 1, "num_prefill_tokens": 1, "contexttokens": 1, "request tokens": 1, "input_length": 1},
    "osl": {"osl": 1, "num_decode_tokens": 1, "generatedtokens": 1, "response tokens": 1, "output_length": 1},
    "cached": {"cached": 1, "cached_tokens": 1},
}
MOONCAKE_BLOCK_TOKENS = 512  # kvcache-ai/Mooncake, trace release of FAST'25


def read_trace(path: str | Path, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> Trace:
    """The trace in a CSV or JSONL file.

    Columns, by any of their usual names: arrival (`arrived_s`, `arrived_at`, `TIMESTAMP` or `Timestamp`: seconds, or
    date and time; in JSONL with `hash_ids`, `timestamp` is milliseconds), prompt tokens (`isl`, `num_prefill_tokens`,
    `ContextTokens`, `Request tokens`, `input_length`), output tokens (`osl`, `num_decode_tokens`, `GeneratedTokens`,
    `Response tokens`, `output_length`), optional `cached` and `hash_ids`. Rows that generated nothing are dropped and
    counted in `notes`; times start at 0.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"trace {path}: no such file")
    suffix = path.suffix.lower()
    if suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names, rows = reader.fieldnames or [], list(reader)
    elif suffix in (".jsonl", ".ndjson"):
        rows = []
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        row = json.loads(line)
                    except json.JSONDecodeError as error:
                        raise InputError(f"trace {path}, line {number}: not JSON ({error.msg})") from None
                    if not isinstance(row, dict):
                        raise InputError(f"trace {path}, line {number}: not a JSON object")
                    rows.append(row)
        names = list(rows[0]) if rows else []
    else:
        raise InputError(f"trace {path}: '{suffix}' is not known; allowed: .csv, .jsonl")
    if not rows:
        raise InputError(f"trace {path}: no requests")

    found = {}
    for column, known in COLUMNS.items():
        found[column] = next((name for name in names if name.strip().lower() in known), None)
        if found[column] is None and column != "cached":
            raise InputError(
                f"trace {path}: no column for {column}; one of {', '.join(known)} is wanted, it has {', '.join(names)}"
            )
    values = {c: _column(path, rows, name, c) for c, name in found.items() if name is not None}
    ids = None
    if "hash_ids" in names:
        values["arrived_s"] = values["arrived_s"] / 1e3  # that format counts milliseconds
        ids = [row.get("hash_ids") for row in rows]
        for number, (one, isl) in enumerate(zip(ids, values["isl"])):
            if not isinstance(one, list) or len(one) != -(-int(isl) // block_tokens):
                raise InputError(
                    f"trace {path}, request {number}: hash_ids must list one block per {block_tokens} prompt tokens "
                    f"of {isl:g}"
                )
    keep = values["osl"] > 0
    order = np.argsort(values["arrived_s"][keep], kind="stable")
    cut = {c: v[keep][order] for c, v in values.items()}
    if not order.size:
        raise InputError(f"trace {path}: no request generated anything")
    dropped = int((~keep).sum())
    return Trace(
        isl=cut["isl"].astype(np.int64), osl=cut["osl"].astype(np.int64),
        arrived_s=cut["arrived_s"] - cut["arrived_s"][0],
        cached=cut["cached"].astype(np.int64) if "cached" in cut else None,
        block_ids=[ids[i] for i in np.flatnonzero(keep)[order]] if ids is not None else None,
        block_tokens=block_tokens if ids is not None else 0, name=path.name,
        notes=f"{dropped} rows without output tokens dropped" if dropped else "",
    )  # fmt: skip


def _column(path: Path, rows: list[dict], name: str, column: str) -> np.ndarray:
    """Numbers of one column; a time may be a date and time of day."""
    out = np.empty(len(rows))
    for number, row in enumerate(rows):
        raw = row.get(name)
        try:
            out[number] = float(raw)
        except (TypeError, ValueError):
            try:
                if column != "arrived_s":
                    raise ValueError
                # fromisoformat reads six decimals of a second, Azure writes seven
                head, _, fraction = str(raw).partition(".")
                out[number] = datetime.fromisoformat(head).timestamp() + float(f"0.{fraction or 0}")
            except ValueError:
                raise InputError(f"trace {path}, request {number}: {name} is {raw!r}, not a number") from None
    if column != "arrived_s" and (bad := np.flatnonzero(out != np.floor(out))).size:
        raise InputError(f"trace {path}, request {bad[0]}: {name} is {out[bad[0]]}, not a whole number of tokens")
    return out


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write an open-loop trace so that `read_trace` returns it: .csv, or .jsonl with hash_ids and milliseconds."""
    path = Path(path)
    if trace.arrived_s is None:
        raise InputError(f"{trace.name}: a closed loop has no arrival times to write")
    if path.suffix.lower() == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            for i, (at, isl, osl) in enumerate(zip(trace.arrived_s.tolist(), trace.isl.tolist(), trace.osl.tolist())):
                if trace.block_ids is not None:
                    row = {"timestamp": at * 1e3, "input_length": isl, "output_length": osl,
                           "hash_ids": list(trace.block_ids[i])}  # fmt: skip
                else:
                    row = {"arrived_s": at, "isl": isl, "osl": osl}
                if trace.cached is not None:
                    row["cached"] = int(trace.cached[i])
                file.write(json.dumps(row) + "\n")
    elif path.suffix.lower() == ".csv":
        if trace.block_ids is not None:
            raise InputError(f"trace {path}: CSV cannot hold block ids; write .jsonl")
        names = ["arrived_s", "isl", "osl"] + (["cached"] if trace.cached is not None else [])
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(zip(*(getattr(trace, name).tolist() for name in names)))
    else:
        raise InputError(f"trace {path}: '{path.suffix}' is not known; allowed: .csv, .jsonl")


# -- generators


def lognormal(mean: float, cv: float, low: int = 1, high: float = np.inf) -> Callable:
    """Lengths with a log-normal tail: `mean`, `cv` = standard deviation over mean, before cutting to [low, high]."""
    check_number("mean", mean, low=1)
    check_number("cv", cv)
    sigma2 = np.log1p(cv * cv)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        values = rng.lognormal(np.log(mean) - 0.5 * sigma2, np.sqrt(sigma2), n)
        return np.clip(np.rint(values), low, high)

    return draw


def lengths(spec: Lengths, n: int, rng: np.random.Generator) -> np.ndarray:
    """n whole lengths: a number, a (low, high) pair for uniform integers, an array to draw from, or a function."""
    if callable(spec):
        values = np.asarray(spec(rng, n), float)
    elif isinstance(spec, tuple) and len(spec) == 2:
        low, high = (int(check_number("length", v, low=1, integer=True)) for v in spec)
        if low > high:
            raise InputError(f"lengths: ({low}, {high}); the first must not exceed the second")
        values = rng.integers(low, high + 1, n)
    elif np.ndim(spec) == 0:
        values = np.full(n, check_number("length", spec, low=1))
    else:
        values = rng.choice(np.asarray(spec), n)
    return np.maximum(np.rint(values), 1).astype(np.int64)


def _open(name, gaps_s, isl, osl, rng, cached=None) -> Trace:
    n = gaps_s.size
    prompt, output = lengths(isl, n, rng), lengths(osl, n, rng)
    known = None if cached is None else np.minimum(lengths(cached, n, rng), prompt)
    return Trace(prompt, output, np.cumsum(gaps_s), cached=known, name=name)


def poisson(
    rate: float, requests: int, isl: Lengths, osl: Lengths, seed: int = 0, cached: Lengths | None = None
) -> Trace:
    """Exponential gaps: independent users at `rate` requests/s."""
    check_number("rate", rate, low=1e-12)
    check_number("requests", requests, low=1, integer=True)
    rng = np.random.default_rng(seed)
    return _open("poisson", rng.exponential(1.0 / rate, requests), isl, osl, rng, cached)


def bursty(
    rate: float, requests: int, isl: Lengths, osl: Lengths, cv: float = 2.0, seed: int = 0,
    cached: Lengths | None = None,
) -> Trace:  # fmt: skip
    """Gamma gaps with coefficient of variation `cv`: 1 is Poisson, more is burstier."""
    check_number("rate", rate, low=1e-12)
    check_number("cv", cv, low=1e-6)
    check_number("requests", requests, low=1, integer=True)
    rng = np.random.default_rng(seed)
    shape = 1.0 / cv**2
    return _open("bursty", rng.gamma(shape, 1.0 / (rate * shape), requests), isl, osl, rng, cached)


def constant(
    rate: float, requests: int, isl: Lengths, osl: Lengths, seed: int = 0, cached: Lengths | None = None
) -> Trace:
    """Equal gaps, the first request at 1/rate."""
    check_number("rate", rate, low=1e-12)
    check_number("requests", requests, low=1, integer=True)
    return _open("constant", np.full(requests, 1.0 / rate), isl, osl, np.random.default_rng(seed), cached)


def closed_loop(
    concurrency: int, isl: int, osl: int, requests: int | None = None, low: float = 0.8, seed: int = 0,
    cached: Lengths | None = None,
) -> Trace:  # fmt: skip
    """`concurrency` clients that send as soon as they are answered, as InferenceX benchmarks do.

    10 x concurrency prompts by default; prompt and output lengths are independent uniform integers in [low, 1] x isl
    and osl (SemiAnalysisAI/InferenceX, utils/bench_serving/benchmark_serving.py); low = 1 fixes them.
    """
    check_number("concurrency", concurrency, low=1, integer=True)
    check_number("low", low, low=1e-9, high=1)
    requests = int(check_number("requests", requests or 10 * concurrency, low=1, integer=True))
    rng = np.random.default_rng(seed)
    prompt, output = (lengths((max(1, int(low * top)), int(top)), requests, rng) for top in (isl, osl))
    known = None if cached is None else np.minimum(lengths(cached, requests, rng), prompt)
    return Trace(prompt, output, concurrency=concurrency, cached=known, name="closed_loop")


def multi_turn(
    sessions_per_s: float, sessions: int, turns: Lengths, first_isl: Lengths, question: Lengths, osl: Lengths,
    think_s: float, block_tokens: int = 512, shared_prefix: int = 0, seed: int = 0,
) -> Trace:  # fmt: skip
    """Conversations whose every turn repeats all before it, with block ids: work for a prefix cache.

    Sessions arrive as a Poisson stream. Turn t prompts with the whole conversation so far plus a question; the next one
    follows after an exponential pause of mean `think_s` (measured from the last arrival: an open loop). All sessions
    share their first `shared_prefix` tokens.
    """
    rng = np.random.default_rng(seed)
    check_number("sessions_per_s", sessions_per_s, low=1e-12)
    check_number("think_s", think_s, low=0)
    starts = np.cumsum(rng.exponential(1.0 / sessions_per_s, sessions))
    shared_blocks = list(range(shared_prefix // block_tokens))
    fresh_id = len(shared_blocks)
    rows = []
    for start, count in zip(starts, lengths(turns, sessions, rng)):
        asks, answers = lengths(question, count, rng), lengths(osl, count, rng)
        pauses = rng.exponential(think_s, count)
        context = shared_prefix + int(lengths(first_isl, 1, rng)[0])
        ids, at = list(shared_blocks), float(start)
        for ask, answer, pause in zip(asks.tolist(), answers.tolist(), pauses.tolist()):
            prompt = context + ask
            full = prompt // block_tokens
            while len(ids) < full:
                ids.append(fresh_id)
                fresh_id += 1
            tail = []
            if prompt % block_tokens:  # a block that is not full is never asked for again
                tail, fresh_id = [fresh_id], fresh_id + 1
            rows.append((at, prompt, answer, ids + tail))
            context, at = prompt + answer, at + pause
    rows.sort(key=lambda row: row[0])
    arrived, isl, osl_, ids = zip(*rows)
    return Trace(
        np.array(isl), np.array(osl_), np.array(arrived), block_ids=list(ids), block_tokens=block_tokens,
        name="multi_turn",
    )  # fmt: skip
