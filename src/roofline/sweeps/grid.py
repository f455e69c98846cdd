"""Which points a sweep has: every name its own axis, structure outside, numbers inside."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from roofline.arrays import cuts
from roofline.deployment import Deployment
from roofline.errors import InputError, UnknownNameError, check_number, check_numbers
from roofline.serving.load import KNOBS
from roofline.specs.engine import Engine
from roofline.specs.hardware import Accelerator
from roofline.specs.model import Model

# What changes the ops themselves: one deployment each.
STRUCTURE = ("model", "hw", "tp", "pp", "ep", "dp", "cp", "weights", "kv", "engine", "speculation")
LOADS = ("batch", "concurrency", "rate_per_s")
# What is only a number: one array axis each.
NUMBERS = ("isl", "osl", "cached", *LOADS, "usd_per_h", *KNOBS)
WHOLE = ("tp", "pp", "ep", "dp", "cp")

# Points evaluated at once: few enough for intermediates of steady states to stay in the cache, many beside what a call
# costs whatever the number of points; steps have many ops.
BLOCK, STEP_BLOCK = 1 << 15, 1 << 16


@dataclass(frozen=True)
class Block:
    """A part of a grid: one deployment, and a slice of every numeric dimension."""

    case: int
    slices: tuple[slice, ...]
    size: int


@dataclass(frozen=True)
class Grid:
    """The points of a sweep. Dimensions are the structural names in order, then the numeric ones.

    `together` are numeric names that share one dimension, as pairs and not as all combinations.
    """

    structure: Mapping[str, tuple[Any, ...]]
    numbers: Mapping[str, np.ndarray]
    swept: tuple[str, ...]  # names that were given as a list: the dimensions of a result
    together: tuple[str, ...] = ()
    specs: str | Path | None = None

    @property
    def load(self) -> str:
        """How the load is given: batch, concurrency or rate_per_s."""
        return next(name for name in LOADS if name in self.numbers)

    @cached_property
    def cases(self) -> list[dict[str, Any]]:
        """Every combination of structural values, the last name fastest."""
        return [dict(zip(self.structure, values)) for values in itertools.product(*self.structure.values())]

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Numeric names by dimension."""
        free = [(name,) for name in self.numbers if name not in self.together]
        return free + ([self.together] if self.together else [])

    @cached_property
    def inner_shape(self) -> tuple[int, ...]:
        """Lengths of the numeric dimensions, swept or not."""
        return tuple(len(self.numbers[names[0]]) for names in self.groups)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions of a result."""
        return tuple(len(values) for _, values in self.dimensions)

    @cached_property
    def dimensions(self) -> list[tuple[tuple[str, ...], tuple[Any, ...]]]:
        """Names and values of every dimension of a result; of names that go together, tuples of values."""
        outer = [((name,), values) for name, values in self.structure.items() if name in self.swept]
        inner = [
            (names, tuple(zip(*(self.numbers[n].tolist() for n in names))) if len(names) > 1
             else tuple(self.numbers[names[0]].tolist()))
            for names in self.groups if any(n in self.swept for n in names)
        ]  # fmt: skip
        return outer + inner

    @property
    def size(self) -> int:
        """How many points there are."""
        return len(self.cases) * int(np.prod(self.inner_shape))

    def blocks(self, most: int | None = None) -> Iterator[Block]:
        """The grid in order (the last dimension fastest), in blocks of at most `most` points of one deployment."""
        usual = STEP_BLOCK if self.load == "batch" else BLOCK
        most = usual if most is None else min(most, usual)
        for case in range(len(self.cases)):
            for slices in cuts(self.inner_shape, most):
                yield Block(case, slices, int(np.prod([s.stop - s.start for s in slices])))

    def values(self, block: Block) -> dict[str, np.ndarray]:
        """Numeric inputs of a block as arrays that broadcast: each on its own dimension."""
        out = {}
        for dimension, (names, cut) in enumerate(zip(self.groups, block.slices)):
            tail = (1,) * (len(self.groups) - dimension - 1)
            for name in names:
                out[name] = self.numbers[name][cut].reshape((-1, *tail))
        return out

    def reduced(self) -> tuple[int, ...]:
        """Shape of a result with every dimension, from which those that are not swept are dropped."""
        return (len(self.cases), *self.inner_shape)

    def coordinate(self, name: str) -> np.ndarray:
        """Values of a swept name, on its own dimension of a result."""
        for dimension, (names, _) in enumerate(self.dimensions):
            if name in names:
                tail = (1,) * (len(self.dimensions) - dimension - 1)
                values = self.numbers.get(name)
                return named(self.structure[name], tail) if values is None else values.reshape((-1, *tail))
        raise UnknownNameError("axis", name, self.swept)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that decides what the points are."""
        told = {name: [_text(v) for v in values] for name, values in self.structure.items()}
        told |= {name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in self.numbers.items()}
        return hashlib.sha256(json.dumps([told, self.together], sort_keys=True).encode()).hexdigest()[:16]


def named(values: Iterable[Any], tail: tuple[int, ...] = ()) -> np.ndarray:
    """Structural values as an array: whole numbers as they are, specs by their names."""
    values = list(values)
    if all(isinstance(v, int) for v in values):
        return np.array(values).reshape((-1, *tail))
    return np.array([label(v) for v in values], dtype=object).reshape((-1, *tail))


def label(value: Any) -> Any:
    """A structural value as a table shows it: specs by name, defaults as 'default'."""
    if value is None:
        return "default"
    return getattr(value, "name", value) if not isinstance(value, (str, int)) else value


def _text(value: Any) -> str:
    return value.model_dump_json() if hasattr(value, "model_dump_json") else repr(value)


def _listed(name: str, value: Any) -> tuple[list[Any], bool]:
    """A value as a list, and whether it was one."""
    if value is None or isinstance(value, (str, Path, Model, Accelerator, Engine, Deployment)) or np.ndim(value) == 0:
        if not isinstance(value, (range, list, tuple, set, np.ndarray)) or np.ndim(value) == 0:
            return [value], False
    values = value.tolist() if isinstance(value, np.ndarray) else list(value)
    if not values:
        raise InputError(f"{name}: an empty list leaves no points")
    return values, True


def grid_of(inputs: Mapping[str, Any], together: Iterable[str] = (), specs: str | Path | None = None) -> Grid:
    """The grid that keyword arguments describe: single values are fixed, lists are axes."""
    structure, numbers, swept = {}, {}, []
    given = [name for name in LOADS if inputs.get(name) is not None]
    if len(given) > 1:
        raise InputError(f"give one of batch, concurrency and rate_per_s, not {' and '.join(given)}")
    for name in (*STRUCTURE, *NUMBERS):
        value = inputs.get(name)
        if value is None and name not in STRUCTURE:
            continue
        values, listed = _listed(name, value)
        swept += [name] if listed else []
        if name not in STRUCTURE:
            numbers[name] = _numbers(name, values)
        else:
            structure[name] = tuple(_whole(name, v) for v in values) if name in WHOLE else tuple(values)
    if not given:
        numbers["batch"] = np.ones(1)
    pairs = tuple(together)
    for name in pairs:
        if name not in numbers or name not in swept:
            allowed = ", ".join(n for n in numbers if n in swept)
            raise InputError(f"together: '{name}' is not given as a list of numbers; allowed: {allowed}")
    if len({len(numbers[n]) for n in pairs}) > 1:
        raise InputError(f"together: {' and '.join(pairs)} have different lengths")
    if "cached" in numbers:
        paired = {"isl", "cached"} <= set(pairs)
        room = numbers["isl"] - 1.0 - numbers["cached"] if paired else numbers["isl"].min() - 1.0 - numbers["cached"]
        if (over := np.flatnonzero(room < 0)).size:
            shortest = numbers["isl"][over[0]] if paired else numbers["isl"].min()
            raise InputError(
                f"cached: {numbers['cached'][over[0]]:g} of a prompt of {shortest:g} tokens; at least one is computed"
            )
    if unknown := sorted(set(inputs) - set(STRUCTURE) - set(NUMBERS)):
        raise UnknownNameError("input of a sweep", unknown[0], [*STRUCTURE, *NUMBERS])
    return Grid(structure, numbers, tuple(swept), pairs, specs)


_LOW = {
    "isl": 1.0, "osl": 1.0, "batch": 1.0, "concurrency": 1.0, "rate_per_s": 1e-9, "token_budget": 1.0,
    "poll_interval": 1.0, "tokenizers": 1.0,
}  # fmt: skip


def _numbers(name: str, values: list[Any]) -> np.ndarray:
    try:
        array = np.array(values, float)
    except (TypeError, ValueError):
        raise InputError(f"{name}: {values[0]!r} ... are not all numbers") from None
    if array.ndim != 1:
        raise InputError(f"{name}: an array of shape {array.shape}; give a list, each value once")
    check_numbers(name, array, low=_LOW.get(name, 0.0), high=1e12)
    return array


def _whole(name: str, value: Any) -> int:
    return int(check_number(name, value, low=1, high=65536, integer=True))
