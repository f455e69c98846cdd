"""Tabulated steps against the step model they come from."""

import numpy as np
import pytest

from roofline.deployment import deployment
from roofline.kernels.host import launches
from roofline.serving.grids import Axis
from roofline.serving.steps import TOKENS, step_table
from roofline.workload import Sequences

DEPLOYMENTS = [
    ("llama-3.1-8b", "h100-sxm", {}),
    ("llama-3.1-70b", "h200-sxm", {"tp": 4, "weights": "fp8_static", "kv": "fp8"}),
    ("deepseek-r1", "b200-sxm", {"tp": 8, "engine": "sglang"}),
    ("qwen3.5-397b-a17b", "b200-sxm", {"tp": 8, "engine": "sglang", "weights": "fp8_block"}),
    ("gpt-oss-120b", "h200-sxm", {"tp": 2, "engine": "tensorrt-llm"}),
    ("deepseek-r1", "gb200", {"dp": 8, "ep": 8, "engine": "tensorrt-llm", "weights": "nvfp4_mlp"}),
]


@pytest.fixture(params=DEPLOYMENTS, ids=lambda d: f"{d[0]} on {d[1]}")
def where(request):
    model, gpu, more = request.param
    return deployment(model, gpu, **more)


def test_decode_table_follows_the_step_model(where):
    """Off the grid. The table smooths the jumps where a batch fills one tile of a GEMM and begins another."""
    rng = np.random.default_rng(0)
    batch, context = rng.uniform(1, 300, 80).round(), rng.uniform(64, 30_000, 80).round()
    table = step_table(where).decode(batch, context)
    truth = where.decode_step(batch * where.plan.dp, context).total_s
    errors = np.abs(table / truth - 1.0)
    assert np.median(errors) < 0.01 and np.quantile(errors, 0.9) < 0.05 and errors.max() < 0.20


def test_prompt_table_is_within_a_few_per_cent(where):
    """Steps of prompts alone and beside decodes; what a profile adds per layer and launch is taken off."""
    rng = np.random.default_rng(1)
    new, past = rng.uniform(200, 8000, 60).round(), rng.choice([0.0, 1000.0, 5000.0], 60)
    batch = rng.uniform(1, 64, 60).round()
    table = step_table(where)
    steps = table.beside(batch, 1000.0, new, past)
    lanes = table.tokens(batch + new) + steps.fixed + steps.first
    dp = where.plan.dp
    truth = where.step(Sequences(batch * dp, 1.0, 1000.0), Sequences(float(dp), new, past)).total_s
    errors = np.abs(table.combined(lanes) / truth - 1.0)
    assert np.median(errors) < 0.03 and errors.max() < 0.15


def test_axis_interpolates_and_extrapolates():
    axis = Axis(2, 3)
    values = 3.0 * axis.points + 1.0
    for x in (1.0, 1.5, 7.9, 8.0, 100.0):
        i, share = axis.place(np.array(x))
        assert values[i] + share * (values[i + 1] - values[i]) == pytest.approx(3.0 * x + 1.0)
    assert axis.place(np.array(0.1)) == (0, 0.0)
    assert TOKENS.points[-1] == 2.0**20


def test_steps_with_prompts_cost_more(where):
    steps = step_table(where).beside(np.array([1.0, 16.0, 64.0]), 1000.0, 900.0, 0.0)
    plain, one, four = steps.decode_s(), steps.with_prompts_s(1.0), steps.with_prompts_s(4.0)
    assert np.all(plain < one) and np.all(one <= four)
    assert np.all(steps.with_prompts_s(0.25) <= one)


def test_an_eager_step_is_never_shorter_than_its_launches(where):
    table = step_table(where)
    assert table.beside(1.0, 100.0, 600.0, 0.0).with_prompts_s(1.0) >= table.launch_s
    assert launches(where.step(Sequences(1.0, 1.0, 10.0)).times[0].op) >= 1.0


def test_a_schedule_that_overlaps_is_never_slower():
    plain = deployment("llama-3.1-70b", "h100-sxm", tp=4)
    profile = plain.engine
    for schedule in ("overlapped", "megakernel"):
        step = profile.step.model_copy(update={"schedule": schedule})
        other = plain.with_(engine=profile.model_copy(update={"step": step}))
        batch = np.array([1.0, 32.0, 256.0])
        assert np.all(step_table(other).decode(batch, 1000.0) <= step_table(plain).decode(batch, 1000.0) * (1 + 1e-9))


@pytest.mark.parametrize(
    ("model", "gpu", "plan"),
    [("llama-3.1-8b", "h100-sxm", {"pp": 4}), ("llama-3.1-70b", "h100-sxm", {"tp": 4, "pp": 4}),
     ("deepseek-r1", "h200-sxm", {"tp": 8, "pp": 4}), ("gemma-3-4b", "l40s", {"pp": 2})],
)  # fmt: skip
def test_pipeline_decodes_wait_for_the_slowest_stage_head_included(model, gpu, plan):
    """Few sequences: a pass. More: the slowest stage for each of the micro-batches; the last stage has the head."""
    where = deployment(model, gpu, **plan)
    batch = np.array([1.0, 2.0, 3.0, 4.0, 6.0, 16.0, 256.0])
    assert step_table(where).decode(batch, 1000.0) == pytest.approx(where.decode_step(batch, 1000.0).total_s, rel=0.02)


def test_points_of_arrays_are_those_of_scalars(where):
    """Prompts, batches and lengths along axes of their own: each point is the step of its numbers."""
    table, batch, new, prompts = step_table(where), np.array([1.0, 20.0]), np.array([300.0, 2000.0]), [0.5, 1.2, 3.0]
    every = table.beside(batch[:, None, None], 900.0, new[:, None], 0.0).with_prompts_s(np.array(prompts))
    shared = table.beside(20.0, 900.0, 2000.0, 0.0).with_prompts_s(np.array(prompts))
    for k, count in enumerate(prompts):
        for i, b in enumerate(batch):
            one = float(table.beside(b, 900.0, 2000.0, 0.0).with_prompts_s(count))
            assert every[i, 1, k] == pytest.approx(one, rel=1e-12)
        assert shared[k] == pytest.approx(one, rel=1e-12)
