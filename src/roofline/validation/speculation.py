"""Published speedups of speculative decoding beside predictions.

`validation/speculative/` has a folder per source. Tokens per cycle are inputs: what is judged is the price of a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from roofline.deployment import Deployment, deployment
from roofline.errors import InputError
from roofline.specs.engine import Engine, engine_named
from roofline.specs.library import build
from roofline.specs.refs import load_model
from roofline.speculative import Cycle, Drafter, DraftModel, TokenTree, drafter_named, speculate
from roofline.speculative.drafters import KINDS
from roofline.validation.own import FOLDER, Source

if TYPE_CHECKING:
    import pandas as pd


def read(root: Path | None = None) -> pd.DataFrame:
    """Every row of every source, with `source` and `counted`.

    Errors: InputError where the folder is not there: an installed package has none
    """
    import pandas as pd

    root = root or FOLDER / "speculative"
    if not root.is_dir():
        raise InputError("the validation tables are part of a checkout, not of the installed package")
    frames = []
    for path in sorted(root.glob("*/source.yaml")):
        source = build(Source, yaml.safe_load(path.read_text(encoding="utf-8")), where=str(path))
        frame = pd.read_csv(path.parent / "speculation.csv")
        frames.append(frame.assign(source=path.parent.name, counted=source.counted))
    return pd.concat(frames, ignore_index=True)


def predict(frame: pd.DataFrame, engines: Mapping[str, Engine] | None = None) -> pd.DataFrame:
    """The rows with `predicted` and `error` (predicted over measured, less 1); rows that only anchor have none.

    Where tokens per cycle are not known they are those of the source's and drafter's smallest batch, at which the
    prediction is then exact by construction and not judged.
    """
    engines = engines or {}
    rows, groups = frame.to_dict("records"), {}
    costs = [cycle(row, engines) for row in rows]
    for i, row in enumerate(rows):
        if np.isnan(row["tokens"]):
            groups.setdefault((row["source"], row["model"], row["drafter"]), []).append(i)
    tokens = frame["tokens"].to_numpy(float).copy()
    anchors = set()
    for members in groups.values():
        first = min(members, key=lambda i: rows[i]["batch"])
        anchors.add(first)
        tokens[members] = rows[first]["speedup"] * float(costs[first].cost)
    predicted = np.array([t / float(c.cost) for t, c in zip(tokens, costs)])
    predicted[list(anchors)] = np.nan
    return frame.assign(tokens=tokens, predicted=predicted, error=predicted / frame["speedup"] - 1.0)


def cycle(row: Mapping[str, Any], engines: Mapping[str, Engine]) -> Cycle:
    """The cycle of a row."""
    target = _target(*(row[c] for c in ("model", "hw", "weights", "tp", "dp", "ep")), row["engine"])
    if row["engine"] in engines:
        target = target.with_(engine=engines[row["engine"]])
    at = {"batch": float(row["batch"]), "context": float(row["context"])}
    beyond = 0.0
    if not np.isnan(row["plain_tokens_per_s"]):  # what a step was measured to take beyond the model
        beyond = 1.0 / row["plain_tokens_per_s"] - float(target.decode_step(**at).total_s)
    tokens = 1.0 if np.isnan(row["tokens"]) else float(row["tokens"])
    shape: dict[str, Any] = {"drafts": float(row["drafts"])}
    if not np.isnan(row["depth"]):
        shape = {"tree": bushy(int(row["drafts"]), int(row["depth"]))}
    return speculate(target, drafter(row["drafter"], target), tokens=tokens, beyond_s=beyond, **at, **shape)


@lru_cache(maxsize=64)
def _target(model: str, hw: str, weights: str, tp: int, dp: int, ep: int, engine: str) -> Deployment:
    return deployment(_path(model), hw, tp=int(tp), dp=int(dp), ep=int(ep), weights=weights, engine=engine)


def _path(model: str) -> str | Path:
    """A model of the library, or one that stands beside the tables."""
    own = FOLDER / "speculative" / f"{model}.yaml"
    return own if own.is_file() else model


def drafter(name: str, target: Deployment) -> Drafter:
    """The drafter that a table calls so; draft models in the format of their target."""
    if name in KINDS:
        return drafter_named(name, target)
    return DraftModel(load_model(_path(name)).model, target.precision)


def bushy(nodes: int, depth: int) -> TokenTree:
    """A tree of `nodes` nodes and `depth` levels: a chain, and siblings dealt to its levels in turn."""
    paths = [(0,) * n for n in range(1, depth + 1)]
    rank = 1
    while len(paths) < nodes:
        paths += [(*(0,) * level, rank) for level in range(depth)][: nodes - len(paths)]
        rank += 1
    return TokenTree(tuple(paths))


def error_table(predicted: pd.DataFrame) -> pd.DataFrame:
    """Errors of the speedup by source, and of all counted rows together [%]."""
    import pandas as pd

    judged = predicted.dropna(subset=["error"])
    groups = [*judged.groupby("source", sort=True), ("all counted", judged[judged["counted"]])]
    out = []
    for name, rows in groups:
        size = 100.0 * rows["error"].abs()
        out.append(
            {
                "source": name, "counted": bool(rows["counted"].all()), "rows": len(rows),
                "median_pct": float(size.median()), "mean_pct": float(size.mean()),
                "p90_pct": float(size.quantile(0.9)), "bias_pct": float(100.0 * rows["error"].mean()),
            }
        )  # fmt: skip
    return pd.DataFrame(out)


def changed(engine: str, **speculation: float) -> Engine:
    """An engine profile with other constants of speculation: for fits and for leaving sources out."""
    found = engine_named(engine)
    profile = found.speculation.model_copy(update=speculation)
    return found.model_copy(update={"speculation": profile})
