"""MkDocs hooks: while the site is built, the reference is made from the code and pages are made of the notebooks."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "roofline"
NOTEBOOKS = ROOT / "notebooks"


def _sibling(name: str):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look
    spec.loader.exec_module(module)
    return module


_docstrings = _sibling("_docstrings")
_notebooks = _sibling("_notebooks")

# Chapters of the reference and of the formula index: title, and the modules (or folders) in them.
CHAPTERS = {
    "Answers": ["estimates", "estimated", "regimes", "economics", "explain", "sweeps", "planner", "techniques",
                "handoff", "comparison", "display", "report", "plotted"],
    "Serving": ["serving", "speculative", "simulation"],
    "Steps": ["deployment", "step", "pricing", "machine", "calibrated", "kernels"],
    "Work": ["ops", "workload", "parallel", "precision", "forward", "layers"],
    "Memory": ["memory"],
    "Specs": ["specs", "units", "errors", "arrays", "files"],
    "Measuring": ["measure", "calibration", "validation"],
}  # fmt: skip


@dataclass(frozen=True)
class Formula:
    """A public function whose docstring states a formula."""

    module: str
    name: str
    sentence: str
    formula: str
    source: str

    @property
    def anchor(self) -> str:
        """Its place in the reference, where the code is shown too."""
        return f"api/{self.module.replace('.', '/')}.md#roofline.{self.module}.{self.name}"


def modules(names: list[str]) -> Iterator[str]:
    """Dotted names below `roofline` of modules and of what is in folders."""
    for name in names:
        path = PACKAGE / name
        if path.with_suffix(".py").exists():
            yield name
        else:
            files = sorted(path.rglob("*.py"), key=lambda p: (p.parent, p.name != "__init__.py", p.name))
            for file in files:
                parts = file.relative_to(PACKAGE).with_suffix("").parts
                dotted = ".".join(parts).removesuffix(".__init__")
                if not parts[-1].startswith("_") or (parts[-1] == "__init__" and documented(file)):
                    yield dotted


def source_file(module: str) -> Path:
    """The file of a module or package."""
    path = PACKAGE / module.replace(".", "/")
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def documented(file: Path) -> bool:
    """Whether a file says or defines anything."""
    return bool(file.read_text(encoding="utf-8").strip())


def defines(file: Path) -> bool:
    """Whether a file has functions or classes of its own."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return any(isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_") for n in tree.body)


def formulas(names: list[str]) -> Iterator[Formula]:
    """Every public function and method of these modules whose docstring has a Formula."""
    for module in modules(names):
        tree = ast.parse(source_file(module).read_text(encoding="utf-8"))
        for name, node in _public(tree.body):
            sentences, fields, _ = _docstrings.split(ast.get_docstring(node) or "")
            if "Formula" in fields:
                first = " ".join(sentences.split("\n\n")[0].split()).removeprefix("Return ")
                source = " ".join(fields.get("Source", "").split())
                yield Formula(module, name, first, fields["Formula"], source)


def _public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body, f"{prefix}{node.name}.")
            else:
                yield f"{prefix}{node.name}", node


def formula_page() -> str:
    """The formula index as Markdown."""
    out = [
        "# Formulas",
        "",
        "Every formula of the project, from the docstring of the function that holds it; a name leads to the function, "
        "its units, assumptions, measured error and code. Made from the code while this site is built.",
    ]
    for title, names in CHAPTERS.items():
        found = list(formulas(names))
        if not found:
            continue
        out += ["", f"## {title}"]
        module = None
        for f in found:
            if f.module != module:
                module = f.module
                out += ["", f"### {module}"]
            what = _docstrings.escaped(f.sentence[:1].upper() + f.sentence[1:])
            out += ["", f"[`{f.name}`]({f.anchor}): {what}", "", "``` { .text .formula }", f.formula, "```"]
            if f.source:
                out += ["", f"Source: {_docstrings.escaped(f.source)}"]
    return "\n".join(out) + "\n"


def api_index() -> str:
    """The list of modules with what each is about."""
    out = ["# Reference", "", "Made from the docstrings. Names that can be taken from `roofline` itself: "]
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    public = next(n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "_PUBLIC")
    homes = {name: home_of(module, name) for name, module in ast.literal_eval(public).items()}
    links = [f"[`{shown}`]({api_path(m)}#roofline.{m}.{name})" for shown, (m, name) in homes.items()]
    out[-1] += ", ".join(links) + "."
    for title, chapter in CHAPTERS.items():
        out += ["", f"## {title}", ""]
        for module in modules(chapter):
            text = _docstrings.escaped(about(module))
            out.append(f"- [`{module}`]({api_path(module)}): {text}" if text else f"- [`{module}`]({api_path(module)})")
    return "\n".join(out) + "\n"


def about(module: str) -> str:
    """The first sentences of a module's docstring."""
    told = ast.get_docstring(ast.parse(source_file(module).read_text(encoding="utf-8"))) or ""
    return " ".join(told.split("\n\n")[0].split())


def home_of(module: str, name: str) -> tuple[str, str]:
    """Where something is defined that `module` may only pass on, and under which name."""
    for node in ast.parse(source_file(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return home_of((node.module or "").removeprefix("roofline."), alias.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            if name in [t.id for t in node.targets if isinstance(t, ast.Name)]:
                return module, node.value.id
    return module, name


def api_path(module: str) -> str:
    """Path of a module's page below `api/`."""
    return f"{module.replace('.', '/')}.md"


def api_page(module: str) -> str:
    """The reference page of one module."""
    return f"# roofline.{module}\n\n::: roofline.{module}\n    options:\n      show_root_heading: false\n"


def on_config(config):
    """Put the made pages into the navigation."""
    books = next(entry["Notebooks"] for entry in config.nav if "Notebooks" in entry)
    books += [{made.title: f"{_notebooks.FOLDER}/{made.name}.md"} for made in _notebooks.pages(NOTEBOOKS)]
    reference = ["api/index.md"]
    for title, chapter in CHAPTERS.items():
        reference.append({title: [{m: f"api/{api_path(m)}"} for m in modules(chapter)]})
    chapter = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    chapter.append({"Python": reference})
    return config


def on_files(files: Files, config) -> Files:
    """Add the pages that are made from the code and from notebooks."""
    made = {"formulas.md": formula_page(), "api/index.md": api_index()}
    for chapter in CHAPTERS.values():
        for module in modules(chapter):
            made[f"api/{api_path(module)}"] = api_page(module)
    for book in _notebooks.pages(NOTEBOOKS):
        made[f"{_notebooks.FOLDER}/{book.name}.md"] = book.text
        made |= {f"{_notebooks.FOLDER}/{name}": png for name, png in book.figures.items()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


# What has no blank in it reads badly when it is broken: flags, names, short cells; sentences want some width.
CODE = re.compile(r"<code>([^<]{1,26})</code>")
CELL = re.compile(r"<td(?: style=\"[^\"]*\")?>(?=((?:(?!</td>).)*))", re.DOTALL)
BLOCKS = re.compile(r"(<pre.*?</pre>)", re.DOTALL)
SHORT, LONG = 20, 45  # characters of a cell


def on_page_content(html: str, **_) -> str:
    """Mark what must not be broken on a narrow window, outside of blocks of code."""
    parts = BLOCKS.split(html)
    parts[::2] = [unbroken(part) for part in parts[::2]]
    return "".join(parts)


def unbroken(html: str) -> str:
    """Short code and short cells stay on one line, cells with sentences get room; so do numbers and their %."""
    html = CODE.sub(r'<code class="whole">\1</code>', html)
    return CELL.sub(_cell, re.sub(r"(\d) %", r"\1&nbsp;%", html))


def _cell(found: re.Match) -> str:
    length = len(re.sub(r"<[^>]*>", "", found[1]))
    kind = "whole" if length <= SHORT else "long" if length >= LONG else "medium"
    return found[0].replace("<td", f'<td class="{kind}"', 1)


# The search looks for words of the documentation, not of the code: that would be more than half of its index.
SOURCE = re.compile(r'<details class="mkdocstrings-source">.*?</details>', re.DOTALL)
PLACE = "<!-- source code -->"
_sources: dict[str, list[str]] = {}


@event_priority(1)  # the search has 0
def on_page_context(context, page, **_):
    """Take source code out of a page before it is indexed."""
    _sources[page.url] = SOURCE.findall(page.content)
    page.content = SOURCE.sub(PLACE, page.content)
    return context


def on_post_page(output: str, page, **_) -> str:
    """Put it back."""
    sources = iter(_sources.pop(page.url))
    return re.sub(PLACE, lambda _: next(sources), output)
