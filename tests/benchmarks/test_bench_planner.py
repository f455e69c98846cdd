"""Speed of a plan from a new process, imports and tables of steps included: timed on request, counted always."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MODELS = ["llama-3.1-70b", "deepseek-r1"]
CALLS = 4_000_000
PLAN = (
    "import roofline as rl; str(rl.plan({model!r}, traffic=rl.traffic(rate_per_s=20, isl=2000, osl=300),"
    " slo=rl.Slo(ttft_s=2, tpot_s=0.05)))"
)
TIMED = "import resource; {plan}; print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))"
COUNTED = "import cProfile, pstats; print(pstats.Stats(cProfile.Profile().run({plan!r})).total_calls)"


def printed(how: str, model: str) -> float:
    """What a new process prints that plans for a model on all shipped hardware."""
    code = how.format(plan=PLAN.format(model=model))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return float(done.stdout)


@pytest.mark.skipif("not config.getoption('benchmark_enable')", reason="its calls are counted below")
@pytest.mark.parametrize("model", MODELS)
def test_cold_start(benchmark, model):
    """Target: 5 s of processor time; an idle core takes 2 to 3."""
    benchmark.extra_info["processor_s"] = benchmark.pedantic(printed, (TIMED, model), rounds=3)


@pytest.mark.parametrize("model", MODELS)
def test_calls_of_a_cold_start(model):
    """2.2 and 2.8 million, whatever else the machine does."""
    assert printed(COUNTED, model) < CALLS
