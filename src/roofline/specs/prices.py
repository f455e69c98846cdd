"""Dollars per hour of one device, from dated and sourced quotes in `hardware_specs/prices.yaml`.

A price nobody read is None, never a guess; every function takes the user's own price instead.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from roofline.errors import InputError, check_number
from roofline.specs import library
from roofline.specs.hardware import Accelerator, Block, Text
from roofline.specs.yaml_file import read_yaml
from roofline.units import UsdPerHour, parse

Tier = Literal["hyperscaler", "specialist", "long-tail"]
TIERS: tuple[str, ...] = get_args(Tier)


class Quote(Block):
    """One price of one device-hour: a figure, or the range of a price index."""

    price: UsdPerHour | tuple[UsdPerHour, UsdPerHour]
    tier: Tier
    provider: Text | None = None
    terms: Text = "on-demand"
    date: Text
    source: Text

    @property
    def usd_per_hour(self) -> float:
        """The figure, or the middle of the range [USD/h]."""
        return sum(self.price) / 2 if isinstance(self.price, tuple) else self.price

    def __str__(self) -> str:
        who = self.provider or f"{self.tier} range"
        return f"{self.usd_per_hour:g} USD/h ({who}, {self.terms}, {self.date})"


class PriceList(Block):
    """What `prices.yaml` holds."""

    sources: dict[Text, Text]
    prices: dict[Text, Annotated[tuple[Quote, ...], Field(min_length=1)]]

    @model_validator(mode="after")
    def _sourced(self) -> PriceList:
        for name, quotes in self.prices.items():
            for quote in quotes:
                if quote.source not in self.sources:
                    raise ValueError(f"{name}: source '{quote.source}' is not among sources")
        return self


def quotes(accelerator: Accelerator | str, specs: str | os.PathLike | None = None) -> tuple[Quote, ...]:
    """Every quote for a device, the default first, the user's before the shipped; empty where no price was read."""
    name = accelerator.name if isinstance(accelerator, Accelerator) else library.hardware(accelerator, specs=specs).name
    return tuple(q for listed in _price_lists(specs) for q in listed.prices.get(name, ()))


def priced(specs: str | os.PathLike | None = None) -> list[str]:
    """Names of the devices that have a quote.

    >>> "h100-sxm" in priced(), "gb300" in priced()
    (True, False)
    """
    return list(dict.fromkeys(name for listed in _price_lists(specs) for name in listed.prices))


def _price_lists(specs: str | os.PathLike | None) -> list[PriceList]:
    roots = [*library.user_roots("hardware", specs), library.spec_root("hardware")]
    files = [path for root in roots if (path := root / "prices.yaml").is_file()]
    return [_price_list(path, path.stat().st_mtime_ns) for path in files]


def quote(
    accelerator: Accelerator | str,
    *,
    tier: str | None = None,
    provider: str | None = None,
    specs: str | os.PathLike | None = None,
) -> Quote | None:
    """The first quote that matches; None where there is none."""
    if tier is not None and tier not in TIERS:
        raise InputError(f"tier: '{tier}' is not one of {', '.join(TIERS)}")
    for candidate in quotes(accelerator, specs):
        if tier in (None, candidate.tier) and provider in (None, candidate.provider):
            return candidate
    return None


def usd_per_hour(
    accelerator: Accelerator | str,
    override: float | str | None = None,
    *,
    tier: str | None = None,
    provider: str | None = None,
    specs: str | os.PathLike | None = None,
) -> float | None:
    """Dollars per hour of one device [USD/h]: `override` (a number, or '2.50 USD/h') if given, else the first matching
    quote, else None.

    >>> usd_per_hour("h100-sxm"), usd_per_hour("h100-sxm", tier="hyperscaler"), usd_per_hour("gb300")
    (2.95, 4.25, None)
    """
    if isinstance(override, str):
        return parse(override, "USD/h")
    if override is not None:
        return float(check_number("usd_per_hour", override))
    found = quote(accelerator, tier=tier, provider=provider, specs=specs)
    return found.usd_per_hour if found else None


@lru_cache(maxsize=8)
def _price_list(path: Path, _changed: int) -> PriceList:
    return library.build(PriceList, read_yaml(path), where=path.name)
