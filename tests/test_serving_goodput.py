"""Saturation and goodput."""

import numpy as np
import pytest

from roofline.deployment import deployment
from roofline.errors import InputError
from roofline.serving.goodput import goodput, saturation_rate
from roofline.serving.steady import steady_state


@pytest.fixture(scope="module")
def llama():
    return deployment("llama-3.1-8b", "h100-sxm")


def test_saturation_is_where_overload_begins(llama):
    rate = saturation_rate(llama, isl=1000.0, osl=200.0)
    below, above = (steady_state(llama, isl=1000.0, osl=200.0, rate_per_s=f * rate) for f in (0.98, 1.02))
    assert not below.saturated and above.saturated


def test_goodput_meets_its_limits_and_no_more(llama):
    limits = {"ttft_s": 0.2, "tpot_s": 0.015}
    rate = goodput(llama, isl=1000.0, osl=200.0, **limits)
    at, beyond = (steady_state(llama, isl=1000.0, osl=200.0, rate_per_s=f * rate) for f in (1.0, 1.03))
    assert at.ttft.at(0.9) <= 0.2 and at.tpot.at(0.9) <= 0.015
    assert beyond.ttft.at(0.9) > 0.2 or beyond.tpot.at(0.9) > 0.015


def test_looser_limits_take_more_load(llama):
    rates = goodput(llama, isl=1000.0, osl=200.0, tpot_s=np.array([0.001, 0.012, 0.02, 0.04]))
    assert rates[0] == 0.0 and np.all(np.diff(rates) > 0)
    assert rates[-1] <= saturation_rate(llama, isl=1000.0, osl=200.0)
    assert goodput(llama, isl=1000.0, osl=200.0, tpot_s=0.02, quantile=0.99) < rates[2]


def test_bad_quantile(llama):
    with pytest.raises(InputError):
        goodput(llama, isl=1.0, osl=1.0, quantile=1.0)
