"""Dollars and joules."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import economics
from roofline.economics import board_power_w, joules_per_token, usd_per_h_owned, usd_per_mtok, usd_per_mtok_split
from roofline.estimates import estimate

positive = st.floats(0.01, 1e6)


def test_docstrings():
    assert doctest.testmod(economics).failed == 0


def test_price_of_tokens():
    """user_cases U-slo_capacity-03: 8 GPUs at 2.50 USD/h and 12,000 output tokens/s: 0.463 USD/Mtok, to 0.1 %."""
    assert usd_per_mtok(8 * 2.5, 12000.0) == pytest.approx(0.463, rel=1e-3)


def test_tpot_leaves_the_first_token_out():
    """user_cases U-slo_capacity-02: first token at 2.0 s, 100 more in 5.0 s: 50 ms; dividing by 101 gives 69.3."""
    assert (7.0 - 2.0) / (101 - 1) == 0.05
    e = estimate("llama-3.1-8b", "h100-sxm", isl=1000, osl=101, batch=4)
    assert (e.e2e_s.value - e.ttft_s.value) / (101 - 1) == pytest.approx(e.tpot_s.value, rel=1e-12)


def test_the_definition_is_printed():
    text = str(estimate("llama-3.1-8b", "h100-sxm", isl=1000, osl=100, batch=4))
    assert "all cost over output tokens; over input and output" in text


@given(usd=positive, inputs=positive, outputs=positive, share=st.floats(0.0, 1.0))
def test_split_pays_the_whole_cost(usd, inputs, outputs, share):
    a, b = usd_per_mtok_split(usd, inputs, outputs, share)
    per_s = a * inputs / 1e6 + b * outputs / 1e6
    assert per_s * 3600.0 == pytest.approx(usd, rel=1e-9)


@given(c=st.floats(-0.5, 1.5), busy=st.floats(0.0, 1.0), tdp=st.floats(10.0, 2000.0))
def test_power_is_between_idle_and_tdp(c, busy, tdp):
    assert 0.1 * tdp * (1 - 1e-12) <= board_power_w(tdp, c, busy) <= tdp * (1 + 1e-12)


def test_power_of_decode():
    """arXiv 2605.11999: decode draws 137 to 300 W of an H200's 700; the model gives the upper end."""
    assert board_power_w(700.0, 0.0) == pytest.approx(300.0, rel=0.02)
    assert np.all(np.diff(board_power_w(700.0, np.linspace(0.0, 1.0, 9))) > 0)


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_power_of_decode_under_a_cap(batch):
    """Splitwise (arXiv 2311.18677, insight VI): on H100 a cap of 350 W of 700 costs the token phase almost nothing."""
    step = estimate("llama-2-70b", "h100-sxm", tp=8, isl=1000, osl=200, batch=batch).decode
    power = board_power_w(700.0, step.busy_s("compute") / step.total_s)
    assert 300.0 < power <= 350.0


def test_busy_matrix_units_draw_power_before_they_set_the_pace():
    """Power rises with the batch while decode is still bound by memory, and prompts of many users count for each."""
    shares = [estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=500, osl=500, concurrency=c).compute_share
              for c in (1, 16, 64, 128)]  # fmt: skip
    assert np.all(np.diff(shares) > 0.02)
    step = estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=500, osl=500, concurrency=64).decode
    assert step.parts_s["compute"] < 0.01 * step.total_s < 0.1 * step.busy_s("compute")


def test_prices_of_input_and_output_follow_the_time_they_take():
    """Longer outputs shift cost to them; together they pay the whole, and a lone prompt takes what its step does."""
    short, long = (estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=2000, osl=n, concurrency=16) for n in (50, 2000))
    assert short.input_share > 2 * long.input_share
    for e in (short, long):
        price_in, price_out = e.usd_per_mtok_split
        assert price_in * e.isl / e.osl + price_out == pytest.approx(e.usd_per_mtok_output.value)
    one = estimate("llama-3.1-8b", "h100-sxm", isl=1000, osl=11, batch=1)
    assert one.input_share == pytest.approx(one.ttft_s.value / one.e2e_s.value)


def test_joules():
    assert joules_per_token(board_power_w(700.0, 1.0) * 8, 12000.0) == pytest.approx(5600.0 / 12000.0)


def test_energy_of_an_estimate():
    """Bound by memory it draws 43 % of TDP (137 to 300 W of 700 were measured), in a prompt nearly all of it."""
    decode = estimate("llama-3.1-8b", "h200-sxm", isl=100, osl=1000, batch=1)
    assert decode.joules_per_token_expected / decode.joules_per_token == pytest.approx(0.433, abs=0.02)
    prompt = estimate("llama-3.1-8b", "h200-sxm", isl=30_000, osl=1, batch=1)
    assert 0.85 < prompt.joules_per_token_expected / prompt.joules_per_token <= 1.0


@given(price=positive, years=st.floats(1.0, 10.0), power=positive, kwh=st.floats(0.01, 1.0), use=st.floats(0.05, 1.0))
def test_owned_hours(price, years, power, kwh, use):
    """Half the utilisation costs twice as much; the purchase is paid back over its life."""
    one = usd_per_h_owned(price, years, power, kwh, use)
    assert usd_per_h_owned(price, years, power, kwh, use / 2) == pytest.approx(2 * one)
    assert usd_per_h_owned(price, years, 0.0, kwh, 1.0) * years * 8766.0 == pytest.approx(price)
