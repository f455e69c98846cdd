"""`roofline measure`."""

from __future__ import annotations

import sys

import click

from roofline.cli.options import OUT_FILE
from roofline.measure.cases import OPS
from roofline.measure.device import KINDS


@click.command("measure")
@click.option("--device", type=click.Choice(KINDS), default="auto", show_default=True, help="What to measure.")
@click.option("--quick", is_flag=True, help="Few shapes: about a minute.")
@click.option("--out", type=OUT_FILE, default="measurements.jsonl", show_default=True,
              help="File for the results (JSON lines), complete after every case.")  # fmt: skip
@click.option("--only", default="", help="Comma-separated ops: " + ", ".join(OPS) + ".")
@click.option("--resume", is_flag=True, help="Go on with the file: what it has is not measured again.")
@click.option("--hw", default=None, help="Name of 'roofline list hardware', if the device is not recognised.")
@click.option("--decode", default=None, metavar="MODEL",
              help="Instead: decode MODEL with random weights; print tokens/s, MBU, MFU.")  # fmt: skip
@click.option("--seconds", type=float, default=5.0, show_default=True, help="For --decode: how long.")
@click.option("--batch", type=int, default=1, show_default=True, help="For --decode: sequences.")
@click.option("--context", type=int, default=1024, show_default=True, help="For --decode: cached tokens of each.")
@click.option("--layers", type=int, default=None, help="For --decode: only the first so many layers.")
def measure_command(device, quick, out, only, resume, hw, decode, seconds, batch, context, layers) -> None:
    """Time real kernels and small whole models on the device at hand; needs torch (pip install 'roofline[measure]').

    'roofline calibrate' turns the results into constants of the cost model.

    \b
    Examples:  roofline measure --device cpu --quick
               roofline measure --only gemm,decode_attention --out h100.jsonl
               roofline measure --out h100.jsonl --resume
               roofline measure --decode llama-3.1-8b --batch 8
    """
    if decode:
        from roofline.measure import measure_decode_utilization

        click.echo(
            str(
                measure_decode_utilization(
                    decode, hw, seconds=seconds, batch=batch, context=context, layers=layers, device=device
                )
            )
        )
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from roofline.measure import measure
    from roofline.measure.records import disturbed, read_records

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("measuring", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{what[:56]:56}")

        measure(device, out=out, quick=quick, only=[o.strip() for o in only.split(",") if o.strip()], resume=resume,
                hw=hw, progress=show)  # fmt: skip
    records = read_records(out)
    session = [r for r in records if r["record"] == "session"][-1]
    again = {r["case"]: disturbed(r) for r in records if r["record"] == "row"}
    skipped = [r for r in records if r["record"] == "skipped"]
    known = session["hardware"] or "not in the library: its peaks will be the highest rates measured"
    click.echo(f"{session['device']} ({known}): {len(again)} rows in {out}, {len(skipped)} cases not possible here")
    for record in skipped[:5]:
        click.echo(f"  {record['case'][:70]}: {record['reason'][:120]}")
    if session["busy"]:
        click.echo(f"warning: {session['busy']}", err=True)
    throttled = {reason for r in records if r["record"] == "row" for reason in r["sensors"].get("throttle", ())}
    if sum(again.values()):
        click.echo(
            f"warning: other work disturbed {sum(again.values())} rows; --resume measures them again, calibration "
            "leaves them out where it can",
            err=True,
        )
    if throttled:
        click.echo(f"warning: clocks were lowered during the run: {', '.join(sorted(throttled))}", err=True)
    click.echo(f"next: roofline calibrate {out} --spec my-device.yaml")
