"""Pictures and pages from estimates, sweeps and simulations."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.errors import InputError, UnknownNameError
from roofline.plotted import KINDS

if TYPE_CHECKING:
    from roofline.estimates import Estimate
    from roofline.report.style import Picture


def plot(
    subject: Any,
    kind: str = "roofline",
    *,
    out: str | Path | None = None,
    theme: str = "light",
    size: str = "slide",
    **options: Any,
) -> Picture:
    """A figure of `subject`: one of `KINDS`, as a matplotlib figure that shows itself in a notebook.

    Args:     subject: an Estimate for most kinds; see `KINDS` for what else; out: file to write, by its ending PNG, SVG
              or PDF; theme: light or dark; size: slide, page or narrow; options: of the kind, see its module's `of`
    Errors:   UnknownNameError for a kind that there is not; InputError for a subject or option that does not go with it
    """
    from roofline.report.style import drawing, look

    module = figure_module(kind)
    how = look(theme, size)
    record = module.of(subject, **options)
    with drawing(how) as picture:
        module.draw(picture, how, record)
        picture.caption = module.caption(record)
    if out is not None:
        picture.save(out)
    return picture


def figure_module(kind: str):
    """The module that draws a kind."""
    if kind not in KINDS:
        raise UnknownNameError("figure", kind, list(KINDS), "see 'roofline plot --help'")
    return import_module(f"roofline.report.figures.{kind}")


def write_report(e: Estimate, path: str | Path, **options: Any) -> Path:
    """Write a self-contained page about an estimate to `path`: .html, or .pdf where a Chromium is installed.

    Args:     options: of `html_page`: command, question, figures, options, date
    Errors:   InputError for other endings, a missing folder or a missing browser
    """
    from roofline.files import write_atomically
    from roofline.report.page import html_page

    path = Path(path)
    ending = path.suffix.lower()
    if ending not in (".html", ".htm", ".pdf"):
        raise InputError(f"'{path}': reports are written as .html or .pdf")
    text = html_page(e, **options)
    if ending == ".pdf":
        from roofline.report.pdf import write_pdf

        return write_pdf(text, path)
    return write_atomically(path, text)
