"""`roofline plan`."""

from __future__ import annotations

import datetime
import re
import shlex
import sys

import click

from roofline.cli.options import OUT_FILE, TOKENS, speculation_option
from roofline.errors import InputError
from roofline.units import parse

_LIMIT = re.compile(r"\s*([^@]+?)\s*(?:@\s*(?:p(\d+(?:\.\d+)?)|(mean)))?\s*")


def limit(name: str, text: str | None) -> tuple[float | None, float | None]:
    """A latency limit and the share of requests that must keep it: '500 ms', '500ms@p99', '2 s@mean'.

    >>> limit("ttft", "500 ms@p99"), limit("ttft", "2s"), limit("tpot", None)
    ((0.5, 0.99), (2.0, 0.9), (None, 0.9))
    """
    if text is None:
        return None, 0.9
    match = _LIMIT.fullmatch(text)
    try:
        seconds = parse(re.sub(r"(?<=\d)(?=[a-zA-Z])", " ", match[1]), "s")
    except (TypeError, InputError):
        raise InputError(f"{name}: '{text}' is not a time; e.g. '500 ms', '2 s@p99' or '50 ms@mean'") from None
    if match[3]:
        return seconds, None
    return seconds, round(float(match[2]) / 100.0, 6) if match[2] else 0.9


def listed(text: str | None) -> list[str] | None:
    """Names after commas; None where nothing was given."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def prices_of(texts: tuple[str, ...]) -> dict[str, float]:
    """'h100-sxm=2.5' as {device: USD/h}."""
    out = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            out[name.strip()] = float(value)
        except ValueError:
            raise InputError(f"price: '{text}' is not DEVICE=USD per hour, e.g. h100-sxm=2.5") from None
    return out


@click.command("plan")
@click.argument("model", default="llama-3.1-70b")
@click.option("--hw", default=None, help="Allowed hardware, names after commas; default: every priced datacentre GPU.")
@click.option("--rate", type=float, default=None, help="Requests per second.")
@click.option("--tokens-per-day", type=TOKENS, default=None, help="Input and output tokens a day instead of a rate.")
@click.option("--trace", type=click.Path(), default=None, help="CSV or JSONL trace: lengths, rate, cache hits from it.")
@click.option("--isl", type=TOKENS, default=None, help="Prompt tokens of a request.")
@click.option("--osl", type=TOKENS, default=None, help="Output tokens of a request.")
@click.option("--hit-rate", type=float, default=None, help="Share of prompt tokens found in the prefix cache.")
@click.option("--peak", type=float, default=1.0, show_default=True, help="Busiest hour over the mean.")
@click.option("--ttft", default=None, help="Limit of the time to first token: '500 ms', '2 s@p99', '1 s@mean'.")
@click.option("--tpot", default=None, help="Limit of the time per output token: '40 ms'.")
@click.option("--e2e", default=None, help="Limit of the whole request: '30 s@p99'.")
@click.option("--goodput", type=float, default=None, help="Share of requests that must keep all limits at once.")
@click.option("--weights", default=None, help="Allowed weight formats, after commas; default: the checkpoint's.")
@click.option("--kv", default=None, help="Allowed KV formats, after commas.")
@click.option("--engine", default="vllm", show_default=True, help="Allowed engine profiles, after commas.")
@click.option("--price", multiple=True, help="DEVICE=USD per hour in place of the list price; repeatable.")
@click.option("--tier", default=None, help="Kind of provider: hyperscaler, specialist, long-tail.")
@click.option("--budget", type=float, default=None, help="Most USD per hour.")
@click.option("--spares", type=int, default=0, show_default=True, help="Replicas that may be down (N+1: 1).")
@click.option("--max-gpus", type=int, default=32, show_default=True, help="Devices of one replica at most.")
@click.option("--no-mix", is_flag=True, help="Replicas of one kind only.")
@click.option("--no-disaggregation", is_flag=True, help="No separate prefill and decode pools.")
@click.option("--cross-vendor", is_flag=True, help="Pools of unlike vendors too: no released engine connects them.")
@click.option("--cards", default=None, help="One machine of unequal cards instead: 'rtx-3090, rtx-4090:16GiB'.")
@click.option("--emit", type=click.Choice(("vllm", "sglang", "tensorrt-llm", "llama.cpp", "dynamo")), default=None,
              help="Print the launch command that realises the plan.")  # fmt: skip
@click.option("--report", type=OUT_FILE, default=None,
              help="Write the plan as a page: .html, or .pdf where Chromium or Chrome is installed.")  # fmt: skip
@speculation_option
@click.option("--specs", type=click.Path(), default=None, help="Folder with your own hardware_specs/, model_specs/.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON, in SI units.")
def plan_command(model, hw, rate, tokens_per_day, trace, isl, osl, hit_rate, peak, ttft, tpot, e2e, goodput, weights,
                 kv, engine, price, tier, budget, spares, max_gpus, no_mix, no_disaggregation, cross_vendor, cards,
                 emit, report, speculation, specs, as_json) -> None:  # fmt: skip
    """The cheapest fleet that serves MODEL within latency objectives, and why.

    \b
    Examples:
      roofline plan
      roofline plan llama-3.1-70b --rate 20 --isl 2000 --osl 300 --ttft '1 s@p90' --tpot '40 ms' --weights fp8
      roofline plan deepseek-r1 --tokens-per-day 5b --isl 4000 --osl 500 --tpot 50ms --spares 1 --emit vllm
      roofline plan llama-3.1-70b --trace requests.csv --ttft '2 s@p99' --budget 40
      roofline plan qwen3-32b --rate 8 --isl 2000 --osl 400 --ttft 1s --tpot 30ms --report plan.html
    """
    if cards is not None:
        if report is not None:
            raise InputError("report: a page is written of a plan for traffic, not of --cards")
        return _cards(model, cards, isl, weights, kv, engine, specs)
    from roofline.planner import Slo, plan, traffic

    if rate is None and tokens_per_day is None and trace is None:
        rate = 5.0
        isl, osl = isl or 2000.0, osl or 300.0
        ttft, tpot = ttft or "2 s@p90", tpot or "50 ms@p90"
    asked = traffic(rate_per_s=rate, tokens_per_day=tokens_per_day, trace=trace, isl=isl, osl=osl, hit_rate=hit_rate,
                    peak=peak)  # fmt: skip
    (a, at_a), (b, at_b), (c, at_c) = limit("ttft", ttft), limit("tpot", tpot), limit("e2e", e2e)
    slo = Slo(a, b, c, at_a, at_b, at_c, goodput)
    r = plan(
        model, listed(hw), traffic=asked, slo=slo, weights=listed(weights), kv=listed(kv), engine=listed(engine),
        prices=prices_of(price), tier=tier, budget_usd_per_h=budget, spares=spares, max_gpus=max_gpus, mix=not no_mix,
        disaggregate=not no_disaggregation, cross_vendor=cross_vendor, speculation=speculation,
        specs=specs,
    )  # fmt: skip
    if emit is not None:
        from roofline.handoff import launch_plan

        click.echo(launch_plan(r, emit))
    elif as_json:
        from roofline.explain import json_text

        click.echo(json_text(r.to_dict()))
    else:
        click.echo(str(r))
    if report is not None:
        from roofline.report import write_report

        today = datetime.date.today().isoformat()
        path = write_report(r, report, command=shlex.join(["roofline", *sys.argv[1:]]), date=today)
        click.echo(f"wrote {path}", err=True)


def _cards(model, cards, isl, weights, kv, engine, specs) -> None:
    """A machine of unequal cards."""
    from roofline.planner.unequal import Card, over_cards
    from roofline.precision import precision_named
    from roofline.specs.engine import engine_named
    from roofline.specs.library import hardware
    from roofline.specs.refs import load_model

    found = []
    for part in listed(cards) or []:
        name, _, size = part.partition(":")
        visible = parse(re.sub(r"(?<=\d)(?=[a-zA-Z])", " ", size.strip()), "B") if size else None
        found.append(Card(hardware(name.strip(), specs=specs), visible))
    loaded = load_model(model, specs=specs)
    precision = (
        precision_named(weights or loaded.model.native) if weights or loaded.precision is None else loaded.precision
    )
    ways = over_cards(loaded.model, found, precision.with_kv(kv), engine_named(engine), isl or 2048.0)
    click.echo("\n\n".join(map(str, ways)))
