"""`roofline sweep`."""

from __future__ import annotations

import sys

import click

from roofline.errors import InputError, check_number

MOST_VALUES = 1e7  # of one range
NUMERIC = ("tp", "pp", "ep", "dp", "cp")


def values(name: str, text: str | None):
    """An option as a value or a list: '8', '1,2,4', '1:256', '512:131072:512' (steps) or '1:1024*2' (factors).

    >>> values("batch", "1:8*2"), values("tp", "2"), values("isl", "1k,2k"), values("hw", "h100-sxm,b200-sxm")
    ([1.0, 2.0, 4.0, 8.0], 2, [1000.0, 2000.0], ['h100-sxm', 'b200-sxm'])
    """
    if text is None:
        return None
    parts = [part.strip() for part in str(text).split(",") if part.strip()]
    out: list = []
    for part in parts:
        out += _range(name, part) if ":" in part else [_one(name, part)]
    if name in NUMERIC:
        out = [int(check_number(name, v, low=1, high=65536, integer=True)) for v in out]
    return out[0] if len(out) == 1 and ":" not in str(text) else out


def _range(name: str, part: str) -> list[float]:
    text, _, factor = part.partition("*")
    ends = [_one(name, end) for end in text.split(":")]
    if any(isinstance(end, str) for end in ends) or not 2 <= len(ends) <= 3 or (factor and len(ends) == 3):
        raise InputError(f"{name}: '{part}' is not a range; write 1:256, 512:8192:512 or 1:1024*2")
    low, high = ends[0], ends[1]
    step = ends[2] if len(ends) == 3 else 1.0
    times = _one(name, factor) if factor else 0.0
    if isinstance(times, str) or high < low or step <= 0 or (factor and times <= 1.0):
        raise InputError(f"{name}: '{part}' is not a range that goes up")
    if not factor and (high - low) / step > MOST_VALUES:
        raise InputError(f"{name}: '{part}' is a range of over {MOST_VALUES:.0e} values; write {low:g}:{high:g}:STEP")
    found = []
    at = low
    while at <= high * (1.0 + 1e-12):
        found.append(at)
        at = at * times if factor else at + step
    return found


def _one(name: str, text: str):
    from roofline.cli.options import TOKENS

    try:
        return float(text)
    except ValueError:
        pass
    if name in ("isl", "osl", "cached"):
        return TOKENS.read(name, text)
    return text


@click.command("sweep")
@click.argument("model", default="llama-3.1-8b")
@click.option("--hw", default="h100-sxm", show_default=True, help="Hardware, names after commas.")
@click.option("--tp", default="1", show_default=True, help="Tensor-parallel ranks: 1,2,4,8.")
@click.option("--pp", default="1", help="Pipeline stages.")
@click.option("--ep", default="1", help="Expert-parallel ranks.")
@click.option("--dp", default="1", help="Attention data-parallel groups.")
@click.option("--cp", default="1", help="Context-parallel ranks.")
@click.option("--weights", default=None, help="Weight formats.")
@click.option("--kv", default=None, help="KV formats.")
@click.option("--engine", default="vllm", show_default=True, help="Engine profiles.")
@click.option("--speculation", multiple=True, metavar="DRAFTER:DRAFTS:ACCEPTANCE",
              help="As in 'roofline estimate', or none; repeatable.")  # fmt: skip
@click.option("--isl", default="1024", show_default=True, help="Prompt tokens: 1k,4k or 512:8192:512.")
@click.option("--osl", default="256", show_default=True, help="Output tokens.")
@click.option("--cached", default=None, help="Prompt tokens already cached.")
@click.option("--batch", default=None, help="Requests that start together: 1:256, or 1:1024*2 for doublings.")
@click.option("--concurrency", default=None, help="Requests always in flight.")
@click.option("--rate", default=None, help="Requests per second.")
@click.option("--price", default=None, help="USD per device-hour.")
@click.option("--metrics", default=None, help="Columns, after commas: tpot_s, ttft_p90_s, usd_per_mtok_output ...")
@click.option("--where", "limits", multiple=True, help="Keep points with e.g. 'tpot_s<0.03'; repeatable.")
@click.option("--best", default=None, help="Show the best point by this metric.")
@click.option("--pareto", default=None, help="Show the frontier of two metrics: tpot_s,tokens_per_s_gpu.")
@click.option("--out", default=None, type=click.Path(),
              help="Write every point: a .csv or .parquet file, or a folder (any size, resumable).")  # fmt: skip
@click.option("--specs", type=click.Path(), default=None, help="Folder with your own specs.")
@click.option("--json", "as_json", is_flag=True, help="The points shown as JSON.")
def sweep_command(model, hw, tp, pp, ep, dp, cp, weights, kv, engine, speculation, isl, osl, cached, batch, concurrency,
                  rate, price, metrics, limits, best, pareto, out, specs, as_json) -> None:  # fmt: skip
    """Every combination of the options that are given as lists, for one or more MODELs (after commas).

    \b
    Examples:
      roofline sweep llama-3.1-70b --hw h100-sxm,h200-sxm --tp 2,4,8 --concurrency 1:256 --best usd_per_mtok_output
      roofline sweep llama-3.1-70b --tp 4,8 --batch 1:1024*2 --where 'tpot_s<0.03' --pareto tpot_s,tokens_per_s_gpu
      roofline sweep deepseek-r1 --hw h200-sxm --tp 8 --isl 1k:64k:1k --osl 100:2000:100 --batch 1:512 --out points
    """
    from pathlib import Path

    from roofline.sweeps import sweep

    given = {"tp": tp, "pp": pp, "ep": ep, "dp": dp, "cp": cp, "weights": weights, "kv": kv, "engine": engine,
             "isl": isl, "osl": osl, "cached": cached, "batch": batch, "concurrency": concurrency, "rate_per_s": rate,
             "usd_per_h": price}  # fmt: skip
    inputs = {name: found for name, text in given.items() if (found := values(name, text)) is not None}
    if speculation:
        inputs["speculation"] = speculation[0] if len(speculation) == 1 else list(speculation)
    columns = None if metrics is None else [m.strip() for m in metrics.split(",")]
    folder = out if out is not None and not Path(out).suffix else None
    if out is not None and folder is None:
        _check_out(out)
    s = sweep(values("model", model), values("hw", hw), metrics=columns, out=folder, specs=specs,
              progress=sys.stderr.isatty(), **inputs)  # fmt: skip
    if folder is not None:
        click.echo(f"{s.points:,} points in {s.parts} files in {s.folder}")
        return
    for text in limits:
        s = s.where(condition(s, text))
    if out is not None:
        _write(s, Path(out))
    points = [s.best(best)] if best else s.pareto(*_pair(pareto)) if pareto else []
    if as_json:
        rows = [dict(p.inputs) | dict(p.values) for p in points] or s.to_pandas(feasible_only=True).to_dict("records")
        from roofline.explain import json_text

        click.echo(json_text(rows))
        return
    click.echo(repr(s))
    for p in points:
        swept = ", ".join(f"{name} {_short(p.inputs[name])}" for name in s.grid.swept)
        click.echo(f"  {swept}: " + ", ".join(f"{k} {v:.4g}" for k, v in p.values.items()))
    if not points and out is None:
        click.echo(s.to_pandas(feasible_only=True).head(20).to_string(index=False, float_format=lambda v: f"{v:.4g}"))


def condition(s, text: str):
    """A limit such as 'tpot_s<0.03' or 'tp>=4' as a mask over the sweep."""
    import operator
    import re

    import numpy as np

    match = re.fullmatch(r"\s*(\w+)\s*(<=|>=|<|>|==)\s*([-+\w.]+)\s*", text)
    if match is None:
        raise InputError(f"where: '{text}' is not NAME<VALUE; e.g. 'tpot_s<0.03'")
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}[match[2]]
    try:
        column = getattr(s, match[1])
    except AttributeError as error:
        raise InputError(f"where: {error}") from None
    value = _one(match[1], match[3])
    number = np.asarray(column).dtype.kind in "fiub"
    if number and isinstance(value, str):
        raise InputError(f"where: '{text}': {match[1]} is a number, '{value}' is none")
    if not number and match[2] != "==":
        raise InputError(f"where: '{text}': {match[1]} is a name; compare it with ==")
    return compare(column, value)


def _pair(text: str) -> tuple[str, str]:
    names = [part.strip() for part in text.split(",")]
    if len(names) != 2:
        raise InputError(f"pareto: '{text}' must name two metrics, e.g. tpot_s,tokens_per_s_gpu")
    return names[0], names[1]


def _short(value) -> str:
    from roofline.sweeps.grid import label

    return f"{value:g}" if isinstance(value, float) else str(label(value))


def _check_out(out: str) -> None:
    from pathlib import Path

    from roofline.files import check_target

    suffix = Path(out).suffix
    if suffix not in (".csv", ".parquet"):
        raise InputError(f"out: '{suffix}' is not known; write .csv, .parquet or a folder name without a suffix")
    try:
        check_target(out)
    except InputError as error:
        raise InputError(f"out: {error}") from None


def _write(s, path) -> None:
    from roofline.files import write_atomically

    if path.suffix == ".parquet":
        s.to_parquet(path)
    else:
        write_atomically(path, s.to_pandas().to_csv(index=False))
    click.echo(f"wrote {path}", err=True)
