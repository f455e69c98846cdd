"""`roofline list`, `roofline show`, `roofline import`."""

from __future__ import annotations

import json
import sys

import click

from roofline.cli.options import OUT_FILE

KINDS = ("hardware", "models", "engines", "formats")
WIDTH = 120  # of a table that goes into a file or a pipe


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--filter", "text", default="", help="Only names or aliases that contain this text.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of names.")
def list_command(kind: str, text: str, as_json: bool) -> None:
    """List what is known.

    \b
    Examples:  roofline list hardware
               roofline list models --filter llama
    """
    rows = _rows(kind)
    rows = [row for row in rows if text.lower() in " ".join(map(str, row)).lower()]
    if as_json:
        click.echo(json.dumps([row[0] for row in rows], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in _COLUMNS[kind]:
        table.add_column(column, no_wrap=column == "name", overflow="fold")  # a name that is cut names nothing
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
    click.echo(f"{len(rows)} {kind}")


_COLUMNS = {
    "hardware": ("name", "vendor", "architecture", "memory", "bandwidth", "bf16 dense", "FLOP/B", "confidence"),
    "models": ("name", "aliases"),
    "engines": ("name", "what it is"),
    "formats": ("name", "bits", "computes in", "note"),
}


def _rows(kind: str) -> list[tuple]:
    from roofline.specs import library
    from roofline.units import format as quantity

    if kind == "hardware":
        rows = []
        for name in library.names("hardware"):
            a = library.hardware(name)
            peak = a.peak_flops_per_s("bf16")
            rows.append(
                (
                    name, a.vendor, a.architecture, quantity(a.usable_bytes, "B"),
                    quantity(a.bandwidth_bytes_per_s, "B/s"), quantity(peak, "FLOP/s"),
                    f"{a.ridge_point('bf16'):.0f}", a.confidence,
                )
            )  # fmt: skip
        return rows
    if kind == "models":
        by_name: dict[str, list[str]] = {name: [] for name in library.names("model")}
        for alias, name in library.aliases("model").items():
            by_name.setdefault(name, []).append(alias)
        return [(name, ", ".join(aliases)) for name, aliases in by_name.items()]
    if kind == "engines":
        from roofline.specs.engine import engine_named, engine_names

        return [(name, engine_named(name).title) for name in engine_names()]
    from roofline.precision import FORMATS

    return [(f.name, f"{8 * f.element_bytes:.4g}", f.matmul, f.note) for f in FORMATS.values()]


@click.command("show")
@click.argument("kind", type=click.Choice(("hardware", "model", "engine")))
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="The whole spec as JSON.")
def show_command(kind: str, name: str, as_json: bool) -> None:
    """Show one spec: its numbers, where each comes from, and how sure we are.

    \b
    Examples:  roofline show hardware h100-sxm
               roofline show model deepseek-v3
    """
    if kind == "hardware":
        from roofline.specs.library import hardware

        spec = hardware(name)
    elif kind == "model":
        from roofline.specs.refs import load_model

        spec = load_model(name).model
    else:
        from roofline.specs.engine import engine_named

        spec = engine_named(name)
    if as_json:
        click.echo(spec.model_dump_json(indent=1, exclude_none=True))
        return
    from roofline.display import spec_lines

    click.echo("\n".join(spec_lines(spec)))


@click.command("import")
@click.argument("path")
@click.option("--name", default=None, help="Name of the model in the library; default: from the path.")
@click.option(
    "-o", "--out", type=OUT_FILE, default=None, help="File to write; default: standard output."
)
def import_command(path: str, name: str | None, out: str | None) -> None:
    """Turn a Hugging Face config.json, a model folder, a Hub id or a GGUF file into a model spec.

    \b
    Examples:  roofline import config.json > my-model.yaml
               roofline estimate my-model.yaml --hw h100-sxm
    """
    from roofline.specs.hf import to_yaml
    from roofline.specs.refs import load_model

    loaded = load_model(path)
    model = loaded.model if name is None else loaded.model.model_copy(update={"name": name})
    text = to_yaml(model)
    for note in loaded.notes:
        click.echo(f"note: {note}", err=True)
    if out is None:
        click.echo(text, nl=False)
        return
    from roofline.files import write_atomically

    write_atomically(out, text)
    click.echo(f"wrote {out}", err=True)
