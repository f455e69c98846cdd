"""`roofline explore`: the interactive page, on localhost or as one file."""

from __future__ import annotations

import shlex
import sys

import click

from roofline.cli.options import MODEL, OUT_FILE, TOKENS, deployment_options, usd_per_h
from roofline.errors import InputError, check_number

PORT = 8420


@click.command("explore")
@click.argument("model", type=MODEL, default="llama-3.1-8b")
@deployment_options
@click.option("--isl", type=TOKENS, default="1024", show_default=True, help="Prompt tokens at the start.")
@click.option("--osl", type=TOKENS, default="256", show_default=True, help="Output tokens at the start.")
@click.option("--concurrency", type=float, default=16, show_default=True, help="Requests in flight at the start.")
@click.option("--price", default=None, help="USD per device-hour at the start; default: the price list's.")
@click.option("--port", type=int, default=PORT, show_default=True, help="Port on 127.0.0.1; 0: any free one.")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--export", "out", type=OUT_FILE, default=None, metavar="PAGE.html",
              help="Write one file that needs no server, and stop.")  # fmt: skip
@click.option("--models", default=None, help="Export: further models, after commas.")
@click.option("--devices", default=None, help="Export: further hardware, after commas.")
@click.option("--layouts", default="tp1,tp2,tp4,tp8", show_default=True, help="Export: layouts: tp4, tp8ep8, tp4pp2.")
@click.option("--weight-formats", default=None, help="Export: further weight formats, after commas.")
@click.option("--kv-formats", default=None, help="Export: further KV formats, after commas.")
@click.option("--engines", default=None, help="Export: further engines, after commas.")
def explore_command(model, hw, tp, pp, ep, dp, cp, weights, kv, engine, specs, isl, osl, concurrency, price, port,
                    no_open, out, models, devices, layouts, weight_formats, kv_formats, engines) -> None:  # fmt: skip
    """An interactive page: choose model, hardware, layout, formats and load; roofline, regimes, memory, frontier and
    cost follow at once. The address of the page holds the choice.

    It is served to this machine only (127.0.0.1) until Ctrl-C. --export writes it as one file instead, with
    everything it can show computed beforehand: for mail, a wiki, or a machine without Python. Needs plotly
    (pip install 'roofline[explore]').

    \b
    Examples:
      roofline explore
      roofline explore llama-3.1-70b --hw h100-sxm --tp 4 --concurrency 32
      roofline explore llama-3.1-70b --tp 4 --export page.html
      roofline explore llama-3.1-8b --export page.html --models llama-3.1-70b --devices h200-sxm,b200-sxm \\
               --weight-formats fp8
    """
    from dataclasses import replace

    from roofline.explore.question import Question, layout, menu, question_of, shown_name
    from roofline.specs.engine import engine_named

    if cp != 1:
        raise InputError("cp: the page has no control for context parallelism; use 'roofline estimate'")
    listed = {"model": _listed(models), "hw": _listed(devices)}
    menus = menu([model, *listed["model"]], [hw, *listed["hw"]], specs)
    named = {"model": lambda ref: shown_name("model", ref, menus.models, specs),
             "hw": lambda ref: shown_name("hardware", ref, menus.hardware, specs)}  # fmt: skip
    formats = {"weights": (weights or "", *_listed(weight_formats)), "kv": (kv or "", *_listed(kv_formats))}
    names = [engine_named(e).name for e in (engine, *_listed(engines))]
    menus = replace(menus, weights=_joined(menus.weights, formats["weights"]), kv=_joined(menus.kv, formats["kv"]),
                    ranks=tuple(sorted({*menus.ranks, tp, pp, dp, ep})))  # fmt: skip
    for name, value in (("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep)):
        check_number(name, value, low=1, high=1024, integer=True)
    given = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "isl": isl, "osl": osl, "concurrency": concurrency,
             "price": "" if price is None else usd_per_h(price)}  # fmt: skip
    first = Question(named["model"](model), named["hw"](hw), weights=weights or "", kv=kv or "", engine=names[0])
    start = question_of({k: str(v) for k, v in given.items()}, menus, first)
    menus.deployment(start).decode_step(1.0, 1.0)  # say at once what cannot be
    if out is None:
        from roofline.explore import serve

        def told(url: str) -> None:
            click.echo(f"{url}  (Ctrl-C stops it)")

        return serve(start, menus, port, not no_open, told)
    from roofline.explore.table import Choices

    plans = tuple(dict.fromkeys(map(layout, _listed(layouts))))
    shown = [dict.fromkeys(map(named[kind], (ref, *listed[kind]))) for kind, ref in (("model", model), ("hw", hw))]
    choices = Choices(*map(tuple, (*shown, plans, *map(dict.fromkeys, (formats["weights"], formats["kv"], names)))))
    _export(out, start, choices, menus)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _joined(known: tuple[str, ...], further: tuple[str, ...]) -> tuple[str, ...]:
    """Menu entries with further formats, each of which must be one."""
    from roofline.precision import precision_named

    for name in further:
        if name and name not in known:
            precision_named(name)
    return tuple(dict.fromkeys((*known, *further)))


def _export(out, start, choices, menus) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from roofline.explore import export

    command = shlex.join(["roofline", *sys.argv[1:]])
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("deployments"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("deployments", total=len(choices))
        path = export(out, start, choices, menus, command, lambda done, _: bar.update(task, completed=done))
    click.echo(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", err=True)
