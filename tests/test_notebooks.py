"""Every notebook runs from top to bottom, draws its figures, and holds no formula of its own."""

from __future__ import annotations

import ast
import base64
import importlib.util

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.slow

QUESTIONS = 9


def tool(root):
    spec = importlib.util.spec_from_file_location("notebooks_refresh", root / "notebooks" / "refresh.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(1, QUESTIONS + 1))


def notebook(root, number):
    (path,) = (root / "notebooks").glob(f"{number}-*.ipynb")
    return path


def test_there_are_nine(root):
    assert len(tool(root).notebooks()) == QUESTIONS


def test_runs_and_shows(root, number):
    book = tool(root).executed(notebook(root, number))
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code), "a cell shows nothing"
    pictures = [o for cell in code for o in cell.outputs if "image/png" in o.get("data", {})]
    assert pictures, "no figure"
    assert not [o.text for cell in code for o in cell.outputs if o.get("name") == "stderr" and "Warning" in o.text]


def test_pictures_are_whole_beside_pyplot(root):
    """What pyplot registers for figures would crop the headings of pictures away."""
    book = nbformat.v4.new_notebook()
    code = (
        "import matplotlib.pyplot as plt\nimport roofline as rl\n"
        "e = rl.estimate('llama-3.2-1b', 'l40s')\nplt.figure().clear()\npicture = e.plot('memory', size='narrow')\n"
        "print(len(picture._repr_png_()))\npicture"
    )
    book.cells = [nbformat.v4.new_code_cell(code)]
    ran = tool(root).run(book)
    (data,) = [o["data"] for o in ran.cells[0].outputs if "image/png" in o.get("data", {})]
    (printed,) = [o["text"] for o in ran.cells[0].outputs if o.get("name") == "stdout"]
    assert len(base64.b64decode(data["image/png"])) == int(printed)
    assert "visible on each GPU" in data["text/plain"]


def test_is_short_and_asks_a_question(root, number):
    book = nbformat.read(notebook(root, number), as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert 3 <= len(code) <= 8
    assert book.cells[0].cell_type == "markdown"
    assert book.cells[0].source.startswith("# ")
    assert "?" in book.cells[0].source.splitlines()[0] + book.cells[0].source
    assert notebook(root, number).stat().st_size < 400_000


def test_holds_no_formula(root, number):
    """Arithmetic is for units and axes: no function, and nothing but a single product or quotient."""
    book = nbformat.read(notebook(root, number), as_version=4)
    for cell in book.cells:
        if cell.cell_type != "code":
            continue
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, (ast.FunctionDef, ast.Lambda)), cell.source
            if isinstance(node, ast.BinOp):
                nested = [n for n in ast.walk(node) if isinstance(n, ast.BinOp)]
                assert len(nested) <= 2, ast.unparse(node)
