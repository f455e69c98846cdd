"""Sweeps that are larger than memory: parts written to a folder one by one, resumable, here or on a Dask cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roofline import __version__
from roofline.errors import InputError
from roofline.sweeps.evaluate import evaluate_blocks
from roofline.sweeps.grid import Block, Grid
from roofline.sweeps.result import require

PART = 1 << 20  # points in a file

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Stored:
    """A sweep on disk: a folder of parquet files with one row a point, in the order of the mesh."""

    folder: Path
    points: int
    parts: int

    def to_pandas(self, columns: list[str] | None = None, filters: Any = None):
        """The table, or some columns of the rows that meet `filters` (as pandas.read_parquet takes them)."""
        import pandas as pd

        require("pyarrow", "parquet")
        files = [self.folder / part_name(i) for i in range(self.parts)]
        return pd.read_parquet(files, columns=columns, filters=filters)


def part_name(number: int) -> str:
    """File of a part."""
    return f"part-{number:06d}.parquet"


def parts(grid: Grid, most: int = PART) -> Iterator[list[Block]]:
    """Consecutive blocks, together at most about `most` points."""
    held: list[Block] = []
    size = 0
    for block in grid.blocks(most):
        if held and size + block.size > most:
            yield held
            held, size = [], 0
        held.append(block)
        size += block.size
    if held:
        yield held


def part_table(grid: Grid, blocks: list[Block], metrics: tuple[str, ...]) -> dict[str, Any]:
    """Columns of a part: swept inputs, metrics (float32), reasons."""
    import pandas as pd

    table: dict[str, list[Any]] = {}
    for block, columns, flags, _ in evaluate_blocks(grid, blocks, metrics):
        numbers = grid.values(block)
        shape = flags.shape
        inputs = {name: np.broadcast_to(numbers[name], shape).ravel() for name in grid.swept if name in numbers}
        named = {name: value for name, value in grid.cases[block.case].items() if name in grid.swept}
        for name, value in named.items():
            text = value if isinstance(value, int) else str(getattr(value, "name", value))
            inputs[name] = (pd.Categorical.from_codes(np.zeros(block.size, np.int8), [text])
                            if isinstance(text, str) else np.full(block.size, text))  # fmt: skip
        for name in grid.swept:
            table.setdefault(name, []).append(inputs[name])
        for name in metrics:
            table.setdefault(name, []).append(columns[name].astype(np.float32).ravel())
        table.setdefault("reasons", []).append(flags.ravel())
    return {name: pieces[0] if len(pieces) == 1 else _joined(pieces) for name, pieces in table.items()}


def _joined(pieces: list[Any]) -> Any:
    import pandas as pd
    from pandas.api.types import union_categoricals

    if isinstance(pieces[0], pd.Categorical):
        return union_categoricals(pieces)
    return np.concatenate(pieces)


def write_part(grid: Grid, blocks: list[Block], metrics: tuple[str, ...], path: Path) -> int:
    """Evaluate a part and write its file, all of it or nothing; returns its points."""
    import pandas as pd

    frame = pd.DataFrame(part_table(grid, blocks, metrics))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        frame.to_parquet(temporary, index=False)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(frame)


def store(
    grid: Grid, metrics: tuple[str, ...], folder: str | Path, progress: Progress | None = None, cluster: Any = None
) -> Stored:
    """Evaluate a grid into a folder; parts that are already there are kept, so an interrupted sweep goes on.

    Args:     folder: made if it is not there; must be empty or hold the same sweep; progress(done, total) after a part;
              cluster: a dask.distributed Client whose workers write to the same folder
    Returns:  Stored
    Errors:   InputError where the folder holds another sweep
    """
    require("pyarrow", "parquet")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    told = {"roofline": __version__, "points": grid.size, "fingerprint": grid.fingerprint, "metrics": list(metrics)}
    manifest = folder / "sweep.json"
    if manifest.is_file():
        if json.loads(manifest.read_text(encoding="utf-8")) != told:
            raise InputError(f"{folder} holds another sweep; give an empty folder, or remove it")
    elif any(folder.iterdir()):
        raise InputError(f"{folder} is not empty and holds no sweep; give an empty folder")
    else:
        manifest.write_text(json.dumps(told, indent=1), encoding="utf-8")
    done, count, waiting = 0, 0, []
    for number, blocks in enumerate(parts(grid)):
        count += 1
        path, size = folder / part_name(number), sum(b.size for b in blocks)
        if path.is_file():
            done += size
        elif cluster is None:
            write_part(grid, blocks, metrics, path)
            done += size
        else:
            waiting.append(cluster.submit(write_part, grid, blocks, metrics, path.absolute(), pure=False))
            continue
        if progress is not None:
            progress(done, grid.size)
    for future in waiting:
        done += future.result()
        if progress is not None:
            progress(done, grid.size)
    return Stored(folder, grid.size, count)
