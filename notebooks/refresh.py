"""Runs the notebooks and keeps what they show, figures small: `python notebooks/refresh.py [NOTEBOOKS]`."""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).resolve().parent
WIDTH = 960  # pixels of a kept figure


def notebooks() -> list[Path]:
    """All of them, in order."""
    return sorted(HERE.glob("[0-9]*.ipynb"))


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook after a run from top to bottom; raises where a cell fails."""
    return run(nbformat.read(path, as_version=4))


def run(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The same with its outputs."""
    client = NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(HERE)}})
    environment = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}  # figures come into the notebook
    client.execute(env=environment)
    return book


def small(png: str) -> str:
    """A PNG (base64) of at most WIDTH pixels in 256 colours, those of small areas among them."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(
        out, "PNG", optimize=True
    )
    return base64.b64encode(out.getvalue()).decode()


def tidy(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with small figures, and without times and warnings, so that a run changes only what changed."""
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output["data"]["image/png"] = small(output["data"]["image/png"])
    book.metadata["language_info"] = {"name": "python"}
    return book


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else notebooks():
        nbformat.write(tidy(executed(path)), path)
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
