"""An estimate for the terminal and for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.explain import EVIDENCE
from roofline.units import format as quantity

if TYPE_CHECKING:
    from rich.console import RenderableType

    from roofline.estimates import Estimate, OpRow, Value

_COLOURS = {"memory": "blue", "compute": "green", "network": "magenta", "overhead": "yellow"}


def seconds(value: float) -> str:
    """Seconds with the prefix that reads best.

    >>> seconds(0.0042), seconds(2.5)
    ('4.2 ms', '2.5 s')
    """
    return quantity(value, "s", digits=3)


def with_band(v: Value, unit: str, digits: int = 3) -> str:
    """A value with its 80 % band: '12.3 ms (11.0 to 14.1)'."""
    text = quantity(v.value, unit, digits=digits)
    if v.low == v.high:
        return text
    low, high = quantity(v.low, unit, digits=digits), quantity(v.high, unit, digits=digits)
    if low.split(" ")[-1] == text.split(" ")[-1]:
        low = low.split(" ")[0]
    return f"{text} ({low} to {high})"


def plain_band(v: Value, digits: int = 3) -> str:
    """A bare number with its band."""
    text = f"{v.value:.{digits}g}" if v.value < 1000 else f"{v.value:,.0f}"
    if v.low == v.high:
        return text
    return f"{text} ({number(v.low)} to {number(v.high)})"


def number(value: float) -> str:
    """Three significant digits, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def renderables(e: Estimate, ops: str = "decode", sources: bool = False) -> list[RenderableType]:
    """The parts of an estimate as rich renderables.

    `ops` is which per-op table: decode, prefill, both or none; `sources` lists every source instead of counting them.
    """
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(str(e.deployment), style="bold"), Text(load_text(e))]
    parts += [Text(("! " if i == 0 else "  ") + text, style="bold red") for i, text in enumerate(e.violations)]
    answers = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in answer_rows(e):
        answers.add_row(*row)
    parts += [Text(""), answers, Text("")]
    decode = "decode step" if e.cycle is None else "verification of drafts"
    for title, rows, step in ((decode, e.decode_table, "decode"), ("prefill", e.prefill_table, "prefill")):
        if ops in (step, "both"):
            parts += [op_table(f"{title}, per device", rows), Text("")]
    parts += [Text(f"evidence: {e.evidence} ({EVIDENCE[e.evidence]})", style="dim")]
    if sources:
        parts += [Text("source: " + s, style="dim") for s in e.sources]
    else:
        parts += [Text(f"sources: {len(e.sources)}, listed by --sources", style="dim")]
    parts += [Text("not modelled: " + "; ".join(e.not_modelled), style="dim")]
    return parts


def load_text(e: Estimate) -> str:
    cached = f", {e.cached:.0f} of them cached" if e.cached else ""
    many = "1 request" if e.batch == 1 else f"{e.batch:.0f} requests"
    how = {"static batch": "alone" if e.batch == 1 else "started together", "closed loop": "always in flight"}.get(
        e.load
    )
    if e.load == "open loop":
        many, how = f"{float(e.state.requests_per_s):.3g} requests/s", f"served, {e.batch:.3g} in flight on average"
    return f"{many} {how}: {e.isl:.0f} prompt tokens{cached}, {e.osl:.0f} output tokens"


def answer_rows(e: Estimate) -> list[tuple[str, str, str]]:
    """The headline numbers: (name, value with 80 % band, remark)."""
    gpus = e.deployment.plan.gpus
    stage = e.memory.tightest
    rows = [
        ("fits", "yes" if e.fits else "NO", _memory_remark(e)),
        ("TTFT", with_band(e.ttft_s, "s"), f"prefill at {e.mfu_prefill:.1%} of the compute{_spent(e.ttft_parts_s)}"),
        ("TPOT", with_band(e.tpot_s, "s"), f"{plain_band(e.tokens_per_s_user)} tok/s per user{_spent(e.tpot_parts_s)}"),
        *([] if e.cycle is None else [_speculation_row(e)]),
        ("end to end", with_band(e.e2e_s, "s"), ""),
        (
            "throughput",
            f"{plain_band(e.tokens_per_s)} tok/s",
            f"{number(e.tokens_per_s_gpu.value)} tok/s per device",
        ),
        ("decode uses", f"{e.mfu:.2%} of the compute", f"{e.mbu:.1%} of the memory bandwidth (MFU, MBU)"),
        ("intensity", f"{e.intensity:.3g} FLOP/B", f"ridge point {e.ridge_point:.0f} FLOP/B"),
        ("bound", e.regime.name, str(e.regime).removeprefix(e.regime.name).strip(" ;")),
    ]
    if e.usd_per_mtok_output and e.usd_per_mtok_blended and e.usd_per_mtok_split:
        price_in, price_out = map(number, e.usd_per_mtok_split)
        rows += [
            (
                "cost",
                f"{plain_band(e.usd_per_mtok_output)} USD/Mtok output",
                f"all cost over output tokens; over input and output {number(e.usd_per_mtok_blended.value)}; split by "
                f"time: input {price_in}, output {price_out}; {gpus} x {e.price_source}",
            )
        ]
    else:
        rows += [("cost", "unknown", e.price_source)]
    if e.joules_per_token is not None:
        rows += [
            (
                "energy",
                f"{number(e.joules_per_token)} J per output token",
                f"at rated power, an upper bound; {number(e.joules_per_token_expected)} J expected",
            )
        ]
    rows += [
        (
            "memory",
            f"{quantity(stage.weights, 'GiB')} weights",
            f"{quantity(max(stage.kv_pool, 0.0), 'GiB')} KV pool of {quantity(stage.visible, 'GiB')} per device: "
            f"{number(float(e.memory.kv_tokens) if e.fits else 0)} tokens",
        )
    ]
    return rows


def _spent(parts_s: dict[str, float]) -> str:
    """What a time is spent on, but for a hundredth: '; step 19.8 ms, prompts 9.3 ms'."""
    large = [f"{name} {seconds(part)}" for name, part in parts_s.items() if part > 0.01 * sum(parts_s.values())]
    return "; " + ", ".join(large) if large else ""


def _speculation_row(e: Estimate) -> tuple[str, str, str]:
    c, ends = e.cycle, e.pays_up_to
    where = {0.0: "pays at no batch", float("inf"): "pays at any batch"}.get(ends, f"pays up to a batch of {ends:.0f}")
    told = f"{number(float(c.tokens))} tokens in the time of {number(float(c.cost))} plain steps"
    parts = f"draft {seconds(float(c.draft_s))}, verify {seconds(float(c.verify_s))}"
    return "speculation", told, f"{e.deployment.speculation}: {parts}; {where} (no prompts beside it)"


def _memory_remark(e: Estimate) -> str:
    if e.fits:
        return f"{number(e.resident)} request{'s' * (number(e.resident) != '1')} of this length at a time"
    if e.too_long:
        return f"the model has {e.deployment.model.max_positions:,} positions"
    stage = e.memory.tightest
    missing = stage.context + stage.total_non_kv - stage.visible
    return f"{quantity(missing, 'GiB')} too much on each device" if missing > 0 else "no room for the KV cache"


def op_table(title: str, rows: list[OpRow]) -> RenderableType:
    """The per-op table of a step."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    table.add_column("op")
    for name in ("count", "GFLOP", "GB", "FLOP/B", "time", "share"):
        table.add_column(name, justify="right")
    table.add_column("bound")
    for r in rows:
        table.add_row(
            r.op, f"{r.count:.0f}", number(r.flops / 1e9), number(r.bytes / 1e9), number(r.intensity),
            seconds(r.time_s), f"{r.share:.1%}", Text(r.bound, style=_COLOURS.get(r.bound, "")),
        )  # fmt: skip
    total = sum(r.time_s for r in rows)
    flops, moved = sum(r.flops for r in rows), sum(r.bytes for r in rows)
    table.add_row("sum", "", number(flops / 1e9), number(moved / 1e9), "", seconds(total), "", "", style="bold")
    return table


def to_text(e: Estimate, ops: str = "decode", width: int = 120) -> str:
    """An estimate as plain text."""
    from rich.console import Console

    console = Console(width=width, no_color=True, highlight=False, soft_wrap=False)
    with console.capture() as capture:
        for part in renderables(e, ops):
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def to_html(e: Estimate) -> str:
    """An estimate for a notebook: answers, per-op table, and the rest folded away."""
    from html import escape

    def table(header: list[str], rows: list[list[str]]) -> str:
        head = "".join(f"<th style='text-align:left'>{escape(h)}</th>" for h in header)
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{escape(c)}</td>" for c in row) + "</tr>" for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    ops = [
        [r.op, f"{r.count:.0f}", number(r.flops / 1e9), number(r.bytes / 1e9), number(r.intensity), seconds(r.time_s),
         f"{r.share:.1%}", r.bound]
        for r in e.decode_table
    ]  # fmt: skip
    wrong = "".join(f"<p style='color:#b00'><b>{escape(v)}</b></p>" for v in e.violations)
    notes = "".join(f"<li>{escape(s)}</li>" for s in [*e.sources, "not modelled: " + "; ".join(e.not_modelled)])
    return (
        f"<h4>{escape(str(e.deployment))}</h4><p>{escape(load_text(e))}</p>{wrong}"
        + table(["", "value (80 % band)", ""], [list(r) for r in answer_rows(e)])
        + "<details><summary>decode step, per op</summary>"
        + table(["op", "count", "GFLOP", "GB", "FLOP/B", "time", "share", "bound"], ops)
        + f"</details><details><summary>evidence: {e.evidence}</summary><ul>{notes}</ul></details>"
    )


def spec_lines(spec) -> list[str]:
    """A hardware, model or engine spec as text, field by field, without what is absent."""
    return list(_lines(spec.model_dump(exclude_none=True, exclude_defaults=True), ""))


def _lines(value, indent: str):
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from _lines(item, indent + "  ")
        elif isinstance(item, (list, tuple)) and any(isinstance(x, dict) for x in item):
            yield f"{indent}{key}: ({len(item)})"
            for x in item:
                yield f"{indent}  - " + ", ".join(f"{k}: {_short(v)}" for k, v in x.items() if v not in ((), {}))
        else:
            yield f"{indent}{key}: {_short(item)}"


def _short(value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_short(v) for v in value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    return str(value)
