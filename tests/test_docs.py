"""The documentation: blocks run and show what they print now, the site builds without a warning and asks nobody."""

from __future__ import annotations

import html.parser
import importlib.util
import json
import re
import subprocess
import sys

import pytest

from roofline.specs.engine import Engine
from roofline.specs.library import build
from roofline.specs.yaml_file import parse_yaml

pytestmark = pytest.mark.slow

# Pages whose blocks other tests run.
ELSEWHERE = {"simulation.md", "prefix-and-tiers.md"}


def load(root, name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", root / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def pages(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.md"))


def pytest_generate_tests(metafunc):
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", pages(metafunc.config.rootpath / "docs"))


def test_page_is_up_to_date(root, page):
    refresh = load(root, "refresh")
    text = (root / "docs" / page).read_text(encoding="utf-8")
    if page in ELSEWHERE or not refresh.BLOCK.search(text):
        pytest.skip("no block to run here")
    for o in refresh.outputs(text, page):
        assert refresh.same(o.shown, o.now), f"python docs/refresh.py docs/{page}\nshown:\n{o.shown}\nnow:\n{o.now}"


# The tool itself.


@pytest.mark.parametrize(
    ("shown", "now", "equal"),
    [
        ("a 1.00 b", "a  1.01   b", True),
        ("a 1.00 b", "a 1.05 b", False),
        ("0.31 s", "0.32 s", True),
        ("0.31 s", "0.33 s", False),
        ("5 drafts", "6 drafts", False),
        ("a 1,000 b", "a 1,001 c", False),
        ("batch 5", "batch 5\nbatch 6", False),
        ("h100-sxm 3", "h200-sxm 3", False),
        ("0.0%", "0.0%", True),
    ],
)
def test_same(root, shown, now, equal):
    assert load(root, "refresh").same(shown, now) is equal


def test_blocks_share_a_folder_and_names(root, tmp_path):
    refresh = load(root, "refresh")
    page = tmp_path / "page.md"
    page.write_text(
        "```python\na = 2\n```\n\n```console\n$ echo hello > x\n```\n\n```python\nprint(a, open('x').read())\n```\n\n"
        "```text\n```\n\n```sh\nexit 1\n```\n",
        encoding="utf-8",
    )
    assert refresh.refresh(page) == 1
    assert "```text\n2 hello\n```" in page.read_text(encoding="utf-8")
    assert refresh.refresh(page) == 0


def test_command_over_two_lines(root):
    shown = "$ echo a \\\n    b\nold\n$ echo c\n"
    assert load(root, "refresh").session(shown) == "$ echo a \\\n    b\na b\n$ echo c\nc\n"


def test_failing_command_is_no_output(root):
    refresh = load(root, "refresh")
    with pytest.raises(RuntimeError, match="ended with 3"):
        refresh.run("exit 3")
    with pytest.raises(RuntimeError, match="ended with 0"):
        refresh.run("true # refused")


def test_docstring_fields(root):
    docstrings = load(root, "_docstrings") if importlib.util.find_spec("griffe") else None
    if docstrings is None:
        pytest.skip("griffe is not at hand")
    text = "Return b.\n\nFormula:  a +\n          b\nArgs:     a [s]\nSource:   here\n\n>>> 1\n1"
    sentences, fields, tests = docstrings.split(text)
    assert (sentences, tests) == ("Return b.", ">>> 1\n1")
    assert fields == {"Formula": "a +\nb", "Args": "a [s]", "Source": "here"}
    shown = docstrings.markdown(text)
    assert "**Formula**\n\n``` { .text .formula }\na +\nb\n```" in shown
    assert r"**Args** a \[s\]" in shown


def test_notebook_as_a_page(root, tmp_path):
    """Text, code, figures with their captions, tables without pandas' styles, printed pieces in one block."""
    stream = {"output_type": "stream", "name": "stdout"}
    png = {"image/png": "aGVsbG8=", "text/plain": ["What [it] shows."]}
    table = {"text/html": ["<div>\n<style scoped>x {}</style>\n\n<table></table></div>"], "text/plain": ["t"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Why?\n", "See [memory](../docs/memory.md)."]},
        {"cell_type": "code", "source": ["f()"], "outputs": [stream | {"text": ["a\n"]}, stream | {"text": "b\n"}]},
        {"cell_type": "code", "source": ["g()"], "outputs": [{"output_type": "execute_result", "data": png}]},
        {"cell_type": "code", "source": ["h()"], "outputs": [{"output_type": "execute_result", "data": table}]},
    ]
    path = tmp_path / "1-why.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (made,) = load(root, "_notebooks").pages(tmp_path)
    assert (made.name, made.title) == ("1-why", "Why?")
    assert "[memory](../memory.md)" in made.text and "```python\nf()\n```\n\n```text\na\nb\n```" in made.text
    assert r"![What \[it\] shows.](1-why-1.png)" in made.text and made.figures == {"1-why-1.png": b"hello"}
    assert "<table></table>" in made.text and "<style" not in made.text


def test_what_must_not_be_broken(root):
    """Flags, names and short cells keep together, sentences in cells get room, blocks of code are left alone."""
    pytest.importorskip("mkdocs")
    unbroken = load(root, "_hooks").on_page_content
    assert unbroken("<code>--rate</code>") == '<code class="whole">--rate</code>'
    long = "<code>" + "x" * 40 + "</code>"
    assert unbroken(long) == long
    cells = unbroken(f'<td>a b</td><td style="x">{"word " * 20}</td>')
    assert cells.startswith('<td class="whole">a b') and '<td class="long" style="x">word' in cells
    assert unbroken("5 % of") == "5&nbsp;% of"
    block = "<pre><code>5 %</code></pre>"
    assert unbroken(block) == block


# The site.


@pytest.fixture(scope="module")
def site(root, tmp_path_factory):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(out)],
        cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return out


# Tags that fetch something while a page is shown; links that are followed on a click are none.
FETCHING = re.compile(r"""<(?:link|script|img|iframe|source|video)\b(?:[^>"']|"[^"]*"|'[^']*')*>""", re.IGNORECASE)


class Requests(html.parser.HTMLParser):
    """Collects what a browser would fetch for these tags."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "link" and given.get("rel", "") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href", ""))
        elif tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(given.get("src", ""))


def fetched(page: str) -> list[str]:
    """What a browser would fetch while it shows a page."""
    requests = Requests()
    for tag in FETCHING.findall(page):  # a parser takes its time for the rest
        requests.feed(tag)
        requests.clear_cdata_mode()  # of <script>
    return requests.found


def test_what_a_page_fetches():
    page = """<p><a href="https://a"><LINK rel=stylesheet href='b.css'><link rel="next" href="c">
    <img alt="1 > 0" src=//d><script src="e.js"></script><script>"<p>"</script><source src="f"></p>"""
    assert fetched(page) == ["b.css", "//d", "e.js", "", "f"]


def test_builds_and_asks_nobody(site):
    built = sorted(site.rglob("*.html"))
    assert len(built) > 100
    for page in built:
        outside = [url for url in fetched(page.read_text(encoding="utf-8")) if re.match(r"(https?:)?//", url or "")]
        assert not outside, f"{page.relative_to(site)}: {outside}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


ARTICLE = re.compile(r"<article[^>]*>(.*?)</article>", re.DOTALL)
FOLDED = re.compile(r'(<details class="mkdocstrings-source">\s*<summary>.*?</summary>).*?(?=</details>)', re.DOTALL)

# Puts one page after another into the article of the page that is open; what sticks out of it or is cut, by page.
MISPLACED = """const article = document.querySelector("article"), box = document.documentElement;
const scrolls = (e) => { for (; e && e !== article; e = e.parentElement)
    if (/auto|scroll/.test(getComputedStyle(e).overflowX)) return true; return false; };
const name = (e) => `${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 60)}`;
return Object.fromEntries(Object.entries(arguments[0]).map(([path, html]) => {
    article.innerHTML = html;
    const edge = box.clientWidth, found = [];
    for (const e of article.querySelectorAll("*:not(pre *)")) {
        const b = e.getBoundingClientRect();
        if (!b.width || !b.height || e.closest("details:not([open]) > :not(summary)")) continue;
        if ((b.right > edge + 1 || b.left < -1) && !scrolls(e.parentElement)) found.push(`sticks out: ${name(e)}`);
        const how = getComputedStyle(e);
        if (/hidden|clip/.test(how.overflowX) && e.clientWidth > 4 && e.scrollWidth > e.clientWidth + 1)
            found.push(`is cut: ${name(e)}`);
    }
    if (box.scrollWidth > edge) found.push(`scrolls sideways: ${box.scrollWidth} > ${edge}`);
    return [path, found];
}).filter(([, found]) => found.length));"""


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_of_a_page(site, browser, width):
    """On a phone and on a desk: no page scrolls sideways, wide tables and blocks scroll in their own box."""
    texts = {str(p.relative_to(site)): p.read_text(encoding="utf-8") for p in sorted(site.rglob("*.html"))}
    # Source code that is folded away takes no room on a page, only time.
    articles = {name: FOLDED.sub(r"\1", found[1]) for name, text in texts.items() if (found := ARTICLE.search(text))}
    assert len(articles) > 200 and sum(name.startswith("notebooks/") for name in articles) == 9
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get((site / "index.html").as_uri())
    names, misplaced = list(articles), {}
    for i in range(0, len(names), 20):
        misplaced |= browser.execute_script(MISPLACED, {name: articles[name] for name in names[i : i + 20]})
    assert misplaced == {}
    wide = "<table><tr><td><code style='white-space: nowrap'>" + "x" * 400 + "</code></td></tr></table>"
    assert browser.execute_script(MISPLACED, {"box": wide}) == {}, "a wide table scrolls in its own box"
    out = f"<p style='width: {width + 200}px'>text</p>"
    assert "sticks out" in str(browser.execute_script(MISPLACED, {"probe": out})), "the probe sees what sticks out"


def test_formula_index_leads_to_the_code(root, site):
    text = (site / "formulas.html").read_text(encoding="utf-8")
    links = re.findall(r'href="(api/[^"]+)#([^"]+)"', text)
    assert len(links) > 100
    for path, anchor in links:
        page = (site / path).read_text(encoding="utf-8")
        assert f'id="{anchor}"' in page, f"{path}#{anchor}"
        assert "Source code in" in page
    assert "E (1 - (1 - k/E)^T)" in text


def test_search_knows_docstrings_and_no_code(site):
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "E (1 - (1 - k/E)^T)" in index and "expected number of experts" in index.lower()
    assert "Source code in" not in index and "from __future__" not in index


def test_every_module_has_a_page(root, site):
    """A new module shows up in the reference by itself, or its chapter is missing in docs/_hooks.py."""
    package = root / "src" / "roofline"
    private = ("cli", "explore", "engines")
    for file in package.rglob("*.py"):
        parts = file.relative_to(package).with_suffix("").parts
        defines = re.search(r"^(def|class) [a-zA-Z]", file.read_text(encoding="utf-8"), re.MULTILINE)
        if file.name.startswith("_") or parts[0] in private or not defines:
            continue
        path = site / "api" / f"{'/'.join(parts)}.html"
        assert path.exists(), f"{'.'.join(parts)} is in no chapter of docs/_hooks.py"


def test_records_say_what_they_hold(site):
    """Types, defaults and the comment or description of each field."""

    def said(page: str) -> str:
        text = re.sub(r"<details.*?</details>", "", (site / "api" / page).read_text(), flags=re.DOTALL)
        return re.sub(r"<[^>]*>", "", text)

    assert "sequences that all decode workers take together" in said("serving/disaggregated.html")
    assert "float | None" in said("serving/disaggregated.html")
    engine = said("specs/engine.html")
    assert "batch sizes that are captured" in engine and "description=" not in engine


def test_example_engine_is_valid(root):
    """The profile shown in the guide is one that the schema takes."""
    page = (root / "docs" / "adding-an-engine.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert build(Engine, parse_yaml(example, where="guide"), where="guide").memory.max_num_seqs == 256
