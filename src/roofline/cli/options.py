"""Options that several commands share: how a deployment and a load are described."""

from __future__ import annotations

from collections.abc import Callable

import click

from roofline.errors import InputError, RooflineError, UnknownNameError
from roofline.files import check_target
from roofline.units import parse


class Tokens(click.ParamType):
    """A token count: '2000', '128k' (thousands), '128Ki' (1024s), or by the day '5b' (10^9), '1t' (10^12)."""

    name = "tokens"
    factors = (("ki", 1024.0), ("mi", 1048576.0), ("k", 1e3), ("m", 1e6), ("b", 1e9), ("t", 1e12))

    def convert(self, value, param, ctx):
        return self.read(param.name if param else "tokens", value)

    def read(self, name: str, value) -> float:
        """The tokens that a text means; `name` is what the message names."""
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip().lower().replace("_", "").replace(",", "")
        suffix, factor = next(((s, f) for s, f in self.factors if text.endswith(s)), ("", 1.0))
        try:
            return float(text.removesuffix(suffix)) * factor
        except ValueError:
            raise InputError(f"{name}: '{value}' is not a number of tokens; e.g. 2000 or 128k") from None


TOKENS = Tokens()


class OutFile(click.Path):
    """A file to write: that it can be written is known before the work for it starts."""

    def __init__(self):
        super().__init__(dir_okay=False)

    def convert(self, value, param, ctx):
        try:
            check_target(value)
        except InputError as error:
            raise InputError(f"{max(param.opts, key=len).lstrip('-')}: {error}") from None
        return super().convert(value, param, ctx)


OUT_FILE = OutFile()


class Names(click.ParamType):
    """A text that names something in the library, which the shell can complete; files are allowed too."""

    name = "text"

    def __init__(self, kind: str):
        self.kind = kind

    def convert(self, value, param, ctx):
        return value

    def shell_complete(self, ctx, param, incomplete):
        from click.shell_completion import CompletionItem

        from roofline.errors import RooflineError

        try:
            found = [n for n in names_of(self.kind, ctx.params.get("specs")) if n.startswith(incomplete)]
        except RooflineError:  # a broken specs folder must not break the shell
            found = []
        return [CompletionItem(n) for n in found] or [CompletionItem(incomplete, type="file")]


def names_of(kind: str, specs: str | None = None) -> list[str]:
    """What is known of a kind: model, hardware, engine or format."""
    if kind == "engine":
        from roofline.specs.engine import engine_names

        return engine_names()
    if kind == "format":
        from roofline.precision import FORMATS

        return list(FORMATS)
    from roofline.specs import library

    return library.names(kind, specs)


MODEL, HARDWARE, ENGINE, FORMAT = (Names(kind) for kind in ("model", "hardware", "engine", "format"))

# name, type, default, help
_DEPLOYMENT = (
    ("hw", HARDWARE, "h100-sxm", "Hardware: a name of 'roofline list hardware', or a YAML."),
    ("tp", int, 1, "Tensor-parallel ranks."),
    ("pp", int, 1, "Pipeline stages."),
    ("ep", int, 1, "Expert-parallel ranks among the tp x dp."),
    ("dp", int, 1, "Attention data-parallel groups of one replica."),
    ("cp", int, 1, "Context-parallel ranks."),
    ("weights", FORMAT, None, "Weight format: bf16, fp8, nvfp4, int4, q4_k_m ...; default: the checkpoint's."),
    ("kv", FORMAT, None, "KV-cache format: bf16, fp8 ...; default: what the engine does."),
    ("engine", ENGINE, "vllm", "Engine profile; 'ideal' is the datasheet roofline."),
    ("specs", click.Path(), None, "Folder with your own hardware_specs/ and model_specs/."),
)
_LOAD = (
    ("isl", TOKENS, "1024", "Prompt tokens of a request: 2000, 128k."),
    ("osl", TOKENS, "256", "Output tokens of a request."),
    ("cached", TOKENS, "0", "Prompt tokens that are already in the KV cache."),
    ("batch", float, None, "Requests that start together and finish together."),
    ("concurrency", float, None, "Requests always in flight (continuous batching)."),
    ("rate", float, None, "Requests that arrive per second (open loop)."),
    ("price", str, None, "USD per device-hour instead of the price list's: 2.5 or '2.5 USD/h'."),
)


def _options(table) -> Callable[[Callable], Callable]:
    def decorate(function: Callable) -> Callable:
        for name, kind, default, text in reversed(table):
            shown = default is not None
            function = click.option(f"--{name}", type=kind, default=default, show_default=shown, help=text)(function)
        return function

    return decorate


SPECULATION = "DRAFTER:DRAFTS:ACCEPTANCE"

deployment_options = _options(_DEPLOYMENT)
load_options = _options(_LOAD)
speculation_option = click.option(
    "--speculation", default=None, metavar=SPECULATION,
    help="Speculative decoding: eagle:3:0.8, mtp:1:0.85, llama-3.2-1b:4:0.7; acceptance by position after commas, or "
         "above 1 the mean tokens of a cycle.",
)  # fmt: skip


def changes(text: str) -> dict[str, str | int]:
    """What a text changes of a deployment.

    >>> changes("tp=2, engine=vllm==0.11")
    {'tp': 2, 'engine': 'vllm==0.11'}
    """
    kinds = {name: kind for name, kind, _, _ in _DEPLOYMENT if name != "specs"}
    found: dict[str, str | int] = {}
    for part in text.split(","):
        name, sign, value = (word.strip() for word in part.partition("="))
        if not sign or not value:
            raise InputError(f"then: '{part.strip()}' is not NAME=VALUE, e.g. tp=2")
        if name not in kinds:
            raise UnknownNameError("part of a deployment", name, list(kinds))
        if kinds[name] is int and not value.isdecimal():
            raise InputError(f"{name}: '{value}' is not a whole number of ranks")
        found[name] = int(value) if kinds[name] is int else value
    return found


def usd_per_h(price: str | None) -> float | None:
    """The price option in USD/h."""
    if price is None:
        return None
    try:
        return float(price)
    except ValueError:
        pass
    try:
        return parse(price, "USD/h")
    except RooflineError as error:
        raise InputError(f"price: {error}") from None
