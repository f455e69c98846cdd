"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# Speed is kept by tests/benchmarks; no test fails because the machine is busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items):
    """What takes a browser or a benchmark is slow."""
    for item in items:
        if {"browser", "benchmark"} & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)


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


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium of the system, driven by selenium."""
    selenium = pytest.importorskip("selenium.webdriver")
    binary = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("chromium and its driver are not at hand")
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = binary
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1300,900"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = selenium.Chrome(options=options, service=Service(driver))
    yield window
    window.quit()
