"""What the page asks: a choice from menus, and a load."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path

from roofline.deployment import Deployment, deployment
from roofline.errors import InputError, UnknownNameError, check_number
from roofline.parallel import Plan
from roofline.precision import PRECISIONS
from roofline.specs import library
from roofline.specs.engine import engine_names
from roofline.specs.refs import load_model

RANKS = (1, 2, 4, 8, 16, 32, 64)  # choices of tp, pp, dp and ep
KV_FORMATS = ("bf16", "fp8", "int8", "nvfp4", "fp8_ds_mla")
MOST_TOKENS, MOST_REQUESTS, MOST_USD_PER_H = 1e7, 1e5, 1e4
LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Question:
    """One deployment and load. Empty formats: what the checkpoint and the engine do. `price`: USD/h of one device."""

    model: str
    hw: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weights: str = ""
    kv: str = ""
    engine: str = "vllm"
    isl: float = 1024.0
    osl: float = 256.0
    concurrency: float = 16.0
    price: float | None = None

    @property
    def plan(self) -> Plan:
        """Its layout."""
        return Plan(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep)

    def state(self) -> dict[str, str]:
        """As the address of the page holds it."""
        return {name: _text(value) for name, value in asdict(self).items()}


def _text(value: object) -> str:
    return "" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Menu:
    """What may be asked: nothing else reaches a file or the network. Models and hardware map what the page shows to a
    name or path.
    """

    models: dict[str, str]
    hardware: dict[str, str]
    engines: tuple[str, ...]
    weights: tuple[str, ...]
    kv: tuple[str, ...]
    specs: str | None = None
    ranks: tuple[int, ...] = field(default=RANKS)

    def deployment(self, q: Question) -> Deployment:
        """The replica of a question."""
        return _deployment(
            self.models[q.model], self.hardware[q.hw], q.plan, q.weights or None, q.kv or None, q.engine, self.specs
        )


@lru_cache(maxsize=256)
def _deployment(model, hw, plan: Plan, weights, kv, engine, specs) -> Deployment:
    """Kept, so that what a deployment has tabulated is kept with it."""
    ranks = {"tp": plan.tp, "pp": plan.pp, "ep": plan.ep, "dp": plan.dp, "cp": plan.cp}
    return deployment(model, hw, **ranks, weights=weights, kv=kv, engine=engine, specs=specs)


def menu(
    models: Iterable[str | os.PathLike] = (), hardware: Iterable[str | os.PathLike] = (), specs: str | None = None
) -> Menu:
    """Everything in the library, and further models and hardware by path."""
    return Menu(
        models=_choices("model", models, specs),
        hardware=_choices("hardware", hardware, specs),
        engines=tuple(engine_names()),
        weights=("", *PRECISIONS),
        kv=("", *KV_FORMATS),
        specs=None if specs is None else str(specs),
    )


def _choices(kind: str, further: Iterable[str | os.PathLike], specs: str | None) -> dict[str, str]:
    """What the page shows -> what `deployment` takes."""
    known = {name: name for name in library.names(kind, specs)}
    for ref in map(str, further):
        key = library.aliases(kind, specs).get(library.canonical(ref), library.canonical(ref))
        if key not in known:
            load_model(ref, specs) if kind == "model" else library.hardware(ref, specs=specs)  # says what is wrong
            known[Path(ref).name or ref] = ref
    return known


def shown_name(kind: str, ref: str, choices: Mapping[str, str], specs: str | None = None) -> str:
    """How the page shows what was given by name, alias or path."""
    key = library.canonical(ref)
    for name in (key, library.aliases(kind, specs).get(key, ""), Path(ref).name):
        if name in choices:
            return name
    raise UnknownNameError(kind, ref[:80], sorted(choices), hint=f"see 'roofline list {library.LISTED[kind]}'")


def question_of(texts: Mapping[str, str], choices: Menu, start: Question) -> Question:
    """The question in an address; what it leaves out is as in `start`.

    Errors:   InputError or UnknownNameError for anything that the menus do not hold or that is out of range
    """
    known = {f.name for f in fields(Question)}
    for name, text in texts.items():
        if name not in known:
            raise UnknownNameError("field", name[:40], sorted(known))
        if len(text) > LONGEST_TEXT:
            raise InputError(f"{name}: more than {LONGEST_TEXT} characters")
    given = start.state() | dict(texts)
    for name, allowed in (
        ("model", choices.models), ("hw", choices.hardware), ("engine", choices.engines),
        ("weights", choices.weights), ("kv", choices.kv),
    ):  # fmt: skip
        if given[name] not in allowed:
            raise UnknownNameError({"hw": "hardware"}.get(name, name), given[name][:80], sorted(allowed))
    most = {"isl": MOST_TOKENS, "osl": MOST_TOKENS, "concurrency": MOST_REQUESTS}
    numbers = {name: _number(name, given[name], 1, high) for name, high in most.items()}
    ranks = {name: int(_number(name, given[name], 1, max(choices.ranks), True)) for name in ("tp", "pp", "dp", "ep")}
    price = None if not given["price"].strip() else _number("price", given["price"], 0, MOST_USD_PER_H)
    names = {name: given[name] for name in ("model", "hw", "weights", "kv", "engine")}
    return Question(**names, **ranks, **numbers, price=price)


def _number(name: str, text: str, low: float, high: float, integer: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name}: '{text[:40]}' is not a number") from None
    return check_number(name, value, low=low, high=high, integer=integer)


_LAYOUT = re.compile(r"(?:(?:tp|pp|dp|ep)[1-9]\d{0,3}[ ,+]*)+")


def layout(text: str) -> Plan:
    """The plan that a text like 'tp8 ep8' or 'tp4pp2' names.

    >>> layout("tp8ep8"), layout("TP4 PP2").gpus
    (Plan(tp=8, pp=1, ep=8, dp=1, cp=1), 8)
    """
    if not _LAYOUT.fullmatch(text.strip().lower()):
        raise InputError(f"layout: '{text[:60]}' is not one; write e.g. tp4, tp8ep8 or tp4pp2")
    return Plan(**{name: int(size) for name, size in re.findall(r"([tpde]p)(\d+)", text.lower())})
