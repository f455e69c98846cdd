"""`roofline calibrate`."""

from __future__ import annotations

import datetime

import click

from roofline.cli.options import OUT_FILE


@click.command("calibrate")
@click.argument("measurements", nargs=-1, required=True)
@click.option(
    "--out",
    type=OUT_FILE,
    default=None,
    help="File for the achieved block (YAML); default: standard output.",
)
@click.option("--spec", type=OUT_FILE, default=None,
              help="File for a whole hardware spec with the block in it, for --hw.")  # fmt: skip
@click.option("--name", default=None, help="Hardware to calibrate, if the files do not say or hold several.")
@click.option("--source", default=None, help="What to cite as the source; default: the names of the files.")
def calibrate_command(measurements, out, spec, name, source) -> None:
    """Fit the constants of the cost model to MEASUREMENTS, and say how well they predict shapes left out of the fit.

    MEASUREMENTS are files of 'roofline measure' (.jsonl), kernel tables (.csv: docs/measuring.md says the columns) or
    performance tables in the layout of ai-dynamo/aiconfigurator (.parquet).

    \b
    Examples:  roofline calibrate measurements.jsonl --spec my-gpu.yaml
               roofline calibrate gemm.csv attention.csv --name h100-sxm --out achieved.yaml
               roofline estimate llama-3.1-8b --hw my-gpu.yaml
    """
    from pathlib import Path

    from roofline.calibration.run import achieved_text, calibrate, residual_table, spec_text, subject_of
    from roofline.calibration.tables import read_tables
    from roofline.cli.validate import _show
    from roofline.files import write_atomically
    from roofline.specs.library import hardware

    tables = read_tables(measurements)
    if name:
        tables = tables.of(hardware(name).name)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    cited = source or ", ".join(Path(m).name for m in measurements)[:900]
    subject, data = subject_of(tables, name, date=today, source=cited)
    results, notes = calibrate(tables, subject)
    text = achieved_text(results)
    if out:
        write_atomically(out, text)
    if spec:
        write_atomically(spec, spec_text(results, subject, data, name))
    if not out and not spec:
        click.echo(text, nl=False)
    _show(f"{subject.accelerator.name}: error on shapes left out of the fit [%]", residual_table(results))
    for note in notes:
        click.echo(f"note: {note}", err=True)
    for path in filter(None, (out, spec)):
        click.echo(f"wrote {path}", err=True)
