"""`roofline levers`."""

from __future__ import annotations

import click

from roofline.cli.options import TOKENS, deployment_options, speculation_option, usd_per_h

BY = ("tpot", "ttft", "throughput", "peak", "usd")


@click.command("levers")
@click.argument("model", default="llama-3.1-8b")
@deployment_options
@speculation_option
@click.option("--isl", type=TOKENS, default="1024", show_default=True, help="Prompt tokens of a request.")
@click.option("--osl", type=TOKENS, default="256", show_default=True, help="Output tokens of a request.")
@click.option("--cached", type=TOKENS, default="0", show_default=True, help="Prompt tokens already in the KV cache.")
@click.option("--concurrency", type=float, default=16, show_default=True, help="Requests in flight on the replica.")
@click.option("--price", default=None, help="USD per device-hour instead of the price list's.")
@click.option("--by", type=click.Choice(BY), default="tpot", show_default=True, help="Gain to rank by.")
@click.option("--hit-rate", type=float, default=0.5, show_default=True, help="Hits assumed for a prefix cache.")
@click.option("--acceptance", type=float, default=0.7, show_default=True, help="Acceptance assumed for drafts.")
@click.option("--rows", type=int, default=16, show_default=True, help="Techniques to show.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def levers_command(model, hw, tp, pp, ep, dp, cp, weights, kv, engine, specs, speculation, isl, osl, cached,
                   concurrency, price, by, hit_rate, acceptance, rows, as_json) -> None:  # fmt: skip
    """What would help most: every technique as a what-if on a deployment, and what +10 % of each resource brings.

    \b
    Examples:
      roofline levers llama-3.1-70b --hw h100-sxm --tp 4 --isl 4000 --osl 500 --concurrency 32
      roofline levers deepseek-r1 --hw h200-sxm --tp 8 --concurrency 64 --by usd
    """
    from roofline.techniques import Assumed, levers
    from roofline.techniques.text import to_text

    found = levers(
        model, hw, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, weights=weights, kv=kv, engine=engine, specs=specs,
        speculation=speculation, isl=isl, osl=osl, cached=cached, concurrency=concurrency, usd_per_h=usd_per_h(price),
        assumed=Assumed(hit_rate=hit_rate, acceptance=acceptance),
    )  # fmt: skip
    if as_json:
        from roofline.explain import json_text

        click.echo(json_text(found.to_dict()))
    else:
        click.echo(to_text(found, by, rows))
