"""Options that several commands share: how a deployment and a load are described."""

from __future__ import annotations

from collections.abc import Callable

import click

from roofline.errors import InputError
from roofline.units import parse


class Tokens(click.ParamType):
    """A token count: '2000', '128k' (1000s) or '128Ki' (1024s)."""

    name = "tokens"

    def convert(self, value, param, ctx):
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip().replace("_", "").replace(",", "")
        factors = {"ki": 1024.0, "mi": 1048576.0, "k": 1e3, "m": 1e6}
        for suffix, factor in factors.items():
            if text.lower().endswith(suffix):
                text, scale = text[: -len(suffix)], factor
                break
        else:
            scale = 1.0
        try:
            return float(text) * scale
        except ValueError:
            raise InputError(
                f"{param.name if param else 'tokens'}: '{value}' is not a number of tokens, e.g. 2000 or 128k"
            ) from None


TOKENS = Tokens()


def deployment_options(function: Callable) -> Callable:
    """--hw, the parallel degrees, formats, engine and spec folder."""
    for option in reversed(
        (
            click.option("--hw", default="h100-sxm", show_default=True, help="Hardware: a name of 'roofline list hardware', or a YAML."),
            click.option("--tp", default=1, type=int, show_default=True, help="Tensor-parallel ranks."),
            click.option("--pp", default=1, type=int, show_default=True, help="Pipeline stages."),
            click.option("--ep", default=1, type=int, show_default=True, help="Expert-parallel ranks among the tp x dp."),
            click.option("--dp", default=1, type=int, show_default=True, help="Attention data-parallel groups of one replica."),
            click.option("--cp", default=1, type=int, show_default=True, help="Context-parallel ranks."),
            click.option("--weights", default=None, help="Weight format (bf16, fp8, nvfp4, int4, q4_k_m, ...); default: the checkpoint's."),
            click.option("--kv", default=None, help="KV-cache format (bf16, fp8, ...); default: what the engine does."),
            click.option("--engine", default="vllm", show_default=True, help="Engine profile; 'ideal' is the datasheet roofline."),
            click.option("--specs", default=None, type=click.Path(), help="Folder with your own hardware_specs/ and model_specs/."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def load_options(function: Callable) -> Callable:
    """--isl, --osl, --cached, --batch, --concurrency, --price."""
    for option in reversed(
        (
            click.option("--isl", default="1024", type=TOKENS, show_default=True, help="Prompt tokens of a request (2000, 128k)."),
            click.option("--osl", default="256", type=TOKENS, show_default=True, help="Output tokens of a request."),
            click.option("--cached", default="0", type=TOKENS, show_default=True, help="Prompt tokens already in the KV cache."),
            click.option("--batch", default=None, type=float, help="Requests that start together and finish together."),
            click.option("--concurrency", default=None, type=float, help="Requests always in flight (continuous batching)."),
            click.option("--price", default=None, help="USD per device-hour, overrides the price list (2.5 or '2.5 USD/h')."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def usd_per_h(price: str | None) -> float | None:
    """The price option in USD/h."""
    if price is None:
        return None
    try:
        return float(price)
    except ValueError:
        return parse(price, "USD/h")
