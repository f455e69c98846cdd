"""Notebooks as Markdown pages of the site: what they hold is what `notebooks/refresh.py` kept, nothing runs here."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "notebooks"  # of the repository and of the site
DOCS = "../docs/"  # how a notebook links to a page; on the site both lie in one tree
HEAD = "---\nhide: [toc]\n---\n\n"
STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)  # of data frames: the site has its own
BLANK = re.compile(r"\n\s*\n+")


@dataclass
class Page:
    """A notebook as Markdown, with its figures as files beside it."""

    name: str  # without ending
    title: str
    text: str = ""
    figures: dict[str, bytes] = field(default_factory=dict)  # file name -> PNG


def pages(folder: Path) -> list[Page]:
    """Every notebook of a folder, in order."""
    return [page(path) for path in sorted(folder.glob("[0-9]*.ipynb"))]


def page(path: Path) -> Page:
    """One notebook; its title is its first heading."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first = "".join(cells[0]["source"])
    made = Page(path.stem, first.splitlines()[0].removeprefix("# "))
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace(DOCS, "../"))
        else:
            parts += [f"```python\n{source}\n```", *filter(None, (shown(o, made) for o in joined(cell["outputs"])))]
        if len(parts) == 1:
            parts.append(f"As a notebook: `{FOLDER}/{path.name}` of a clone. What it shows is kept from its last run.")
    made.text = HEAD + "\n\n".join(parts) + "\n"
    return made


def joined(outputs: list[dict]) -> list[dict]:
    """Outputs with what was printed in several pieces as one."""
    found: list[dict] = []
    for output in outputs:
        text = "".join(output.get("text", ""))
        if found and output["output_type"] == found[-1]["output_type"] == "stream":
            found[-1] = found[-1] | {"text": found[-1]["text"] + text}
        else:
            found.append(output | ({"text": text} if output["output_type"] == "stream" else {}))
    return found


def shown(output: dict, made: Page) -> str:
    """What a cell printed or showed: a figure, a table, or text, the richest there is."""
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{made.name}-{len(made.figures) + 1}.png"
        made.figures[name] = base64.b64decode("".join(data["image/png"]))
        words = "".join(data.get("text/plain", "<"))  # pictures say what they show, other objects <what they are>
        return f"![{made.title if words.startswith('<') else escaped(words)}]({name})"
    if "text/html" in data:
        table = STYLE.sub("", "".join(data["text/html"]))
        return f'<div class="notebook-output" tabindex="0">\n{BLANK.sub(chr(10), table)}\n</div>'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


def escaped(text: str) -> str:
    """Text on one line without what ends an image's description."""
    return " ".join(text.split()).replace("[", r"\[").replace("]", r"\]")
