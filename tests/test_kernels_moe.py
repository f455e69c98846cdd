"""MoE layer times obey physics, reduce to the datasheet roofline, and predict held-out layouts of real kernels."""

from __future__ import annotations

import doctest
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.calibration import fit as engine
from roofline.calibration import moe as calibration
from roofline.calibration.moe import Table, calibrate_moe, constants_of, held_out_moe, moe_columns, nearest_entry
from roofline.kernels import moe
from roofline.kernels.chip import Chip
from roofline.kernels.moe import IDENTITY, MoeConstants, fastest_moe_terms, moe_terms, moe_time
from roofline.kernels.routing import uniform_loads
from roofline.ops import Experts

H100 = Chip(bandwidth_bytes_per_s=3.35e12, sms=132, l2_bytes=50e6)  # NVIDIA H100 SXM datasheet and white paper
PEAK = 989e12

# tokens, hidden, inter, experts, top_k, tp, ep: Mixtral, Qwen3, DeepSeek-V3, gpt-oss, Llama-4-Scout and cuts of them
layers = st.tuples(
    st.integers(1, 30_000),
    st.sampled_from(
        [
            (4096, 14336, 8, 2, 1, 1), (4096, 1536, 128, 8, 1, 4), (7168, 2048, 256, 8, 4, 8),
            (2880, 2880, 128, 4, 2, 1), (5120, 8192, 16, 1, 1, 2), (2048, 768, 128, 8, 1, 1),
        ]
    ),
)  # fmt: skip
fractions = st.floats(0.1, 1.0)
constant_sets = st.builds(
    MoeConstants,
    compute_fraction=fractions,
    memory_fraction=fractions,
    launch_s=st.floats(2e-6, 5e-5),
    k_latency_s=st.floats(0, 5e-9),
    block_s=st.floats(0, 5e-7),
    expert_s=st.floats(0, 1e-7),
    row_passes=st.floats(0, 3),
    combine_passes=st.floats(0, 3),
    warm_ratio=st.floats(1, 4),
)


def seconds(layer, constants=None, chip=H100, peak=PEAK, **more):
    t, (h, i, e, k, tp, ep) = layer
    return moe_time(t, h, i, e, k, tp=tp, ep=ep, chip=chip, peak_flops_per_s=peak, constants=constants, **more)


def roofline(layer, w=2.0, a=2.0, matrices=3.0):
    """max(FLOPs / peak, bytes / bandwidth): active experts' weights, rows into and out of the two products."""
    t, (h, i, e, k, tp, ep) = layer
    loads, i = uniform_loads(t, e, k, ep), i / tp
    flops = 2 * matrices * h * i * loads.pairs
    rows = loads.pairs * ((h + i) * a + 2 * ((matrices - 1) * i + h))
    return max(flops / PEAK, (loads.active * matrices * h * i * w + rows) / H100.bandwidth_bytes_per_s)


def test_doctests():
    for module in (moe, calibration):
        assert not doctest.testmod(module).failed


@given(layers, st.sampled_from([2.0, 3.0]))
def test_identity_is_the_datasheet_roofline(layer, matrices):
    assert seconds(layer, IDENTITY, matrices=matrices) == pytest.approx(roofline(layer, matrices=matrices), rel=1e-12)
    four_bits = {"weight_bytes_per_el": 0.5625, "act_bytes_per_el": 0.5625}
    assert seconds(layer, IDENTITY, **four_bits) == pytest.approx(roofline(layer, 0.5625, 0.5625), rel=1e-12)


@given(layers, constant_sets)
def test_never_faster_than_the_datasheet(layer, constants):
    assert seconds(layer, constants) >= roofline(layer) * (1 - 1e-12)
    assert seconds(layer, constants) > constants.launch_s


@given(layers)
def test_work_is_that_of_the_op(layer):
    t, (h, i, e, k, tp, ep) = layer
    op = Experts("experts", t, h, i, e, k, tp=tp, ep=ep)
    found = moe_terms(t, h, i, e, k, tp=tp, ep=ep, chip=H100, peak_flops_per_s=PEAK, constants=IDENTITY)
    if t * k / ep >= 1 and op.distinct >= 1:  # below that a rank still counts one pair
        assert found.compute_s == pytest.approx(op.flops / PEAK)
        assert found.memory_s >= op.weight_bytes / H100.bandwidth_bytes_per_s * (1 - 1e-12)


@given(layers, constant_sets, st.floats(1.01, 4.0))
def test_better_hardware_is_never_slower(layer, constants, factor):
    slack = seconds(layer, constants) * (1 + 1e-9)
    assert seconds(layer, constants, peak=PEAK * factor) <= slack
    faster = replace(H100, bandwidth_bytes_per_s=H100.bandwidth_bytes_per_s * factor)
    assert seconds(layer, constants, chip=faster) <= slack
    overheads = ("launch_s", "k_latency_s", "block_s", "expert_s", "row_passes", "combine_passes", "padding", "blend")
    for name in overheads:
        less = replace(constants, **{name: getattr(constants, name) / factor})
        assert seconds(layer, less) <= slack, name


@given(layers, constant_sets, st.integers(1, 500))
def test_more_tokens_are_never_faster(layer, constants, more):
    t, shape = layer
    assert seconds((t + more, shape), constants) >= seconds(layer, constants) * (1 - 1e-9)


@settings(max_examples=20)
@given(st.lists(layers, min_size=1, max_size=5), constant_sets)
def test_array_equals_scalar(many, constants):
    t = np.array([x[0] for x in many], float)
    shape = np.array([x[1] for x in many], float).T
    together = seconds((t, shape), constants, cold=False, routings=5.0)
    single = [seconds(x, constants, cold=False, routings=5.0) for x in many]
    np.testing.assert_allclose(together, single, rtol=1e-12)


def test_constants_per_row():
    several = MoeConstants(launch_s=np.array([1e-5, 2e-5]), stored_bytes=np.array([0.0, 2.0]))
    layer = (64, (4096, 1536, 128, 8, 1, 1))
    both = seconds(layer, several, weight_bytes_per_el=0.53125)
    for i in range(2):
        alone = replace(several, launch_s=several.launch_s[i], stored_bytes=several.stored_bytes[i])
        assert both[i] == pytest.approx(seconds(layer, alone, weight_bytes_per_el=0.53125), rel=1e-12)


def test_terms_add_up():
    t = moe_terms(
        500, 4096, 1536, 128, 8, chip=H100, peak_flops_per_s=PEAK, constants=replace(MoeConstants(), blend=0.0)
    )
    assert t.time_s == pytest.approx(t.launch_s + max(t.compute_s, t.memory_s, t.latency_s) + t.rows_s, rel=1e-12)


def test_all_experts_per_token_is_a_dense_layer():
    """Eight experts of 1024, all used, are a dense feed-forward layer of 8192: same FLOPs, same weights."""
    h, i, e = 4096, 1024, 8
    many = moe_terms(20_000, h, i, e, e, chip=H100, peak_flops_per_s=PEAK, constants=IDENTITY)
    assert many.compute_s == pytest.approx(2 * 3 * h * i * e * 20_000 / PEAK)
    one = moe_terms(1, h, i, e, e, chip=H100, peak_flops_per_s=PEAK, constants=IDENTITY)
    rows = e * ((h + i) * 2 + 2 * (2 * i + h))
    assert one.memory_s == pytest.approx((3 * h * i * e * 2 + rows) / H100.bandwidth_bytes_per_s)


def test_what_the_parts_mean():
    """Experts no rank owns still cost launched blocks; widened weights cost their bytes; caches help what repeats."""
    wide = {"chip": H100, "peak_flops_per_s": PEAK}
    alone = moe_time(320, 4096, 2048, 256, 6, ep=256, **wide)
    bare = moe_time(320, 4096, 2048, 256, 6, ep=256, **wide, constants=MoeConstants(block_s=0.0))
    assert alone - bare > 5e-6  # about 1,900 scattered pairs start blocks on the rank that owns one expert
    narrow = {"weight_bytes_per_el": 0.53125, **wide}
    stored = moe_terms(256, 2880, 2880, 32, 4, **narrow, constants=MoeConstants(stored_bytes=2.0))
    assert stored.memory_s > 3 * moe_terms(256, 2880, 2880, 32, 4, **narrow).memory_s
    small = moe_terms(4, 2048, 768, 8, 2, **wide)
    assert moe_terms(4, 2048, 768, 8, 2, **wide, cold=False).memory_s < small.memory_s
    assert moe_time(512, 4096, 1536, 128, 8, **wide, matrices=2.0) < moe_time(512, 4096, 1536, 128, 8, **wide)


def test_the_fastest_kernel_wins_point_by_point():
    quick = MoeConstants(launch_s=5e-6, compute_fraction=0.1)
    strong = MoeConstants(launch_s=4e-5, compute_fraction=0.8)
    tokens = np.array([1.0, 64.0, 20_000.0])
    found, which = fastest_moe_terms(
        [quick, strong], tokens, 4096, 1536, 128, 8, ep=8, chip=H100, peak_flops_per_s=PEAK
    )
    assert list(which) == [0, 0, 1]
    for i, c in enumerate((quick, quick, strong)):
        alone = moe_terms(tokens[i], 4096, 1536, 128, 8, ep=8, chip=H100, peak_flops_per_s=PEAK, constants=c)
        for f in fields(alone):
            assert getattr(found, f.name)[i] == pytest.approx(float(getattr(alone, f.name)), rel=1e-12), f.name
    one, index = fastest_moe_terms([strong], 8, 4096, 1536, 128, 8, chip=H100, peak_flops_per_s=PEAK)
    assert index == 0 and np.ndim(one.time_s) == 0


def test_every_constant_has_bounds_and_a_default_inside():
    for f in fields(MoeConstants):
        if f.name in MoeConstants.BOUNDS:
            low, high = MoeConstants.BOUNDS[f.name]
            assert low <= f.default <= high, f.name
    assert {f.name for f in fields(MoeConstants)} - set(MoeConstants.BOUNDS) == {"stored_bytes", "padding", "blend"}


def made_up(constants, seed=0, rows=160, stack="vllm", kernel="x_triton", fmt="bf16"):
    rng = np.random.default_rng(seed)
    shapes = np.array([(4096, 14336, 2, 8), (4096, 1536, 8, 128), (7168, 2048, 8, 256), (2048, 768, 8, 128)])
    pick = rng.integers(0, len(shapes), rows)
    table = {n: shapes[pick, j].astype(float) for j, n in enumerate(("hidden", "inter", "topk", "experts"))} | {
        "stack": np.full(rows, stack),
        "kernel": np.full(rows, kernel),
        "dtype": np.full(rows, fmt),
        "tokens": rng.choice([1, 4, 16, 64, 256, 1024, 4096, 16384], rows).astype(float),
        "tp": rng.choice([1, 2, 4, 8], rows).astype(float),
        "ep": rng.choice([1, 2, 8], rows).astype(float),
        "routing": rng.choice(["balanced", "power_law_1.2"], rows),
    }
    peaks = {"bf16": PEAK, "w4a16_mxfp4": PEAK}
    truth = calibration.predicted_s(constants, moe_columns(Table(table, H100, peaks)))
    return table | {"time_s": truth * np.exp(0.03 * rng.standard_normal(rows))}, peaks


def test_calibration_recovers_made_up_constants():
    truth = MoeConstants(compute_fraction=0.55, memory_fraction=0.7, launch_s=1.4e-5)
    mine, peaks = made_up(truth)
    entries = calibrate_moe(Table(mine, H100, peaks), date="2026-01-01", source="made up", folds=2)
    assert [(e.format, e.engine, e.kernel) for e in entries] == [("bf16", "vllm", "x_triton"), ("bf16", "any", "any")]
    for e in entries:
        found = constants_of(e)
        assert e.mape < 0.06  # the rows carry 3 % noise, 2.4 % mean absolute
        assert found.compute_fraction == pytest.approx(0.55, rel=0.1)
        assert found.memory_fraction == pytest.approx(0.7, rel=0.1)
        assert found.launch_s == pytest.approx(1.4e-5, rel=0.1)
        assert {"all", "memory"} <= set(e.bands)


def test_few_rows_are_pulled_towards_kin():
    """Eight rows alone say little about bandwidth; a table of a like GPU tells."""
    truth = MoeConstants(compute_fraction=0.55, memory_fraction=0.7, launch_s=1.4e-5)
    many, peaks = made_up(truth)
    few = {n: v[:8] for n, v in made_up(truth, seed=5)[0].items()}
    (key, (found, held, names)), *_ = held_out_moe(Table(few, H100, peaks), [Table(many, H100, peaks)], folds=2).items()
    assert key == ("bf16", "vllm", "x_triton") and len(held) == len(names) == 8
    assert found.constants.memory_fraction == pytest.approx(0.7, rel=0.1)
    assert engine.errors(held).mape < 0.06


def test_widened_weights_are_recognised():
    truth = MoeConstants(stored_bytes=2.0, memory_fraction=0.8)
    rows, peaks = made_up(truth, fmt="w4a16_mxfp4")
    first, *_ = calibrate_moe(Table(rows, H100, peaks), date="2026-01-01", source="made up", folds=2)
    assert constants_of(first).stored_bytes == 2.0


def test_benchmark_loads_follow_what_was_timed():
    rows = {
        "stack": np.array(["vllm", "sglang", "sglang"]),
        "stack_version": np.array(["0.24.0", "0.5.10", "0.5.14"]),
        "kernel": np.array(["k", "sglang_marlin_moe", "sglang_marlin_moe"]),
        "dtype": np.array(["bf16", "w4a16", "w4a16_mxfp4"]),
        "routing": np.array(["balanced"] * 3),
        **{n: np.full(3, v) for n, v in (("tokens", 512.0), ("experts", 128.0), ("topk", 8.0), ("ep", 16.0))},
    }
    tokens, loads, routings = calibration.benchmark_loads(rows)
    # 512 x 8 / 16 = 256 pairs are this rank's own; 256 tokens use it, all their 8 choices computed; or all 4,096
    assert list(tokens) == [512, 256, 512]
    assert list(loads.pairs) == [256, 2048, 4096]
    assert list(routings) == [1, 1, 1]


def test_nearest_entry():
    def made(engine_name, kernel, mape):
        return engine.Entry("bf16", engine_name, kernel, {}, 9, mape, 0.0, {}, "", "", "")

    entries = [made("vllm", "a_triton", 0.1), made("vllm", "b_cutlass", 0.2), made("any", "any", 0.3)]
    assert nearest_entry(entries, "bf16", "vllm", "b_cutlass") is entries[1]
    assert nearest_entry(entries, "bf16", "sglang", "c_triton") is entries[0]
    assert nearest_entry(entries, "bf16", "sglang", "marlin") is entries[2]
    assert nearest_entry(entries, "nvfp4", "vllm", "a_triton") is None


def test_held_out_layouts_of_real_kernels(shared):
    """H100, block-scaled fp8: the best form of the design notes is 10-12 % off here, the datasheet 71 %."""
    import pandas as pd

    d = pd.read_csv(shared / "data/kernels/moe_dev.csv")
    d = d[(d["gpu"] == "h100_sxm") & (d["dtype"] == "fp8_block")]
    table = Table({c: d[c].to_numpy() for c in d.columns}, H100, {"fp8_block": 1979e12})
    found = held_out_moe(table, folds=3)
    named = np.concatenate([held for (_, e, _), (_, held, _) in found.items() if e != "any"])
    assert engine.errors(named).rows == len(d)
    assert engine.errors(named).mape < 0.12
    assert abs(engine.errors(named).bias) < 0.05
    assert engine.errors(found["fp8_block", "any", "any"][1]).mape < 0.20
