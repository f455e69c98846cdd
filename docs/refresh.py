"""Runs the blocks of Markdown pages and writes what they print back: `python docs/refresh.py [PAGES]`.

A ```console block holds `$ command` lines, each followed by its output. A ```text block right after a ```python block
is what that prints; $ROOFLINE is the checkout. The blocks of a page share one folder and one Python namespace, from top
to bottom; `text` is the last ```yaml block there. Other languages (```sh) are shown only. A block between
`<!-- command -->` and `<!-- end -->` comments is what the command prints, as Markdown. `roofline` itself is called in
this process, so its output may go into a pipe but not into a file. `tests/test_docs.py` checks that pages are up to
date, numbers within 2 %.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roofline.cli import main

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8"
}  # fmt: skip

BLOCK = re.compile(
    r"^```console\n(?P<console>.*?)^```$"
    r"|^```yaml\n(?P<yaml>.*?)^```$"
    r"|^```python\n(?P<python>.*?)^```$(?P<gap>\n+^```text\n)?(?P<printed>(?<=```text\n).*?(?=^```$))?"
    r"|^<!-- (?P<command>roofline [^\n]*?) -->\n(?P<table>.*?)^<!-- end -->$",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"(?<![\w.-])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Output:
    """What a block shows, what it prints now, and where that stands in the page."""

    source: str
    shown: str
    now: str
    start: int
    end: int


def pages() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def outputs(text: str, where: str = "page") -> Iterator[Output]:
    """Every output of a page, shown and as it is now; running the page."""
    names: dict = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), environment():
        for block in BLOCK.finditer(text):
            if block["console"] is not None:
                shown, at = block["console"], block.start("console")
                yield Output(shown, shown, session(shown), at, at + len(shown))
            elif block["yaml"] is not None:
                names["text"] = block["yaml"]
            elif block["python"] is not None:
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(block["python"], where, "exec", dont_inherit=True), names)
                if block["printed"] is not None:
                    at = block.start("printed")
                    yield Output(block["python"], block["printed"], lines(printed.getvalue()), at, block.end("printed"))
            else:
                at = block.start("table")
                now = f"\n{run(block['command'])}\n"
                yield Output(block["command"], block["table"], now, at, block.end("table"))


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """Fixed width, no colour, and the commands of this Python first."""
    old = dict(os.environ)
    path = os.pathsep.join([str(Path(sys.executable).parent), old.get("PATH", "")])
    os.environ.update(ENVIRONMENT, PATH=path, ROOFLINE=str(ROOT))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(old)


def session(shown: str) -> str:
    """The commands of a console block, each with what it prints."""
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", shown, re.MULTILINE)
    return "".join(f"$ {command}\n{run(command)}" for command in commands)


def run(command: str) -> str:
    """What a shell command prints; one that ends in `# refused` has to fail, with a message for people."""
    refused = command.endswith("# refused")
    out = errors = ""
    for part in command.split(" | "):
        own = part.startswith("roofline ") and not out
        code, out, told = called(part) if own else shell(part, out)
        errors += told
        if code != (2 if refused else 0):
            raise RuntimeError(f"{command}\nended with {code}\n{out}{errors}")
    written = [f"{line}\n" for line in errors.splitlines() if line.startswith("wrote ")]  # but no progress
    return lines(errors if refused else out + "".join(written))


def shell(command: str, given: str = "") -> tuple[int, str, str]:
    """Exit code, output and messages of a shell command that reads the given text."""
    done = subprocess.run(command, shell=True, input=given, capture_output=True, text=True, encoding="utf-8")
    return done.returncode, done.stdout, done.stderr


def called(command: str) -> tuple[int, str, str]:
    """The same of a `roofline` command without redirections, in this process: starting takes longer than answering."""
    words = shlex.split(command.replace("\\\n", ""), comments=True)
    out, errors = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main([os.path.expandvars(word) for word in words[1:]])
        except SystemExit as left:
            code = left.code
    return code, out.getvalue(), errors.getvalue()


def lines(text: str) -> str:
    """Text without trailing blanks, ending in one newline where there is any."""
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def same(shown: str, now: str, tolerance: float = 0.02) -> bool:
    """Whether two outputs say the same: equal words, numbers within `tolerance` or one unit of their last decimal."""
    a, b = (re.sub(r"[-─━\s]{2,}|\s", " ", NUMBER.sub("#", t)).split() for t in (shown, now))
    return a == b and all(close(x, y, tolerance) for x, y in zip(NUMBER.findall(shown), NUMBER.findall(now)))


def close(shown: str, now: str, tolerance: float) -> bool:
    """Whether two printed numbers are the same but for rounding; whole numbers have no last decimal."""
    x, y = (float(n.replace(",", "")) for n in (shown, now))
    decimals = min(len(n.partition(".")[2]) for n in (shown, now))
    last = 10.0**-decimals if decimals and "e" not in shown + now else 0.0
    return abs(x - y) <= max(tolerance * max(abs(x), abs(y)), 1.001 * last)


def refresh(page: Path) -> int:
    """Write the outputs of a page anew; how many changed."""
    text = page.read_text(encoding="utf-8")
    changed = [o for o in outputs(text, str(page)) if o.shown != o.now]
    for o in reversed(changed):
        text = text[: o.start] + o.now + text[o.end :]
    if changed:
        page.write_text(text, encoding="utf-8")
    return len(changed)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]) if sys.argv[1:] else pages():
        print(f"{page}: {refresh(page.resolve())} outputs changed")
