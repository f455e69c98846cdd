"""Dollars and joules per token."""

from __future__ import annotations

import numpy as np

from roofline.arrays import Array

SECONDS_PER_HOUR = 3600.0
HOURS_PER_YEAR = 8766.0  # of 365.25 days
MTOK = 1e6


def usd_per_mtok(usd_per_h: Array, tokens_per_s: Array) -> Array:
    """Dollars for a million tokens.

    Formula:  price / (3600 rate) 10^6
    Args:     usd_per_h: of everything that makes the tokens [USD/h]; tokens_per_s: sustained [1/s]
    Returns:  [USD/Mtok]; which tokens is what the rate counts (output only, or input and output)
    Source:   definition

    >>> round(usd_per_mtok(8 * 2.5, 12000), 3)
    0.463
    """
    return usd_per_h / (tokens_per_s * SECONDS_PER_HOUR) * MTOK


def usd_per_h_owned(purchase_usd: Array, years: Array, power_w: Array, usd_per_kwh: Array, utilisation: Array) -> Array:
    """Dollars per useful hour of hardware that one owns.

    Formula:  (purchase / lifetime hours + power x price of energy) / utilisation
    Args:     purchase_usd [USD], years [a], power_w at the plug, cooling included [W], usd_per_kwh [USD/kWh],
              utilisation: share of the hours that serve traffic [-]
    Returns:  [USD/h]
    Assumes:  straight-line depreciation, power drawn whether serving or not
    Source:   definition

    >>> round(usd_per_h_owned(30_000, 4, 1000, 0.1, 0.5), 2)
    1.91
    """
    return (purchase_usd / (years * HOURS_PER_YEAR) + power_w / 1000.0 * usd_per_kwh) / utilisation


def joules_per_token(power_w: Array, tokens_per_s: Array) -> Array:
    """Joules for a token.

    Formula:  power / rate
    Args:     power_w of all devices [W], tokens_per_s [1/s]
    Returns:  [J]
    Source:   definition

    >>> joules_per_token(700, 24)
    29.166666666666668
    """
    return power_w / tokens_per_s


# Share of the span between idle and TDP that a device draws while memory alone is busy, and idle over TDP. H200 in
# decode: 137 to 300 W of 700 (arXiv 2605.11999, abstract: "decode draws only 137-300 W on a 700 W GPU"); H100: a cap of
# 350 W of 700 costs decodes almost no time (Splitwise, arXiv 2311.18677, section III-E, insight VI), while prompts use
# the whole budget. Both are of one GPU family: a band, not a calibration.
IDLE_SHARE = 0.10
MEMORY_BOUND_SHARE = 0.37


def board_power_w(tdp_w: Array, compute_share: Array = 1.0, busy_share: Array = 1.0) -> Array:
    """Power of a device while it serves [W].

    Formula:  idle + busy x (TDP - idle) x (m + (1 - m) c),  idle = 0.10 TDP, m = 0.37
    Args:     tdp_w [W]; compute_share c: part of the busy time in which matrix units compute (prompts, large
              batches) [-]; busy_share: part of the time in which a step runs [-]
    Returns:  [W], between idle and TDP
    Assumes:  memory is busy throughout and draws m of the span; matrix units draw in proportion to the time in which
              they are busy, whether or not they set the pace; clocks are not lowered
    Error:    not measured here. Decode on H200: 303 W for a batch of one, the upper end of 137 to 300 W; on H100 below
              the 350 W that Splitwise's cap leaves. A practitioner's reading of a served 70B in fp8 (480 and 520 W a
              GPU at 64 and 128 requests, device not named) is a fifth above this
    Source:   arXiv 2605.11999 (decode on H200), arXiv 2311.18677 (power caps on H100); TDP is the vendor's bound

    >>> round(float(board_power_w(700, 0.0))), float(board_power_w(700, 1.0))
    (303, 700.0)
    """
    idle = IDLE_SHARE * np.asarray(tdp_w, float)
    activity = MEMORY_BOUND_SHARE + (1.0 - MEMORY_BOUND_SHARE) * np.clip(compute_share, 0.0, 1.0)
    return idle + np.clip(busy_share, 0.0, 1.0) * (tdp_w - idle) * activity


def usd_per_mtok_split(usd_per_h: Array, input_tokens_per_s: Array, output_tokens_per_s: Array, input_share: Array):
    """Dollars for a million input tokens and for a million output tokens, when both are sold.

    Formula:  input: share x cost / input tokens; output: (1 - share) x cost / output tokens
    Args:     usd_per_h [USD/h] of everything; input_tokens_per_s, output_tokens_per_s [1/s]; input_share [-]: part of
              the devices' time that prompts take
    Returns:  (input, output) [USD/Mtok]; together they pay the whole cost, whatever the share
    Source:   definition

    >>> tuple(round(x, 3) for x in usd_per_mtok_split(20.0, 10_000.0, 2_000.0, 0.4))
    (0.222, 1.667)
    """
    return (
        usd_per_mtok(usd_per_h * input_share, input_tokens_per_s),
        usd_per_mtok(usd_per_h * (1.0 - input_share), output_tokens_per_s),
    )


def usd_per_month(usd_per_h: Array) -> Array:
    """Dollars per month of 730.5 hours.

    Formula:  price 8766 / 12
    Args:     usd_per_h [USD/h]
    Returns:  [USD]
    Source:   definition; a year has 365.25 days

    >>> usd_per_month(2.0)
    1461.0
    """
    return usd_per_h * HOURS_PER_YEAR / 12.0
