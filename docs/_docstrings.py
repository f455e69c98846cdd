"""Griffe extension: shows the docstrings of this project as Markdown.

A docstring is sentences, then fields (`Formula:`, `Args:`, ...) whose lines hang below their first one, then doctests.
Records get a table of what they hold: the meaning is the comment beside a field, or its description.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

FIELDS = ("Formula", "Args", "Returns", "Assumes", "Error", "Errors", "Source")
CODE = {"Formula"}  # shown as it stands: columns and line breaks mean something
_FIELD = re.compile(rf"^({'|'.join(FIELDS)}):[ \t]*(.*)$")


def split(docstring: str) -> tuple[str, dict[str, str], str]:
    """The sentences, the fields and the doctests of a docstring."""
    sentences, tests, fields = [], [], {}
    name = None
    for line in docstring.strip().splitlines():
        if line.lstrip().startswith(">>>") or tests:
            tests.append(line)
        elif found := _FIELD.match(line):
            name = found[1]
            fields[name] = [found[2]]
        elif name and (line.startswith(" ") or not line.strip()):
            fields[name].append(line)
        else:
            name = None
            sentences.append(line)
    return "\n".join(sentences).strip(), {k: hanging(v) for k, v in fields.items()}, "\n".join(tests).strip()


def hanging(rows: list[str]) -> str:
    """Lines of a field without the indent that they hang by."""
    rest = [r for r in rows[1:] if r.strip()]
    indent = min((len(r) - len(r.lstrip()) for r in rest), default=0)
    return "\n".join([rows[0], *(r[indent:] for r in rest)]).strip()


def markdown(docstring: str) -> str:
    """The docstring for the reference pages."""
    sentences, fields, tests = split(docstring)
    parts = [escaped(sentences)]
    for name, text in fields.items():
        if name in CODE:
            parts.append(f"**{name}**\n\n``` {{ .text .formula }}\n{text}\n```")
        else:
            parts.append(f"**{name}** {escaped(' '.join(text.split()))}")
    if tests:
        parts.append(f"```pycon\n{tests}\n```")
    return "\n\n".join(p for p in parts if p)


def escaped(text: str) -> str:
    """Prose whose brackets, asterisks and underscores are no Markdown; code spans stay."""
    pieces = re.split(r"(`[^`\n]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([\[\]*_<>|])", r"\\\1", p) for p in pieces)


def holdings(record: griffe.Class) -> str:
    """A table of the public fields of a record, in order; empty for a class without any."""
    fields = [a for n, a in record.attributes.items() if not n.startswith("_") and a.annotation and a.lineno]
    fields = [a for a in fields if not a.has_labels("property") and a.parent is record]
    if not fields:
        return ""
    rows = [[f"`{a.name}`", f"`{a.annotation}`", *default_and_meaning(a)] for a in fields]
    lines = ["| field | type | default | meaning |", "|---|---|---|---|", *(f"| {' | '.join(r)} |" for r in rows)]
    return "\n".join(lines)


def default_and_meaning(field: griffe.Attribute) -> tuple[str, str]:
    """What a field is where it is not given, and the comment beside it or the description in `Field(...)`."""
    value, said = str(field.value or ""), ""
    call = ast.parse(value, mode="eval").body if value else None
    if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Field", "field"):
        named = {k.arg: k.value for k in call.keywords}
        shown = call.args[0] if call.args else named.get("default", named.get("default_factory"))
        value = "" if shown is None else ast.unparse(shown)
        said = ast.literal_eval(named["description"]) if "description" in named else ""
    beside = re.search(r"  # (?!noqa|fmt)(.*)$", field.source, re.MULTILINE)
    value = "" if value == "..." else value
    return f"`{value}`" if value else "", escaped(said or (beside[1] if beside else ""))


class Docstrings(griffe.Extension):
    """Rewrites every docstring of the package once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            table = holdings(obj) if obj.is_class else ""
            obj.docstring.value = "\n\n".join(filter(None, (markdown(obj.docstring.value), table)))
