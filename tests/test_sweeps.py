"""Sweeps: equal to estimates point by point, masks with reasons, questions asked of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.errors import InfeasibleError, InputError, UnknownNameError
from roofline.estimates import estimate
from roofline.sweeps import Reason, sweep
from roofline.sweeps.grid import grid_of

MODEL, HW = "llama-3.1-8b", "h100-sxm"


@pytest.fixture(scope="module")
def static():
    return sweep(MODEL, [HW, "l40s"], tp=[1, 2, 5], isl=[500, 4000], osl=[100, 300, 900], batch=[1, 16, 4096])


@pytest.fixture(scope="module")
def closed():
    metrics = (
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "tokens_per_s",
        "usd_per_mtok_output",
        "ttft_p90_s",
        "running",
        "utilisation",
    )
    return sweep(MODEL, HW, weights=["bf16", "fp8"], isl=[500, 4000], osl=200, concurrency=[1, 8, 64], metrics=metrics)


def test_dimensions(static):
    assert static.shape == (2, 3, 2, 3, 3) and len(static) == 108
    assert list(static.axes) == ["hw", "tp", "isl", "osl", "batch"]
    assert static.isl.shape == (2, 1, 1) and static.hw.ravel().tolist() == [HW, "l40s"]


@pytest.mark.parametrize("index", [(0, 0, 0, 0, 0), (1, 1, 1, 2, 1), (0, 1, 1, 1, 1)])
def test_static_points_are_estimates(static, index):
    p = static.point(index)
    e = static.at(p)
    for name in ("ttft_s", "tpot_s", "e2e_s", "tokens_per_s", "usd_per_mtok_output", "usd_per_mtok_blended"):
        assert p[name] == pytest.approx(getattr(e, name).value, rel=1e-12), name
    assert p["resident"] == pytest.approx(e.resident, rel=1e-12)
    direct = estimate(MODEL, p["hw"], tp=p["tp"], isl=p["isl"], osl=p["osl"], batch=p["batch"])
    assert direct.tpot_s.value == e.tpot_s.value


@pytest.mark.parametrize("index", [(0, 0, 0), (1, 1, 2), (0, 1, 1)])
def test_closed_loop_points_are_estimates(closed, index):
    p = closed.point(index)
    e = closed.at(p)
    assert p["tpot_s"] == pytest.approx(e.tpot_s.value, rel=1e-12)
    assert p["ttft_p90_s"] == pytest.approx(float(e.state.ttft.at(0.9)), rel=1e-12)
    assert p["tokens_per_s"] == pytest.approx(float(e.state.tokens_per_s), rel=1e-12)


def test_open_loop_and_overload():
    s = sweep(MODEL, HW, isl=1000, osl=200, rate_per_s=[0.5, 5.0, 5000.0], metrics=["ttft_s", "utilisation"])
    assert s.feasible.tolist() == [True, True, False]
    assert s.reasons[-1] == Reason.OVERLOAD
    assert s.at(rate_per_s=5.0).ttft_s.value == pytest.approx(s.ttft_s[1], rel=1e-12)


def test_reasons(static):
    assert np.all(static.reasons[:, 2] == Reason.CANNOT_BE_CUT)  # 32 heads over 5 ranks
    assert "does not divide" in next(iter(static.messages.values()))
    full = static.reasons[0, 0, 1, 2, 2]  # 4096 sequences of 4900 tokens on one card
    assert full == Reason.KV_FULL and np.isnan(static.tpot_s[0, 0, 1, 2, 2])
    assert set(static.why_not()) == {"the model cannot be cut so", "KV of the batch does not fit at the same time"}


def test_what_does_not_fit_has_no_numbers():
    """user_cases U-slo_capacity-01: 811 GB of weights on one 80 GB card give no latency (a tool printed 460 ms)."""
    s = sweep("llama-3.1-405b", HW, weights="bf16", batch=[1, 2])
    assert np.all(np.isnan(s.tpot_s)) and np.all(s.reasons & Reason.DOES_NOT_FIT)
    with pytest.raises(InfeasibleError, match="does not fit"):
        s.best("tpot_s")
    e = estimate("llama-3.1-405b", HW, weights="bf16")
    assert not e.fits and "smallest plan that fits is 16 devices" in " ".join(e.violations)


def test_beyond_the_positions():
    s = sweep(MODEL, HW, isl=[1000, 200_000], osl=100, batch=1)
    assert s.reasons[1] & Reason.TOO_LONG


def test_best_where_pareto(static):
    cheap = static.where(static.tpot_s < 0.02).best("usd_per_mtok_output")
    inside = static.feasible & (np.nan_to_num(static.tpot_s, nan=9.0) < 0.02)
    assert cheap["usd_per_mtok_output"] == np.min(static.usd_per_mtok_output[inside])
    frontier = static.pareto("tpot_s", "tokens_per_s_gpu")
    x, y = ([p[n] for p in frontier] for n in ("tpot_s", "tokens_per_s_gpu"))
    assert x == sorted(x) and y == sorted(y) and len(frontier) > 2
    ok = static.feasible
    for p in frontier:  # nobody is faster and has more throughput
        better = (static.tpot_s[ok] <= p["tpot_s"]) & (static.tokens_per_s_gpu[ok] > p["tokens_per_s_gpu"])
        assert not better.any()
    with pytest.raises(InfeasibleError, match="excluded"):
        sweep(MODEL, HW, batch=[1, 2]).where(False).best("tpot_s")


def test_best_direction(static):
    assert static.best("tokens_per_s")["tokens_per_s"] == np.nanmax(static.tokens_per_s)
    assert static.best("tpot_s", largest=True)["tpot_s"] == np.nanmax(static.tpot_s)


def test_prices_are_an_axis():
    s = sweep(MODEL, HW, batch=8, usd_per_h=[1.0, 2.0, 4.0])
    assert s.usd_per_mtok_output / s.usd_per_mtok_output[0] == pytest.approx([1.0, 2.0, 4.0])
    assert len(set(s.tpot_s.tolist())) == 1


def test_no_price_is_no_obstacle():
    s = sweep(MODEL, "gb300", batch=[1, 2])
    assert np.all(s.feasible) and np.all(np.isnan(s.usd_per_mtok_output))


def test_scheduler_knobs_are_axes():
    s = sweep(MODEL, HW, isl=4000, osl=100, concurrency=16, token_budget=[512, 2048, 8192])
    assert len(set(s.ttft_s.tolist())) == 3
    assert s.at(token_budget=512).ttft_s.value == pytest.approx(s.ttft_s[0], rel=1e-12)


def test_together():
    s = sweep(MODEL, HW, isl=[100, 2000], osl=[900, 50], batch=[1, 2, 4], together=("isl", "osl"))
    assert s.shape == (3, 2)
    grid_ = sweep(MODEL, HW, isl=[100, 2000], osl=[900, 50], batch=[1, 2, 4])
    assert s.tpot_s[1].tolist() == [grid_.tpot_s[0, 0, 1], grid_.tpot_s[1, 1, 1]]
    assert s.at(s.point((2, 1))).isl == 2000


@settings(max_examples=15)
@given(most=st.integers(1, 200), sizes=st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 9)))
def test_blocks_tile_the_grid(most, sizes):
    one = dict.fromkeys(("tp", "pp", "ep", "dp", "cp"), 1)
    numbers = {name: np.arange(n) + 1.0 for name, n in zip(("isl", "osl", "batch"), sizes)}
    g = grid_of({"model": MODEL, "hw": [HW, "l40s"], "engine": "vllm"} | one | numbers)
    hits = np.zeros(g.reduced(), int)
    for block in g.blocks(most):
        hits[(block.case, *block.slices)] += 1
        assert block.size <= max(most, 1)
        values = g.values(block)
        shape = tuple(s.stop - s.start for s in block.slices)
        assert np.broadcast_shapes(*(v.shape for v in values.values())) == shape
    assert np.all(hits == 1)


def test_blocks_do_not_change_numbers(monkeypatch):
    import roofline.sweeps.grid as module

    inputs = {"isl": [100, 800, 3000], "osl": [50, 500], "concurrency": list(range(1, 30))}
    whole = sweep(MODEL, HW, **inputs)
    plain = module.Grid.blocks
    monkeypatch.setattr(module.Grid, "blocks", lambda self, most=7: plain(self, 7))
    assert np.array_equal(sweep(MODEL, HW, **inputs).ttft_s, whole.ttft_s)


def test_frames(static):
    frame = static.to_pandas()
    assert len(frame) == 108 and {"hw", "tp", "isl", "osl", "batch", "tpot_s", "reasons"} <= set(frame.columns)
    row = frame[(frame.hw == "l40s") & (frame.tp == 2) & (frame.isl == 4000) & (frame.osl == 300) & (frame.batch == 16)]
    assert row.tpot_s.item() == static.tpot_s[1, 1, 1, 1, 1]
    assert len(static.to_pandas(feasible_only=True)) == int(static.feasible.sum())


def test_xarray(static):
    pytest.importorskip("xarray")
    data = static.to_xarray()
    assert data.tpot_s.dims == ("hw", "tp", "isl", "osl", "batch")
    assert float(data.tpot_s.sel(hw="l40s", tp=2, isl=4000, osl=300, batch=16)) == static.tpot_s[1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ({"batch": [1], "concurrency": [2]}, InputError, "one of batch, concurrency"),
        ({"isl": []}, InputError, "empty"),
        ({"isl": [100, -1]}, InputError, "isl: -1 is out of range"),
        ({"isl": [float("nan")]}, InputError, "out of range"),
        ({"concurrency": [4], "token_budget": [0, 512]}, InputError, "token_budget: 0 is out of range"),
        ({"concurrency": [4], "tokenizers": [0]}, InputError, "tokenizers: 0 is out of range"),
        ({"tp": [1.5]}, InputError, "whole number"),
        ({"bacth": [1]}, UnknownNameError, "did you mean 'batch'"),
        ({"metrics": ["tpot"]}, UnknownNameError, "did you mean 'tpot_s'"),
        ({"metrics": ["ttft_p90_s"]}, InputError, "percentiles need"),
        ({"hw": ["h100-smx"]}, UnknownNameError, "did you mean"),
        ({"isl": [1, 2], "osl": [1, 2, 3], "together": ("isl", "osl")}, InputError, "different lengths"),
        ({"together": ("isl",)}, InputError, "not given as a list"),
        ({"isl": [500, 4000], "cached": [0, 500]}, InputError, "cached: 500 of a prompt of 500 tokens"),
    ],
)
def test_refusals(inputs, error, text):
    with pytest.raises(error, match=text):
        sweep(MODEL, **inputs)


def test_attributes_that_are_not_there(static):
    with pytest.raises(AttributeError, match="a sweep has no 'tpot'"):
        static.tpot  # noqa: B018
    with pytest.raises(InputError, match="was not computed"):
        static.best("running")
    with pytest.raises(InputError, match="does not fit"):
        static.where(np.ones(7, bool))


def test_too_large_for_memory_asks_for_a_folder():
    with pytest.raises(InputError, match="give out="):
        sweep(MODEL, HW, isl=np.arange(1.0, 2001), osl=np.arange(1.0, 2001), batch=np.arange(1.0, 101))


def test_progress_is_told():
    told = []
    sweep(MODEL, [HW, "l40s"], batch=[1, 2, 3], progress=lambda done, total: told.append((done, total)))
    assert told == [(3, 6), (6, 6)]


def test_what_is_no_condition_and_no_axis_is_refused():
    s = sweep("llama-3.1-8b", ["h100-sxm"], tp=[1, 2], concurrency=[1, 8])
    for condition in (3, s.tpot_s, "tpot_s<1", [1, 0]):
        with pytest.raises(InputError, match="is no condition"):
            s.where(condition)
    with pytest.raises(UnknownNameError, match="tp of this sweep '3'"):
        s.at(tp=3, concurrency=8)
    with pytest.raises(InputError, match="concurrency: 'many' is not a number"):
        s.at(concurrency="many")
    with pytest.raises(InputError, match=r"concurrency: an array of shape \(2, 2\)"):
        sweep("llama-3.1-8b", concurrency=np.ones((2, 2)))
    assert sweep("llama-3.1-8b", concurrency=[1, 2], metrics="tpot_s").tpot_s.shape == (2,)


def test_ranks_may_come_from_a_table():
    """Whole floats are ranks, as a data frame has them; others are none."""
    floats, whole = (sweep("llama-3.1-8b", tp=tp, concurrency=8) for tp in (np.array([1.0, 2.0]), [1, 2]))
    assert floats.tpot_s.tolist() == whole.tpot_s.tolist() and floats.axes["tp"] == [1, 2]
    with pytest.raises(InputError, match=r"tp: 1\.5 must be a whole number"):
        sweep("llama-3.1-8b", tp=[1.0, 1.5])
