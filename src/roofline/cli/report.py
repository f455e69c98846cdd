"""`roofline report`."""

from __future__ import annotations

import datetime
import shlex
import sys

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
from roofline.cli.plot import seconds_of
from roofline.plotted import KINDS


@click.command("report")
@click.argument("model", type=MODEL, default="llama-3.1-8b")
@deployment_options
@load_options
@speculation_option
@click.option("-o", "--out", type=OUT_FILE, default="report.html", show_default=True,
              help="File: .html, or .pdf where Chromium or Chrome is installed.")  # fmt: skip
@click.option("--question", default=None, help="The heading, in place of the one made from the options.")
@click.option("--figure", "figures", multiple=True, type=click.Choice(list(KINDS)), metavar="KIND",
              help="Only these figures (see 'roofline plot --help'); may be repeated.  [default: all that apply]",
              )  # fmt: skip
@click.option("--slo-ttft", default=None, metavar="TIME", help="Limit on the mean TTFT, for the frontiers: 500ms.")
@click.option("--slo-tpot", default=None, metavar="TIME", help="Limit on the mean TPOT, for the frontiers: 30ms.")
@click.option("--against", type=HARDWARE, multiple=True, metavar="HW",
              help="A further device for the cost frontier; may be repeated.")  # fmt: skip
def report_command(model, hw, tp, pp, ep, dp, cp, weights, kv, engine, specs, isl, osl, cached, batch, concurrency,
                   rate, price, speculation, out, question, figures, slo_ttft, slo_tpot, against) -> None:  # fmt: skip
    """One self-contained page for a review: question, answer, evidence, figures, tables, assumptions, sources, limits.

    It needs no network, follows the reader's light or dark mode, and prints.

    \b
    Examples:
      roofline report llama-3.1-70b --hw h100-sxm --tp 4 --isl 2000 --osl 500 --concurrency 32 -o review.html
      roofline report deepseek-r1 --hw h200-sxm --tp 8 --ep 8 --concurrency 64 --slo-tpot 40ms -o review.pdf
    """
    from roofline.estimates import estimate
    from roofline.report import write_report

    e = estimate(
        model, hw, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, weights=weights, kv=kv, engine=engine, isl=isl, osl=osl,
        batch=batch, concurrency=concurrency, rate_per_s=rate, cached=cached, usd_per_h=usd_per_h(price),
        speculation=speculation, specs=specs,
    )  # fmt: skip
    limits = {"slo_ttft_s": seconds_of("slo-ttft", slo_ttft), "slo_tpot_s": seconds_of("slo-tpot", slo_tpot)}
    limits = {name: value for name, value in limits.items() if value is not None}
    path = write_report(
        e, out, command=shlex.join(["roofline", *sys.argv[1:]]), question=question, figures=figures or None,
        options={"frontier": limits, "cost": limits | ({"others": against} if against else {})},
        date=datetime.date.today().isoformat(),
    )  # fmt: skip
    click.echo(f"wrote {path}", err=True)
