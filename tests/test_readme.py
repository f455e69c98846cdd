"""The README: it fits a screen, its blocks run, and it shows what they print now."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib

import pytest


def refresh(root):
    spec = importlib.util.spec_from_file_location("docs_refresh", root / "docs" / "refresh.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_refresh"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def outputs(root):
    return list(refresh(root).outputs((root / "README.md").read_text(encoding="utf-8"), "README.md"))


def test_there_is_a_command_a_block_and_a_table(outputs):
    assert len(outputs) == 3
    for o, start in zip(outputs, ("$ roofline estimate", "import roofline", "roofline validate --markdown")):
        assert o.source.startswith(start)


@pytest.mark.parametrize("number", range(3))
def test_is_up_to_date(root, outputs, number):
    o = outputs[number]
    assert refresh(root).same(o.shown, o.now), f"python docs/refresh.py README.md\nshown:\n{o.shown}\nnow:\n{o.now}"


def test_fits_a_screen(root):
    assert len((root / "README.md").read_text(encoding="utf-8").splitlines()) <= 75


def test_counts_of_specs(root):
    from roofline.specs.library import names

    text = (root / "README.md").read_text(encoding="utf-8")
    told = {what: int(n) for n, what in re.findall(r"(\d+) (devices|models)", text)}
    assert told == {"devices": len(names("hardware")), "models": len(names("model"))}


def test_links_lead_somewhere(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (root / target).exists(), target


def test_second_command_installs_what_the_tests_need(root):
    """`pip install -e '.[dev]' && pytest`: every test tool that is imported or skipped for is an extra of dev."""
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    dev = " ".join(extras["dev"])
    for package in ("pytest", "pytest-xdist", "hypothesis", "nbclient", "nbformat", "ipykernel", "ruff", "docs"):
        assert package in dev
