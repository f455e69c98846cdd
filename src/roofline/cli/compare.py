"""`roofline compare`."""

from __future__ import annotations

import click

from roofline.cli.options import TOKENS, changes, deployment_options


@click.command("compare")
@click.argument("model")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@deployment_options
@click.option("--isl", type=TOKENS, default=None, help="Prompt tokens, where the file does not say.")
@click.option("--osl", type=TOKENS, default=None, help="Output tokens, where the file does not say.")
@click.option("--cached", type=TOKENS, default="0", help="Prompt tokens already in the KV cache.")
@click.option("--concurrency", type=float, default=None, help="Requests in flight, where the file does not say.")
@click.option("--rate", type=float, default=None, help="Requests per second, where the file does not say.")
@click.option("--replicas", type=int, default=1, show_default=True, help="Replicas that shared the load.")
@click.option("--then", multiple=True, metavar="NAME=VALUE,...",
              help="What to carry the measured TPOT over to: tp=2, or engine=vllm==0.11,hw=h200-sxm; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON, in SI units.")
def compare_command(model, files, hw, tp, pp, ep, dp, cp, weights, kv, engine, specs, isl, osl, cached, concurrency,
                    rate, replicas, then, as_json) -> None:  # fmt: skip
    """Predictions beside measurements: results of a benchmark, or the start-up log of vLLM, for MODEL on some hardware.

    FILES: JSON of 'vllm bench serve', JSONL of 'sglang.bench_serving', profile_export_*.json of genai-perf or AIPerf,
    or a log (.log, .txt).

    \b
    Examples:
      roofline compare llama-3.1-70b bench.json --hw h100-sxm --tp 4
      roofline compare llama-3.1-8b server.log --hw h100-sxm
      roofline compare gpt-oss-20b bench.json --hw a100-sxm --engine vllm==0.10.2 --then tp=2
    """
    from pathlib import Path

    from roofline.comparison import compare, compare_log
    from roofline.deployment import deployment

    given = {"hw": hw, "tp": tp, "pp": pp, "ep": ep, "dp": dp, "cp": cp, "weights": weights, "kv": kv, "engine": engine}
    where = deployment(model, **given, specs=specs)
    others = [deployment(model, **given | changes(text), specs=specs) for text in then]
    found = []
    for name in files:
        if Path(name).suffix in (".log", ".txt"):
            found.append(compare_log(where, name))
        else:
            found.append(compare(where, name, isl=isl, osl=osl, concurrency=concurrency, rate_per_s=rate, cached=cached,
                                 replicas=replicas, then=others))  # fmt: skip
    if as_json:
        from roofline.explain import json_text

        click.echo(json_text([c.to_dict() for c in found]))
    else:
        click.echo("\n\n".join(map(str, found)))
