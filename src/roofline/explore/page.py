"""The HTML of the page, for the server and as one file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from roofline import __version__
from roofline.explore.answer import REGIME_NAMES
from roofline.explore.question import Menu, Question
from roofline.explore.table import Choices, Progress, table, with_start
from roofline.files import write_atomically
from roofline.report.figures.memory import NAMES as MEMORY_ROWS
from roofline.report.figures.regimes import COLOURS as REGIME_COLOURS
from roofline.report.style import PART_COLOURS, SERIES
from roofline.sweeps.result import require

HERE = Path(__file__).parent
SCRIPTS = ("table.js", "figures.js", "page.js")
STYLE = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
LIVE_POLICY = f"default-src 'none'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'; {STYLE}"


def part(name: str) -> str:
    """A file of the page."""
    return (HERE / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def plotly_js() -> str:
    """The library that draws, from the Python package: nothing is fetched."""
    offline = require("plotly", "explore") and __import__("plotly.offline", fromlist=["get_plotlyjs"])
    return offline.get_plotlyjs()


def setup(start: Question, found: dict[str, Any] | None = None, menus: Menu | None = None, command: str = "") -> dict:
    """What the page's script is told: where it starts, what can be chosen, colours, and the table if there is one."""
    told: dict[str, Any] = {
        "version": __version__, "start": start.state(), "command": command,
        "parts": PART_COLOURS, "series": list(SERIES), "regimes": REGIME_COLOURS, "regime_names": list(REGIME_NAMES),
        "memory": {row: {"name": name, "colour": colour} for row, (name, colour) in MEMORY_ROWS.items()},
    }  # fmt: skip
    if found is not None:
        return told | {"table": found}
    assert menus is not None, "a page without a table asks a server, whose menus it shows"
    ranks = [str(r) for r in menus.ranks]
    return told | {
        "menus": {
            "model": list(menus.models), "hw": list(menus.hardware), "engine": list(menus.engines),
            "weights": list(menus.weights), "kv": list(menus.kv), "tp": ranks, "pp": ranks, "dp": ranks, "ep": ranks,
        }
    }  # fmt: skip


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: no '<' can end it, whatever names hold."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def live_page(told: dict) -> str:
    """The page that asks its server."""
    scripts = "".join(f'<script src="/{name}" defer></script>\n' for name in ("plotly.js", *SCRIPTS))
    return _filled("", embedded(told), scripts)


def file_page(told: dict) -> str:
    """The page that needs nothing else: its policy allows the scripts that it holds, by their hashes; no request."""
    texts = [code.replace("</script", "<\\/script") for code in (plotly_js(), *map(part, SCRIPTS))]
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in texts)
    policy = f"default-src 'none'; script-src {hashes}; connect-src 'none'; {STYLE}"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return _filled(meta, embedded(told), "".join(f"<script>{text}</script>\n" for text in texts))


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _filled(policy: str, data: str, scripts: str) -> str:
    """The template with its holes filled; each hole stands once, and what fills one is not searched for others."""
    page = part("page.html")
    out = []
    holes = {"<!--policy-->": policy, "/*style*/": part("page.css"), "<!--setup-->": data, "<!--scripts-->": scripts}
    for hole, text in holes.items():
        before, found, page = page.partition(hole)
        assert found, f"page.html has no {hole}"
        out += [before, text]
    return "".join([*out, page])


def export(
    path: str | os.PathLike,
    start: Question,
    choices: Choices,
    menus: Menu,
    command: str = "roofline explore",
    progress: Progress | None = None,
) -> Path:
    """Write the page as one file that works without a server or network; returns its path.

    Args:     start: what it shows first, whose choice is added to `choices`; command: that reproduces it;
              progress(done, total) per deployment
    """
    plotly_js()  # say at once if it is missing
    found = table(with_start(choices, start), menus, progress)
    return write_atomically(path, file_page(setup(start, found, command=command)))
