"""`roofline plot`."""

from __future__ import annotations

from pathlib import Path

import click

from roofline.cli.options import (
    HARDWARE,
    MODEL,
    OUT_FILE,
    deployment_options,
    load_options,
    speculation_option,
    usd_per_h,
)
from roofline.errors import InputError
from roofline.plotted import KINDS
from roofline.units import parse

# Options of single figures: name of the keyword -> figures that take it
BELONGS = {
    "slo_ttft_s": ("frontier", "cost"),
    "slo_tpot_s": ("frontier", "cost"),
    "max_gpus": ("frontier", "cost"),
    "others": ("cost",),
    "step": ("waterfall",),
    "op": ("tiles",),
    "drafter": ("speculation",),
    "requests": ("timeline",),
    "tiers": ("tiers",),
    "measured": ("roofline",),
    "truth": ("validation",),
    "quantity": ("validation",),
    "by": ("validation",),
}


def seconds_of(name: str, text: str | None) -> float | None:
    """A limit in seconds: '200ms', '0.2 s' or a bare number of seconds."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = parse(text, "s")
    if not 0 < value < float("inf"):
        raise InputError(f"{name}: '{text}' is not a positive time; e.g. 200ms")
    return value


def tier_of(text: str):
    """A tier from 'name=25 GB/s' or 'name=25 GB/s,100us'."""
    from roofline.serving.tiers import Tier

    name, equals, rest = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"tier: '{text}' is not a name and a bandwidth; e.g. 'ssd=7 GB/s' or 'ssd=7 GB/s,100us'")
    bandwidth, _, latency = rest.partition(",")
    return Tier(name.strip(), float("inf"), parse(bandwidth, "B/s"), parse(latency, "s") if latency else 0.0)


@click.command("plot")
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="KIND")
@click.argument("subject", type=MODEL, default="llama-3.1-8b", metavar="[MODEL]")
@deployment_options
@load_options
@speculation_option
@click.option("-o", "--out", type=OUT_FILE, default=None,
              help="File: .png, .svg or .pdf.  [default: KIND.png]")  # fmt: skip
@click.option("--theme", type=click.Choice(("light", "dark")), default="light", show_default=True,
              help="Background of the page that it goes to.")  # fmt: skip
@click.option("--size", type=click.Choice(("slide", "page", "narrow")), default="slide", show_default=True,
              help="How large it will be seen: on a slide, in a page, on a phone.")  # fmt: skip
@click.option("--slo-ttft", default=None, metavar="TIME", help="frontier, cost: limit on the mean TTFT: 500ms.")
@click.option("--slo-tpot", default=None, metavar="TIME", help="frontier, cost: limit on the mean TPOT: 30ms.")
@click.option("--max-gpus", type=click.IntRange(1, 64), default=None, help="frontier, cost: most devices of a layout.")
@click.option("--against", type=HARDWARE, multiple=True, metavar="HW",
              help="cost: a further device; may be repeated.")  # fmt: skip
@click.option("--step", type=click.Choice(("decode", "prefill")), default=None, help="waterfall: of which step.")
@click.option("--op", default=None, help="tiles: which matrix product.  [default: ffn.up]")
@click.option("--drafter", default=None, help="speculation: as in 'roofline speculate'.")
@click.option("--requests", type=click.IntRange(1, 60), default=None, help="timeline: how many.  [default: 10]")
@click.option("--tier", multiple=True, metavar="NAME=RATE",
              help="tiers: where KV is fetched from, per GPU: 'ssd=7 GB/s,100us'; may be repeated.")  # fmt: skip
@click.option("--measured", type=click.Path(dir_okay=False), default=None,
              help="roofline: CSV with step, op, flops, bytes and time_s of ops that were timed.")  # fmt: skip
@click.option("--truth", type=click.Path(dir_okay=False), default=None,
              help="validation: the measured table; [MODEL] is then the file of predictions.")  # fmt: skip
@click.option("--quantity", default=None, help="validation: column to compare: tpot_s.")
@click.option("--by", default=None, help="validation: column that tells groups apart.")
def plot_command(kind, subject, hw, tp, pp, ep, dp, cp, weights, kv, engine, specs, isl, osl, cached, batch,
                 concurrency, rate, price, speculation, out, theme, size, slo_ttft, slo_tpot, max_gpus, against, step,
                 op, drafter, requests, tier, measured, truth, quantity, by) -> None:  # fmt: skip
    """One figure of a deployment, as PNG, SVG or PDF; prints in words what it shows.

    \b
    KIND is one of
      {kinds}

    \b
    Examples:
      roofline plot roofline llama-3.1-70b --hw h100-sxm --tp 4 --concurrency 32 -o roofline.svg
      roofline plot frontier llama-3.1-70b --isl 2000 --osl 500 --slo-ttft 1s --slo-tpot 30ms --theme dark
      roofline plot cost llama-3.1-70b --against h200-sxm --against b200-sxm --slo-tpot 30ms -o cost.pdf
      roofline plot validation predicted.csv --truth measured.csv --quantity tpot_s --by system
    """
    from roofline.report import figure_module, plot

    options = {
        "slo_ttft_s": seconds_of("slo-ttft", slo_ttft), "slo_tpot_s": seconds_of("slo-tpot", slo_tpot),
        "max_gpus": max_gpus, "others": against or None, "step": step, "op": op, "drafter": drafter,
        "requests": requests, "tiers": [tier_of(t) for t in tier] or None, "measured": measured, "truth": truth,
        "quantity": quantity, "by": by,
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if kind not in BELONGS[name]:
            raise InputError(f"the figure '{kind}' has no such option; {name} is for {' and '.join(BELONGS[name])}")
    if "measured" in options:
        options["measured"] = figure_module("roofline").read_points(options["measured"])
    if kind != "validation":
        from roofline.estimates import estimate

        subject = estimate(
            subject, hw, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, weights=weights, kv=kv, engine=engine, isl=isl, osl=osl,
            batch=batch, concurrency=concurrency, rate_per_s=rate, cached=cached, usd_per_h=usd_per_h(price),
            speculation=speculation, specs=specs,
        )  # fmt: skip
    path = Path(out or f"{kind}.png")
    picture = plot(subject, kind, out=path, theme=theme, size=size, **options)
    click.echo(picture.caption)
    click.echo(f"wrote {path}", err=True)


plot_command.help = plot_command.help.replace("{kinds}", "\n      ".join(f"{n:12} {t}" for n, t in KINDS.items()))
