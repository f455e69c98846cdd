"""`roofline estimate`."""

from __future__ import annotations

import sys

import click

from roofline.cli.options import MODEL, deployment_options, load_options, speculation_option, usd_per_h


@click.command("estimate")
@click.argument("model", type=MODEL, default="llama-3.1-8b")
@deployment_options
@load_options
@speculation_option
@click.option("--ops", type=click.Choice(("decode", "prefill", "both", "none")), default="decode", show_default=True,
              help="Which per-op table to show.")  # fmt: skip
@click.option("--sources", is_flag=True, help="List every source.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON, in SI units.")
@click.option("--csv", "as_csv", is_flag=True, help="The per-op tables as CSV.")
def estimate_command(model, hw, tp, pp, ep, dp, cp, weights, kv, engine, specs, isl, osl, cached, batch, concurrency,
                     rate, price, speculation, ops, sources, as_json, as_csv) -> None:  # fmt: skip
    """Does it fit, how fast, how dear, and why: one MODEL on some hardware, for one kind of request.

    MODEL is a name of 'roofline list models', a Hugging Face config.json or model folder, a GGUF file, a spec YAML,
    or a Hub id. Without arguments an example runs. Numbers in parentheses are 80 % intervals.

    \b
    Examples:
      roofline estimate llama-3.1-70b --hw h100-sxm --tp 4 --isl 2000 --osl 500 --concurrency 32
      roofline estimate deepseek-r1 --hw h200-sxm --tp 8 --ep 8 --weights fp8_block --ops both
      roofline estimate llama-3.1-70b --tp 4 --isl 2000 --osl 500 --concurrency 32 --speculation eagle:3:0.8
      roofline estimate ./config.json --hw l40s --weights int4 --json
    """
    from roofline.estimates import estimate

    e = estimate(
        model, hw, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, weights=weights, kv=kv, engine=engine, isl=isl, osl=osl,
        batch=batch, concurrency=concurrency, rate_per_s=rate, cached=cached, usd_per_h=usd_per_h(price),
        speculation=speculation, specs=specs,
    )  # fmt: skip
    if as_json:
        from roofline.explain import json_text

        click.echo(json_text(e.to_dict()))
    elif as_csv:
        click.echo(e.to_pandas().to_csv(index=False), nl=False)
    else:
        from rich.console import Console

        from roofline.display import renderables

        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        for part in renderables(e, ops, sources):
            console.print(part)
