"""`roofline speculate`."""

from __future__ import annotations

import sys

import click

from roofline.cli.options import TOKENS, deployment_options
from roofline.errors import InputError


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in str(text).replace(" ", "").split(",")]
    except ValueError:
        raise InputError(f"{name}: '{text}' is not a number or a list such as 0.8,0.6,0.5") from None


@click.command("speculate")
@click.argument("model", default="llama-3.1-8b")
@deployment_options
@click.option("--drafter", default="eagle", show_default=True,
              help="eagle, eagle-3, medusa, mtp, ngram, or the name of a draft model.")  # fmt: skip
@click.option("--acceptance", default="0.7", show_default=True,
              help="Of every draft: 0.7; or by position, given those before it: 0.8,0.6,0.5.")  # fmt: skip
@click.option("--drafts", type=int, default=None, help="Drafted tokens; default: the best number for each batch.")
@click.option("--longest", type=int, default=8, show_default=True, help="Most drafted tokens to look at.")
@click.option("--batch", default="1,4,16,64,256", show_default=True, help="Sequences that decode together; a list.")
@click.option("--context", type=TOKENS, default="1000", show_default=True, help="Cached tokens of each sequence.")
@click.option(
    "--plain-tpot",
    type=float,
    default=None,
    help="Measured seconds of a plain decode step at the first batch: what it takes beyond the model is added.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, in SI units.")
def speculate_command(model, hw, tp, pp, ep, dp, cp, weights, kv, engine, specs, drafter, acceptance, drafts, longest,
                      batch, context, plain_tpot, as_json) -> None:  # fmt: skip
    """Does speculative decoding pay: best number of drafts, TPOT and throughput by batch, and where it stops paying.

    \b
    Examples:
      roofline speculate llama-3.1-70b --hw h100-sxm --tp 4 --drafter llama-3.2-1b --acceptance 0.75
      roofline speculate deepseek-r1 --hw h200-sxm --tp 8 --ep 8 --drafter mtp --acceptance 0.85,0.7,0.6
      roofline speculate llama-3.1-8b --drafter ngram --acceptance 0.3 --drafts 4
    """
    import numpy as np

    from roofline.deployment import deployment
    from roofline.speculative import (
        ByPosition,
        best_draft_length,
        break_even_batch,
        drafter_named,
        most_sequences,
        speculate,
    )

    rates, batches = _numbers("acceptance", acceptance), np.array(_numbers("batch", batch))
    accepted = rates[0] if len(rates) == 1 else ByPosition(tuple(rates))
    if longest < 1 or (drafts is not None and drafts < 1):
        raise InputError("drafts and longest are 1 or more")
    target = deployment(
        model, hw, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, weights=weights, kv=kv, engine=engine, specs=specs
    )
    proposer = drafter_named(drafter, target, specs)
    most = min(longest, getattr(proposer, "heads", longest), len(rates) if len(rates) > 1 else longest)
    beyond = 0.0 if plain_tpot is None else plain_tpot - float(target.decode_step(batches[0], context).total_s)
    asked = {"acceptance": accepted, "context": context, "beyond_s": beyond}
    if drafts is None:
        found = best_draft_length(target, proposer, batch=batches, longest=most, **asked)
    else:
        found = speculate(target, proposer, batch=batches, drafts=float(drafts), **asked)
    fixed = float(drafts or max(1.0, float(found.drafts[0])))
    fits = float(most_sequences(target, proposer, length=context, drafts=fixed)) * dp
    ends = float(break_even_batch(target, proposer, drafts=fixed, largest=max(fits, 1.0), **asked))
    names = ("batch", "drafts", "tokens", "cost", "speedup", "tpot_s", "tokens_per_s", "draft_s", "verify_s", "plain_s")
    columns = {n: np.broadcast_to(getattr(found, n), batches.shape) for n in names}
    rows = [{n: float(column[i]) for n, column in columns.items()} for i in range(batches.size)]
    weight_bytes = float(proposer.weight_bytes(target))
    if as_json:
        plain = {"break_even_drafts": fixed, "break_even_batch": ends, "fits": fits}
        shown = {"deployment": str(target), "drafter": proposer.name, "draft_weight_bytes": weight_bytes}
        from roofline.explain import json_text

        click.echo(json_text(shown | plain | {"batches": rows}))
        return
    _print(f"{target}; drafts by {proposer.name} ({weight_bytes / 1e9:.2f} GB on each device)", rows, fixed, ends, fits)


def _print(title: str, rows: list[dict[str, float]], drafts: float, ends: float, fits: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("batch", "drafts", "tokens/cycle", "cycle/step", "speedup", "TPOT ms", "plain ms", "tokens/s"):
        table.add_column(name, justify="right")
    for r in rows:
        table.add_row(
            f"{r['batch']:g}", f"{r['drafts']:g}", f"{r['tokens']:.2f}", f"{r['cost']:.2f}", f"{r['speedup']:.2f}",
            f"{1e3 * r['tpot_s']:.2f}", f"{1e3 * r['plain_s']:.2f}", f"{r['tokens_per_s']:,.0f}",
        )  # fmt: skip
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table)
    where = {0.0: "at no batch", float("inf"): "at the largest batch too"}.get(ends, f"up to a batch of {ends:.0f}")
    console.print(f"With {drafts:g} drafts it pays {where}; {fits:.0f} sequences of that context fit.")
