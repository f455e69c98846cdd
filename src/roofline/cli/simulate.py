"""`roofline simulate`: requests one by one through replicas of a deployment."""

from __future__ import annotations

import dataclasses
import io
import math
import sys
from pathlib import Path
from typing import Any

import click

from roofline.cli.options import MODEL, OUT_FILE, TOKENS, deployment_options, speculation_option
from roofline.errors import InputError, UnknownNameError, check_number

LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")
COLUMNS = ("mean", "p50", "p90", "p99")
OUTPUTS = (".parquet", ".csv", ".jsonl")
MOST_REQUESTS = 5_000_000
MOST_TURNS, MOST_BLOCKS = 1000, 2e7
BAR_WIDTH = 48
ROUTERS = ("round-robin", "least-loaded", "least-tokens", "cache-aware", "fresh-warm")


class LengthsType(click.ParamType):
    """Lengths of requests: '1000', '500-4000' (uniform) or '1000~0.8' (log-normal: mean, standard deviation / mean)."""

    name = "lengths"

    def convert(self, value, param, ctx):
        if not isinstance(value, str):
            return value
        name = param.name if param else "lengths"
        for sign in ("~", "-"):
            first, found, second = value.partition(sign)
            if found and first.strip():
                return self._pair(name, sign, first, second)
        return self._tokens(name, value)

    def _pair(self, name: str, sign: str, first: str, second: str):
        low = self._tokens(name, first)
        if sign == "-":
            high = self._tokens(name, second)
            if high < low:
                raise InputError(f"{name}: '{first}-{second}' runs backwards; write the shorter length first")
            return int(low), int(high)
        from roofline.simulation.trace import lognormal

        try:
            cv = float(second)
        except ValueError:
            raise InputError(f"{name}: '{second}' is not a coefficient of variation; e.g. 1000~0.8") from None
        return lognormal(low, check_number(f"{name}: coefficient of variation", cv, low=0, high=100))

    def _tokens(self, name: str, text: str) -> float:
        tokens = TOKENS.read(name, text)
        return check_number(name, tokens, low=1, high=1e9)


LENGTHS = LengthsType()


@click.command("simulate")
@click.argument("model", type=MODEL, default="llama-3.1-8b")
@deployment_options
@speculation_option
@click.option("--trace", type=click.Path(), default=None,
              help="CSV or JSONL of requests (Azure, BurstGPT, Mooncake, or arrived_s, isl, osl).")  # fmt: skip
@click.option("--scale", type=float, default=1.0, show_default=True, help="Trace: arrive so many times as fast.")
@click.option("--rate", type=float, default=None, help="Requests that arrive per second, as a Poisson stream.")
@click.option("--bursty", type=float, default=None, metavar="CV",
              help="With --rate: coefficient of variation of the gaps; 1 is Poisson, more is burstier.")  # fmt: skip
@click.option("--concurrency", type=int, default=None, help="Clients that ask again as soon as they are answered.")
@click.option("--turns", type=LENGTHS, default=None,
              help="With --rate: conversations of so many turns, each repeating all before it.")  # fmt: skip
@click.option("--think", type=float, default=10.0, show_default=True, help="Mean pause between turns, in seconds.")
@click.option("--shared-prefix", type=TOKENS, default="0", show_default=True,
              help="With --turns: tokens that all conversations start with.")  # fmt: skip
@click.option("--isl", type=LENGTHS, default="1024", show_default=True,
              help="Prompt tokens: 1000, 500-4000, or 1000~0.8 (log-normal); of a turn: the question.")  # fmt: skip
@click.option("--osl", type=LENGTHS, default="256", show_default=True, help="Output tokens, in the same forms.")
@click.option("--requests", type=int, default=None, help="How many; default: 1,000, or all of the trace.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same run.")
@click.option("--replicas", type=int, default=1, show_default=True, help="Replicas behind one router.")
@click.option("--decode-replicas", type=int, default=None,
              help="Disaggregate: --replicas compute prompts, so many others decode.")  # fmt: skip
@click.option("--router", type=click.Choice(ROUTERS), default="round-robin", show_default=True,
              help="Which replica gets a request.")  # fmt: skip
@click.option("--prefix-caching", is_flag=True, help="Keep prompt blocks; needs block ids (--turns, or hash_ids).")
@click.option("--max-seqs", type=int, default=None, help="Running sequences of a replica; default: the engine's.")
@click.option("--token-budget", type=int, default=None, help="Tokens of a step; default: the engine's.")
@click.option("--kv-blocks", type=float, default=None, help="KV blocks of a replica; default: what fits.")
@click.option("--knob", multiple=True, metavar="NAME=VALUE",
              help="Any other scheduler setting: chunked=false, hold_steps=20, ...; repeatable.")  # fmt: skip
@click.option("--ttft", default=None, help="Limit for goodput: '500 ms'.")
@click.option("--tpot", default=None, help="Limit for goodput: '40 ms'.")
@click.option("--e2e", default=None, help="Limit for goodput: '30 s'.")
@click.option("--out", type=OUT_FILE, default=None,
              help="One row a request, by the ending: .parquet, .csv or .jsonl.")  # fmt: skip
@click.option("--timeline", type=int, default=None, metavar="N", help="Show the life of request N (from 0).")
@click.option("--json", "as_json", is_flag=True, help="The aggregates as JSON, in SI units.")
def simulate_command(model, hw, tp, pp, ep, dp, cp, weights, kv, engine, specs, speculation, trace, scale, rate, bursty,
                     concurrency, turns, think, shared_prefix, isl, osl, requests, seed, replicas, decode_replicas,
                     router, prefix_caching, max_seqs, token_budget, kv_blocks, knob, ttft, tpot, e2e, out, timeline,
                     as_json) -> int | None:  # fmt: skip
    """Replay requests through replicas of MODEL: percentiles, queues, cache hits, preemptions.

    Requests come from a file (--trace) or are drawn: --rate (open loop), --concurrency (closed loop), or --rate with
    --turns (conversations, for prefix caches). Steps cost what 'roofline estimate' says; the scheduler follows the
    engine profile. Ctrl-C stops early and prints what was done.

    \b
    Examples:
      roofline simulate
      roofline simulate llama-3.1-70b --tp 4 --rate 4 --bursty 2 --isl 500-4000 --osl 200~0.7 --ttft '1 s'
      roofline simulate llama-3.1-70b --tp 4 --trace requests.csv --replicas 4 --router least-loaded --out run.csv
      roofline simulate --rate 1 --turns 5 --shared-prefix 2048 --prefix-caching --replicas 2 --router cache-aware
      roofline simulate llama-3.1-70b --tp 4 --concurrency 64 --timeline 100
    """
    limits = _limits(ttft=ttft, tpot=tpot, e2e=e2e)
    if out is not None and Path(out).suffix.lower() not in OUTPUTS:
        raise InputError(f"out: '{out}' must end in {', '.join(OUTPUTS)}")
    knobs = knobs_of(knob, max_seqs=max_seqs, token_budget=token_budget, kv_blocks=kv_blocks)
    asked = trace_of(trace, scale, rate, bursty, concurrency, turns, think, shared_prefix, isl, osl, requests, seed)
    if timeline is not None and not 0 <= timeline < len(asked):
        raise InputError(f"timeline: there is no request {timeline}; the trace has 0 to {len(asked) - 1}")
    check_number("replicas", replicas, low=1, high=10_000, integer=True)
    from roofline.deployment import deployment
    from roofline.speculative import speculating

    where = deployment(model, hw, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, weights=weights, kv=kv, engine=engine, specs=specs)
    where = speculating(where, speculation, specs)
    result = _run(where, asked, replicas, decode_replicas, router, prefix_caching, knobs | {"seed": seed},
                  timeline is not None)  # fmt: skip
    if out is not None:
        _write(out, result)
    pools = f"{replicas} replica{'s' * (replicas > 1)}"
    if decode_replicas:
        pools = f"{replicas} prefill and {decode_replicas} decode replicas"
    summary = result.summary()
    if limits:
        summary["goodput_req_per_s"] = result.goodput_req_per_s(**limits)
    if as_json:
        told = {"deployment": str(where), "trace": asked.name, "pools": pools, "router": router, "seed": seed,
                "complete": result.complete, **summary}  # fmt: skip
        from roofline.explain import json_text

        click.echo(json_text(told))
    else:
        _show(f"{where}; {pools}" + (f", {router}" if replicas > 1 else ""), asked, result, summary, limits, timeline)
    return None if result.complete else 130


# -- what is asked


def trace_of(path, scale, rate, bursty, concurrency, turns, think, shared_prefix, isl, osl, requests, seed):
    """The trace that the options describe.

    Errors:   InputError where they contradict each other
    """
    import numpy as np

    from roofline.simulation import trace as traces

    sources = [n for n, v in (("--trace", path), ("--rate", rate), ("--concurrency", concurrency)) if v is not None]
    if len(sources) > 1:
        raise InputError(f"give one of --trace, --rate and --concurrency, not {' and '.join(sources)}")
    for name, value in (("--bursty", bursty), ("--turns", turns)):
        if value is not None and rate is None:
            raise InputError(f"{name} goes with --rate")
    if bursty is not None and turns is not None:
        raise InputError("give one of --bursty and --turns; conversations arrive as a Poisson stream")
    check_number("seed", seed, low=0, high=2**63, integer=True)
    if requests is not None:
        check_number("requests", requests, low=1, high=MOST_REQUESTS, integer=True)
    if path is not None:
        found = traces.read_trace(path)
        found = found if requests is None else found.head(requests)
        return found.at_rate(scale) if scale != 1.0 else found
    if scale != 1.0:
        raise InputError("--scale goes with --trace; use --rate")
    count = requests or 1000
    if concurrency is not None or rate is None:
        clients = int(check_number("concurrency", 16 if concurrency is None else concurrency, low=1, high=1_000_000))
        rng = np.random.default_rng(seed)
        prompts, outputs = traces.lengths(isl, count, rng), traces.lengths(osl, count, rng)
        return traces.Trace(prompts, outputs, concurrency=clients, name="closed loop")
    check_number("rate", rate, low=1e-9, high=1e6)
    if turns is not None:
        check_number("think", think, low=0, high=1e9)
        block = traces.MOONCAKE_BLOCK_TOKENS
        prefix = int(check_number("shared_prefix", shared_prefix, low=0, high=1e7)) // block * block
        rng = np.random.default_rng(seed)
        drawn, asks, answers = (traces.lengths(x, 1000, rng) for x in (turns, isl, osl))
        check_number("turns", float(drawn.max()), low=1, high=MOST_TURNS)
        mean = float(drawn.mean())
        blocks = count * (mean / 2.0 * float(asks.mean() + answers.mean()) + prefix) / block
        if blocks > MOST_BLOCKS:
            raise InputError(f"turns: these conversations have {blocks:.1g} prefix blocks in all; at most "
                             f"{MOST_BLOCKS:.0e}: fewer requests or turns, or shorter prompts")  # fmt: skip
        sessions = max(round(count / mean), 1)
        made = traces.multi_turn(rate / mean, sessions, turns, isl, isl, osl, think, block, prefix, seed)
        return dataclasses.replace(made, name=f"{sessions} conversations")
    if bursty is not None:
        check_number("bursty", bursty, low=0.01, high=100)
        return traces.bursty(rate, count, isl, osl, cv=bursty, seed=seed)
    return traces.poisson(rate, count, isl, osl, seed=seed)


def knobs_of(texts: tuple[str, ...], **given) -> dict[str, Any]:
    """Scheduler settings by name, from 'name=value' texts and from options; None is not given.

    >>> knobs_of(("chunked=false", "hold_steps=20"), max_seqs=None)
    {'chunked': False, 'hold_steps': 20}
    """
    from roofline.simulation.scheduler import Scheduler

    types = {f.name: type(f.default) for f in dataclasses.fields(Scheduler) if f.name != "name"}
    knobs = {name: value for name, value in given.items() if value is not None}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not sign:
            raise InputError(f"knob: '{text}' is not NAME=VALUE, e.g. hold_steps=20")
        if name not in types:
            raise UnknownNameError("scheduler setting", name, types)
        knobs[name] = _value(name, value, types[name])
    if math.isnan(knobs.get("kv_blocks", 1.0)):
        raise InputError("kv_blocks: nan is not a number of blocks")
    return knobs


def _value(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in known:
            raise InputError(f"{name}: '{text}' is not true or false")
        return known[text.lower()]
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{name}: '{text}' is not a {'whole number' if kind is int else 'number'}") from None


def _limits(**texts: str | None) -> dict[str, float]:
    from roofline.cli.plan import limit

    return {f"{name}_s": limit(name, text)[0] for name, text in texts.items() if text is not None}


def _router(name: str):
    from roofline import simulation as sim

    kinds = {
        "round-robin": sim.RoundRobin, "least-loaded": sim.LeastLoaded, "cache-aware": sim.CacheAware,
        "fresh-warm": sim.FreshWarm, "least-tokens": lambda: sim.LeastLoaded(by_tokens=True),
    }  # fmt: skip
    return kinds[name]()


# -- the run


def _run(where, trace, replicas, decode_replicas, router, prefix_caching, knobs, timeline):
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from roofline import simulation as sim

    pool = sim.deployed(where, trace, replicas,
                        {"router": _router(router), "prefix_caching": prefix_caching}, **knobs)  # fmt: skip
    more = {}
    if decode_replicas is not None:
        check_number("decode_replicas", decode_replicas, low=1, high=10_000, integer=True)
        more = {"decode": sim.deployed(where, trace, decode_replicas, **knobs), "link": _link(where, trace)}
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    if not console.is_terminal:
        click.echo(f"simulating {len(trace):,} requests", err=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=len(trace))

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return sim.simulate(trace, pool, progress=progress, timeline=timeline, **more)


def _link(where, trace):
    """The path of KV between like workers, over the devices' own links."""
    from roofline.serving.disaggregated import Pools, kv_transfer_s
    from roofline.simulation import Link

    tokens = float(trace.isl.mean())
    per_token = float(where.model.kv_bytes_per_sequence(tokens, where.plan, where.precision)) / tokens
    return Link(per_token, per_token * tokens / float(kv_transfer_s(Pools(where, where), tokens)))


def _write(out: str, result) -> None:
    from roofline.files import write_atomically

    frame, suffix = result.to_frame(), Path(out).suffix.lower()
    if suffix == ".parquet":
        from roofline.sweeps.result import require

        require("pyarrow", "parquet")
        held = io.BytesIO()
        frame.rename_axis("request").reset_index().to_parquet(held, index=False)
        data: str | bytes = held.getvalue()
    elif suffix == ".csv":
        data = frame.to_csv(index_label="request")
    else:
        data = frame.rename_axis("request").reset_index().to_json(orient="records", lines=True)
    write_atomically(out, data)
    click.echo(f"wrote {len(frame):,} requests to {out}", err=True)


# -- what is shown


def _show(head: str, trace, result, summary: dict[str, float], limits: dict[str, float], timeline: int | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from roofline.display import number, seconds

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    load = f"{trace.concurrency} clients" if trace.concurrency else f"{number(trace.rate_req_per_s)} requests/s"
    console.print(head, markup=False)
    done, all_ = int(summary["finished"]), int(summary["requests"])
    lengths = f"mean {number(float(trace.isl.mean()))} tokens in, {number(float(trace.osl.mean()))} out"
    console.print(f"{trace.name}: {done:,} of {all_:,} requests answered, {load}, {lengths}", markup=False)
    if trace.notes:
        console.print(trace.notes, markup=False)
    if not result.complete:
        console.print("stopped early: the numbers are those of the requests that were answered by then", style="bold")
    console.print()
    table = Table("", *COLUMNS, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in LATENCIES:
        values = [summary[f"{name}_{column}_s"] for column in COLUMNS]
        label = "queueing" if name == "queue" else name.upper()
        table.add_row(label, *(seconds(v) if math.isfinite(v) else "-" for v in values))
    console.print(table)
    console.print()
    rates = (
        ("output", summary["output_tok_per_s"], "tokens/s"), ("input", summary["input_tok_per_s"], "tokens/s"),
        ("requests", summary["req_per_s"], "1/s"),
        ("goodput", summary.get("goodput_req_per_s"), f"1/s within {_told(limits)}"),
        ("prefix hits", 100.0 * summary["hit_rate"], "% of prompt tokens"), ("preemptions", summary["preemptions"], ""),
        ("mean batch", summary["decode_batch_mean"], "sequences decoding together"),
        ("busy", 100.0 * summary["busy_share"], "% of the time"), ("duration", summary["duration_s"], "s simulated"),
    )  # fmt: skip
    lines = Table(box=None, show_header=False, pad_edge=False)
    for name, value, unit in rates:
        if value is not None:
            lines.add_row(name, number(value) if math.isfinite(value) else "-", unit)
    lines.columns[1].justify = "right"
    console.print(lines)
    if timeline is not None:
        console.print()
        _life(console, result, timeline)


def _told(limits: dict[str, float]) -> str:
    from roofline.display import seconds

    return ", ".join(f"{name.removesuffix('_s').upper()} {seconds(value)}" for name, value in limits.items())


def _life(console, result, i: int) -> None:
    """The spans of one request, drawn to scale; many prompt chunks are one line each."""
    from rich.table import Table

    from roofline.display import seconds

    spans = result.life(i)
    console.print(f"life of request {i}: {int(result.isl[i])} tokens in ({int(result.cached[i])} cached), "
                  f"{int(result.osl[i])} out, replica {int(result.replica[i])}", markup=False)  # fmt: skip
    spans = [s for s in spans if math.isfinite(s.start_s) and math.isfinite(s.end_s)]
    if not spans:
        console.print("it had not started when the run was stopped", markup=False)
        return
    start, whole = spans[0].start_s, max(spans[-1].end_s - spans[0].start_s, 1e-12)
    table = Table("what", "from", "takes", "tokens", "", box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:4]:
        column.justify = "right"
    for s in spans:
        left = min(int((s.start_s - start) / whole * BAR_WIDTH), BAR_WIDTH - 1)
        wide = max(round(s.seconds / whole * BAR_WIDTH), 1)
        bar = " " * left + ("━" * min(wide, BAR_WIDTH - left))
        times = seconds(s.start_s - start), seconds(s.seconds)
        table.add_row(s.kind.replace("_", " "), *times, str(s.tokens or ""), bar)
    console.print(table)
