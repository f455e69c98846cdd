"""A page as PDF, printed by a browser without a window."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from roofline.errors import InputError
from roofline.files import write_atomically

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
TIMEOUT_S = 120.0


def browser() -> str | None:
    """A Chromium or its kin: what ROOFLINE_BROWSER names, else the first on the PATH; None where there is none."""
    named = os.environ.get("ROOFLINE_BROWSER")
    candidates = (named,) if named else BROWSERS
    return next((found for name in candidates if (found := shutil.which(name))), None)


def required_browser() -> str:
    """The same.

    Errors:   InputError where there is none, with how to get one
    """
    program = browser()
    if program is None:
        named = os.environ.get("ROOFLINE_BROWSER")
        looked = f"ROOFLINE_BROWSER names '{named}'" if named else f"looked for {', '.join(BROWSERS)}"
        raise InputError(
            f"a PDF is printed by Chromium, Chrome or Edge and none was found ({looked}). Install one (apt install "
            "chromium; brew install --cask chromium; winget install Google.Chrome) or set ROOFLINE_BROWSER to its "
            "path; or write .html instead and print it from a browser"
        )
    return program


def command(program: str, profile: str | Path) -> list[str]:
    """How a browser is started without a window, network services or traces of the user's own profile."""
    words = [
        program, "--headless=new", "--disable-gpu", "--disable-extensions", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run", "--no-default-browser-check",
        "--hide-scrollbars", f"--user-data-dir={profile}",
    ]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium refuses its sandbox to root; the page runs no script
        words.append("--no-sandbox")
    return words


def write_pdf(html: str, path: str | Path) -> Path:
    """Print a page to `path`.

    Errors:   InputError where there is no browser, or it fails
    """
    program = required_browser()
    with tempfile.TemporaryDirectory(prefix="roofline-") as folder:
        source, made = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(html, encoding="utf-8")
        words = [*command(program, Path(folder) / "profile"), "--no-pdf-header-footer", f"--print-to-pdf={made}"]
        try:
            done = subprocess.run([*words, source.as_uri()], capture_output=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"'{program}' could not print the page: {error}") from None
        if not made.is_file():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise InputError(f"'{program}' printed no page: {' '.join(last) or 'it said nothing'}")
        return write_atomically(path, made.read_bytes())
