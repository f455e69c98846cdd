"""Pictures and pages from estimates, sweeps and simulations."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.errors import UnknownNameError
from roofline.report.kinds import KINDS

if TYPE_CHECKING:
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
    if out is not None:
        picture.save(out)
    return picture


def figure_module(kind: str):
    """The module that draws a kind."""
    if kind not in KINDS:
        raise UnknownNameError("figure", kind, list(KINDS), "see 'roofline plot --help'")
    return import_module(f"roofline.report.figures.{kind}")
