"""What self-contained pages are made of: templates, figures in two sizes, tables.

Nothing is loaded from elsewhere and nothing runs in a page: inline CSS, inline SVG, and a policy that forbids the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline import __version__
from roofline.display import number, seconds
from roofline.errors import InputError, RooflineError, UnknownNameError
from roofline.plotted import KINDS
from roofline.units import format as quantity

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

    from roofline.estimates import Estimate, OpRow

# (kind, its options, heading)
Wanted = tuple[str, Mapping[str, Any], str]

MISSING_JINJA = "pages need the optional package 'jinja2'; install it with: pip install 'roofline[report]'"


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure in two sizes with its words."""

    anchor: str
    heading: str
    caption: str
    wide: Markup
    narrow: Markup


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; columns from `numeric_from` on are aligned to the right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric_from: int = 1
    remark: str = ""
    wrapped: bool = False  # the first columns hold sentences, which may run over several lines


def template(name: str) -> Template:
    """A template of this folder; what is put into it is escaped.

    Errors:   InputError where jinja2 is not installed
    """
    try:
        import jinja2
    except ImportError:
        raise InputError(MISSING_JINJA) from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(name, globals={"version": __version__})


def check_kinds(kinds: Iterable[str]) -> None:
    """Refuse figures that there are not."""
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownNameError("figure", kind, list(KINDS))


def figures_of(subject: Any, wanted: Iterable[Wanted], prefix: str) -> tuple[list[Shown], dict[str, str]]:
    """Figures of a record that apply to it, and why the others do not: kind -> reason.

    Args:     prefix: makes ids unique in a page
    """
    shown, left_out = [], {}
    for i, (kind, options, heading) in enumerate(wanted):
        try:
            shown.append(_shown(subject, kind, dict(options), heading, f"{prefix}{i}"))
        except RooflineError as error:  # no experts, no price, a rule that is not simulated
            left_out[kind] = str(error)
    return shown, left_out


def _shown(subject: Any, kind: str, options: dict[str, Any], heading: str, prefix: str) -> Shown:
    from markupsafe import Markup

    from roofline.report import figure_module
    from roofline.report.style import drawing, look, themed_svg

    module = figure_module(kind)
    record = module.of(subject, **options)
    caption = module.caption(record)
    svgs = []
    for size in ("page", "narrow"):
        how = look("light", size, headed=False)
        with drawing(how) as picture:
            module.draw(picture, how, record)
        svgs.append(Markup(themed_svg(picture, f"{prefix}{size[0]}-", f"{heading}. {caption}")))
    return Shown(f"{prefix}-{kind}", heading, caption, *svgs)


def op_table(title: str, rows: Iterable[OpRow]) -> Table:
    """The ops of a step."""
    header = ("op", "bound", "count", "GFLOP", "GB", "FLOP/B", "time", "80 % band", "share")
    return Table(
        title, header,
        tuple(
            (r.op, r.bound, f"{r.count:.0f}", number(r.flops / 1e9), number(r.bytes / 1e9), number(r.intensity),
             seconds(r.time_s), f"{seconds(r.low_s)} to {seconds(r.high_s)}", f"{r.share:.1%}")
            for r in rows
        ), 2,
    )  # fmt: skip


def memory_table(e: Estimate) -> Table:
    """What fills the memory of each device."""
    stages = e.memory.stages
    rows = [
        (name.replace("_", " "), *(quantity(float(s.rows()[name]), "GiB") for s in stages))
        for name in stages[0].rows()
    ]  # fmt: skip
    rows.append(("visible", *(quantity(float(s.visible), "GiB") for s in stages)))
    header = ("", *(["each GPU"] if len(stages) == 1 else [f"stage {s.stage}" for s in stages]))
    return Table("Memory", header, tuple(rows))
