"""Imports go down only: a module may use what stands below it, never what stands above."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "roofline"

# Floors from the ground up; a name stands for a module or for a whole folder.
FLOORS = [
    {"errors", "arrays", "plotted"},
    {"units", "workload", "parallel", "precision", "files"},
    {"ops"},
    {"kernels"},
    {"layers", "specs.hardware", "specs.library", "specs.engine", "specs.prices", "specs.yaml_file"},
    {"specs"},
    {"forward", "memory"},
    {"calibrated", "machine"},
    {"pricing"},
    {"step"},
    {"deployment"},
    {"regimes", "economics"},
    {"serving", "speculative", "simulation"},
    {"estimated", "estimates", "explain", "display"},
    {"sweeps"},
    {"planner", "techniques"},
    {"handoff", "comparison"},
    {"calibration", "validation", "measure", "report"},
    {"explore"},
    {"cli", "__main__"},
]


def floor_of(module: str) -> int:
    """The floor of `roofline.<module>`: the longest matching name decides."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        for level, floor in enumerate(FLOORS):
            if name in floor:
                return level
    raise AssertionError(f"roofline.{module} stands on no floor: give it one in FLOORS")


def modules() -> list[Path]:
    return [p for p in sorted(SRC.rglob("*.py")) if p != SRC / "__init__.py"]


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("roofline"):
            base = node.module.removeprefix("roofline").lstrip(".")
            for alias in node.names:
                whole = f"{base}.{alias.name}".lstrip(".")
                is_module = (SRC / f"{whole.replace('.', '/')}.py").exists() or (SRC / whole.replace(".", "/")).is_dir()
                found.add(whole if is_module else base)
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("roofline.") for a in node.names if a.name.startswith("roofline.")}
    return {f for f in found if f}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_down(path):
    module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    own = floor_of(module)
    upward = [name for name in imported(path) if floor_of(name) > own]
    assert not upward, f"roofline.{module} (floor {own}) imports from above: {upward}"


def test_import_is_light():
    """Importing the package loads none of the slow libraries."""
    slow = ("pandas", "scipy", "matplotlib", "torch", "jinja2", "rich", "xarray")
    code = f"import sys, roofline; print([m for m in {slow!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
