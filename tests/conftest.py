"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data kept outside the project; tests that want it are skipped where it is absent."""
    path = Path(os.environ.get("ROOFLINE_SHARED", ROOT.parent / "shared"))
    if not (path / "data").is_dir():
        pytest.skip("reference data is not at hand")
    return path
