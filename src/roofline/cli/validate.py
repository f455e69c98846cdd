"""`roofline validate`: predict measured tables, print how far off the predictions are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from roofline.cli.options import OUT_FILE
from roofline.errors import InputError


def _read(paths: tuple[str, ...]):
    import pandas as pd

    frames = []
    for path in paths:
        if not Path(path).is_file():
            raise InputError(f"there is no file '{path}'")
        try:
            frames.append(pd.read_csv(path))
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, ValueError) as error:
            raise InputError(f"'{path}' is not a CSV table: {error}") from None
    return frames


def _write(out: str | None, frame) -> None:
    from roofline.files import write_atomically

    if out:
        write_atomically(out, frame.to_csv(index=False))
        click.echo(f"wrote {len(frame)} predictions to {out}", err=True)


def _show(title: str, frame) -> None:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(frame.columns):
        table.add_column(str(name), justify="right" if pd.api.types.is_numeric_dtype(frame.dtypes.iloc[i]) else "left")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
    Console(highlight=False, width=140).print(table)


def _run(truth: tuple[str, ...], out: str | None, models: str | None, predict: Callable, errors: Callable) -> None:
    import pandas as pd

    frames = _read(truth)
    predictions = [predict(frame, models) for frame in frames]
    _write(out, pd.concat(predictions, ignore_index=True))
    for path, frame, prediction in zip(truth, frames, predictions):
        tables = errors(frame, prediction)
        if not tables:
            click.echo(f"{Path(path).name}: no measured columns, predicted only")
        for title, table in tables.items():
            _show(f"{Path(path).name}: {title}", table)


_TRUTH = click.argument("truth", nargs=-1, required=True)
_OUT = click.option("--out", type=OUT_FILE, default=None, help="CSV file for the predictions.")
_MODELS = click.option("--models", type=click.Path(), default=None, help="Folder of configs that the library lacks.")


@click.group("validate", invoke_without_command=True)
@click.option("--markdown", is_flag=True, help="Without a subcommand: the tables as Markdown, as the docs show them.")
@click.pass_context
def validate_command(ctx: click.Context, markdown: bool) -> None:
    """Predict measured tables and print the errors.

    Without a subcommand it runs on the project's own tables and prints one error table.

    \b
    Examples:  roofline validate
               roofline validate memory TRUTH.csv --out PRED.csv --models configs/
               roofline validate kernels gemm.csv moe.csv --out PRED.csv
    """
    if ctx.invoked_subcommand is None:
        from roofline.validation import own

        tables = own.own_tables()
        if markdown:
            click.echo(own.markdown(tables), nl=False)
            return
        for title, table in tables.items():
            _show(title, table)


@validate_command.command("memory")
@_TRUTH
@_OUT
@_MODELS
def memory(truth, out, models) -> None:
    """GPU memory that engines reported at start-up."""
    from roofline.validation.memory import error_tables, predict_memory

    _run(truth, out, models, predict_memory, error_tables)


@validate_command.command("kernels")
@_TRUTH
@_OUT
def kernels(truth, out) -> None:
    """Times of single kernels: GEMM, attention, MLA, MoE, collectives. Several files make one output."""
    from roofline.validation.kernels import error_tables, predict_kernels

    _run(truth, out, None, lambda frame, _: predict_kernels(frame), error_tables)


@validate_command.command("serving")
@_TRUTH
@_OUT
@_MODELS
@click.option("--leave-out", is_flag=True, help="Also refit the engine constants without each model, system and engine "
              "in turn and print the errors there: some minutes for a thousand rows.")
def serving(truth, out, models, leave_out) -> None:
    """TTFT and TPOT of servers under a closed loop."""
    from roofline.validation.folds import left_out
    from roofline.validation.serving import error_tables, predict_serving

    _run(truth, out, models, predict_serving, error_tables)
    if leave_out:
        for path, frame in zip(truth, _read(truth)):
            for title, table in left_out(frame, models).items():
                _show(f"{Path(path).name}: {title}", table)


@validate_command.command("speculation")
@_OUT
def speculation(out) -> None:
    """Published speedups of speculative decoding: the project's own table."""
    from roofline.validation.speculation import error_table, predict, read

    found = predict(read())
    _write(out, found)
    _show("speedup of speculation, error by source", error_table(found))


@validate_command.command("online")
@_TRUTH
@_OUT
@_MODELS
@click.option("--simulate", is_flag=True, help="By sending every request through the simulator.")
def online(truth, out, models, simulate) -> None:
    """TTFT, TPOT and end-to-end latency of servers at a request rate."""
    from roofline.validation.online import error_tables, predict_online

    _run(truth, out, models, partial(predict_online, simulated=simulate), error_tables)
