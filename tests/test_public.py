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
