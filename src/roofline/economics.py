"""Dollars and joules per token."""

from __future__ import annotations

from roofline.arrays import Array

SECONDS_PER_HOUR = 3600.0
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
    return (purchase_usd / (years * 8766.0) + power_w / 1000.0 * usd_per_kwh) / utilisation


def joules_per_token(power_w: Array, tokens_per_s: Array) -> Array:
    """Joules for a token: power over rate [J].

    >>> joules_per_token(700, 24)
    29.166666666666668
    """
    return power_w / tokens_per_s
