"""The fit engine finds known constants again, holds out whole groups, and says when a constant hit its bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from roofline.calibration import fit as engine
from roofline.errors import InputError


@dataclass(frozen=True, slots=True)
class Line:
    """t = start + size / rate, the smallest model with one constant of each kind of bound."""

    start_s: float = 5e-6
    fraction: float = 0.5

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {"start_s": (0.0, 1e-4), "fraction": (0.05, 1.0)}


def line(c, columns):
    return c.start_s + columns["size"] / (1e12 * c.fraction)


def table(start_s=3e-6, fraction=0.8, noise=0.05, rows=400, seed=1):
    rng = np.random.default_rng(seed)
    size = 10 ** rng.uniform(4, 9, rows)
    measured = line(Line(start_s, fraction), {"size": size}) * np.exp(noise * rng.standard_normal(rows))
    return {"size": size}, measured


def test_recovers_the_constants_that_made_the_data():
    columns, measured = table()
    found = engine.fit(line, Line(), columns, measured)
    assert found.constants.start_s == pytest.approx(3e-6, rel=0.03)  # the value used to make the rows
    assert found.constants.fraction == pytest.approx(0.8, rel=0.03)
    assert not found.at_bound


def test_outliers_do_not_steer():
    columns, measured = table()
    measured[::10] *= 20.0
    found = engine.fit(line, [Line(), Line(5e-5, 0.1)], columns, measured)
    assert found.constants.fraction == pytest.approx(0.8, rel=0.05)


def test_free_fixes_the_rest_and_a_prior_pulls():
    columns, measured = table()
    fixed = engine.fit(line, Line(fraction=0.6), columns, measured, free=["start_s"])
    assert fixed.constants.fraction == 0.6
    pulled = engine.fit(line, Line(), columns, measured, priors={"fraction": (0.6, 1e-4)})
    assert pulled.constants.fraction == pytest.approx(0.6, rel=0.01)
    with pytest.raises(InputError, match="allowed: start_s, fraction"):
        engine.fit(line, Line(), columns, measured, free=["slope"])


def test_bound_is_reported():
    columns, measured = table(fraction=1.0)
    found = engine.fit(line, Line(), columns, measured * 0.8)  # would need a fraction of 1.25
    assert found.at_bound == {"fraction": "high"}
    held = engine.held_out_residuals(line, Line(), columns, measured * 0.8, np.arange(len(measured)) % 7)
    e = engine.entry(found, held, ["all"] * len(held), format="bf16", engine="any", date="2026-01-01", source="made up")
    assert engine.bound_report([e]) == ["bf16 any any: fraction = 1 is at its high bound"]


@pytest.mark.parametrize("bad", [[], [1.0, np.nan], [1.0, 0.0]])
def test_bad_measurements_are_refused(bad):
    with pytest.raises(InputError, match="measured_s"):
        engine.fit(line, Line(), {"size": np.ones(len(bad))}, np.array(bad))


def test_folds_keep_groups_whole_and_even():
    groups = np.repeat(np.arange(23), np.arange(1, 24))
    fold = engine.group_folds(groups, 5)
    assert all(len(np.unique(fold[groups == g])) == 1 for g in range(23))
    assert np.ptp(np.bincount(fold)) <= 23  # at most one group of the largest size apart


def test_held_out_is_honest():
    """A group that behaves differently is only fitted when it is seen: held-out error must show it."""
    columns, measured = table(noise=0.0)
    group = np.arange(len(measured)) % 5
    measured = np.where(group == 3, measured * 1.3, measured)
    held = engine.held_out_residuals(line, Line(), columns, measured, group)
    assert np.median(held[group == 3]) == pytest.approx(-np.log(1.3), abs=0.02)
    assert np.abs(np.median(held[group == 0])) < 0.1
    assert np.isnan(engine.held_out_residuals(line, Line(), columns, measured, np.zeros(len(group)))).all()


def test_errors_and_bands():
    residuals = np.log([1.1, 0.9, 1.2, np.nan])
    e = engine.errors(residuals)  # by hand: |0.1|, |-0.1|, |0.2|
    assert (e.rows, e.mape, e.bias) == (3, pytest.approx(0.4 / 3), pytest.approx(0.1))
    rng = np.random.default_rng(0)
    spread = rng.normal(0, 0.2, 4000)
    low, high = engine.bands(spread, ["memory"] * 4000)["memory"]
    # normal quantiles at 10 and 90 %: +-1.2816 sigma
    assert (low, high) == (pytest.approx(np.exp(-0.2563), abs=0.02), pytest.approx(np.exp(0.2563), abs=0.02))
    # 9 rows: the 10 % and 90 % positions of (n + 1) q are the smallest and the largest row
    nine = np.log(np.arange(1.0, 10.0))
    assert engine.bands(-nine, ["x"] * 9) == {"all": [1.0, 9.0]}
    assert set(engine.bands(spread, ["rare"] * 5 + ["memory"] * 3995)) == {"all", "memory"}


def test_sampling_is_even_over_strata():
    strata = ["a"] * 900 + ["b"] * 100
    rows = engine.sample_rows(1000, 100, strata)
    assert len(rows) == 100 and np.sum(rows >= 900) == 50
    assert np.array_equal(rows, engine.sample_rows(1000, 100, strata))
    assert len(engine.sample_rows(10, 100)) == 10


def test_entries_survive_the_file(tmp_path):
    columns, measured = table()
    found = engine.fit(line, Line(), columns, measured)
    held = engine.held_out_residuals(line, Line(), columns, measured, np.arange(len(measured)) % 10)
    regimes = ["memory"] * len(held)
    e = engine.entry(found, held, regimes, format="fp8", engine="vllm", date="2026-01-01", source="made up")
    engine.write_entries(tmp_path / "gemm.yaml", "gemm", [e, e])
    assert engine.read_entries(tmp_path / "gemm.yaml") == {"gemm": [e, e]}
    assert (tmp_path / "gemm.yaml").read_text().count("\n") == 4  # two headings and one line per entry
    assert e.mape == pytest.approx(0.04, abs=0.01)  # mean |N(0, 0.05)| = 0.05 sqrt(2/pi)
