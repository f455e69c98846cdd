"""The public names, and that each is there."""

from __future__ import annotations

import doctest

import pytest

import roofline


def test_public_names():
    """A name that is added or taken away is a decision: change this list with it."""
    assert sorted(roofline.__all__) == [
        "Deployment", "Estimate", "Plan", "Precision", "Recommendation", "RooflineError", "Slo", "Sweep",
        "__version__", "compare", "decode_regime", "deploy", "deployed", "estimate", "hardware", "levers", "load_model",
        "measure_decode_utilization", "plan",
        "plot", "simulate", "speculate", "sweep", "traffic", "write_report",
    ]  # fmt: skip


@pytest.mark.parametrize("name", roofline.__all__)
def test_public_name_is_there(name):
    assert getattr(roofline, name) is not None
    assert name in dir(roofline)


def test_unknown_name():
    with pytest.raises(AttributeError, match="estimat"):
        roofline.estimat  # noqa: B018


def test_docstring():
    assert doctest.testmod(roofline).failed == 0


def test_results_show_themselves_at_the_prompt():
    """What a session prints is what the command prints, or a line; never the records inside."""
    e = roofline.estimate("llama-3.1-70b", "h100-sxm", tp=4, concurrency=32)
    levers = roofline.levers("llama-3.1-8b", families=["weight format"])
    load = roofline.traffic(rate_per_s=5, isl=2000, osl=500)
    found = roofline.plan("llama-3.1-8b", "h100-sxm", traffic=load, max_gpus=1)
    assert (repr(e), repr(levers), repr(found)) == (str(e), str(levers), str(found))
    few = roofline.sweep("llama-3.1-8b", "h100-sxm", batch=[1, 8])
    short = e.deployment, e.deployment.accelerator, e.deployment.engine, e.decode, few, few.best("tpot_s")
    assert all(len(repr(record)) < 400 for record in short)
