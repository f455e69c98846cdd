"""Pictures and pages from estimates, sweeps and simulations."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.errors import InputError, UnknownNameError
from roofline.plotted import KINDS

if TYPE_CHECKING:
    from roofline.estimates import Estimate
    from roofline.planner import Recommendation
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
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnknownNameError("figure", str(kind)[:60], list(KINDS), "see 'roofline plot --help'")
    return import_module(f"roofline.report.figures.{kind}")


def write_report(subject: Estimate | Recommendation, path: str | Path, **options: Any) -> Path:
    """Write a self-contained page about an estimate or a plan to `path`: .html, or .pdf where a Chromium is installed.

    Args:     options: of the `html_page` of `estimate_page` or `plan_page`: command, question, figures, options, date
    Errors:   InputError for other endings, a missing folder or a missing browser
    """
    from roofline.estimates import Estimate
    from roofline.files import write_atomically
    from roofline.planner import Recommendation
    from roofline.report import estimate_page, plan_page

    path = Path(path)
    ending = path.suffix.lower()
    if ending not in (".html", ".htm", ".pdf"):
        raise InputError(f"'{path}': reports are written as .html or .pdf")
    if not isinstance(subject, (Estimate, Recommendation)):
        raise InputError(f"reports are written of an Estimate or a plan, not of a {type(subject).__name__}")
    if ending == ".pdf":
        from roofline.report.pdf import required_browser, write_pdf

        required_browser()  # told before anything is drawn
    text = (plan_page if isinstance(subject, Recommendation) else estimate_page).html_page(subject, **options)
    return write_pdf(text, path) if ending == ".pdf" else write_atomically(path, text)
