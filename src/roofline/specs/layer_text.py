"""The order of layers as text: `3*dense 58*moe`, and with groups `10*(5*sliding full) 2*sliding`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

MAX_LAYERS = 4096


def parse_layers(text: str) -> list[tuple[str, int]]:
    """Names and run lengths that a layer text stands for.

    >>> parse_layers("2*(3*linear full) moe")
    [('linear', 3), ('full', 1), ('linear', 3), ('full', 1), ('moe', 1)]
    """
    tokens = re.findall(r"\d+\s*\*|[()]|[A-Za-z_][\w.-]*|\S", text)
    runs, rest = _sequence(tokens, text)
    if rest:
        raise ValueError(f"layers: unexpected '{rest[0]}' in '{text[:80]}'")
    merged = [(name, sum(n for _, n in group)) for name, group in groupby(runs, key=lambda run: run[0])]
    if not merged or sum(n for _, n in merged) > MAX_LAYERS:
        raise ValueError(f"layers: '{text[:80]}' must stand for 1 to {MAX_LAYERS} layers")
    return merged


def _sequence(tokens: list[str], text: str) -> tuple[list[tuple[str, int]], list[str]]:
    runs: list[tuple[str, int]] = []
    while tokens and tokens[0] != ")":
        times = 1
        if tokens[0].endswith("*"):
            times, tokens = int(tokens[0][:-1]), tokens[1:]
        if not tokens or times < 1 or times > MAX_LAYERS:
            raise ValueError(f"layers: a count from 1 to {MAX_LAYERS} and a kind are needed in '{text[:80]}'")
        head, tokens = tokens[0], tokens[1:]
        if head == "(":
            inner, tokens = _sequence(tokens, text)
            if not tokens:
                raise ValueError(f"layers: a parenthesis is not closed in '{text[:80]}'")
            tokens = tokens[1:]
            if len(inner) * times + len(runs) > MAX_LAYERS:
                raise ValueError(f"layers: '{text[:80]}' stands for more than {MAX_LAYERS} layers")
            runs += inner * times
        elif re.fullmatch(r"[A-Za-z_][\w.-]*", head):
            runs += [(head, times)]
        else:
            raise ValueError(f"layers: unexpected '{head}' in '{text[:80]}'")
    return runs, tokens


def layer_text(names: Sequence[str]) -> str:
    """A short layer text for one name per layer: the inverse of `parse_layers`.

    >>> layer_text(["a", "a", "b", "a", "a", "b", "a"])
    '2*(2*a b) a'
    """
    return _shortest(tuple(names))


@lru_cache(maxsize=4096)
def _shortest(names: tuple[str, ...]) -> str:
    """Of the plain runs, and each way to begin with some layers, a repeated group and a rest: the shortest text."""
    best = _runs_text(names)
    for period in range(2, len(names) // 2 + 1):
        for start in range(len(names) - 2 * period + 1):
            group, times = names[start : start + period], 1
            while names[start + times * period : start + (times + 1) * period] == group:
                times += 1
            if times > 1:
                rest = names[start + times * period :]
                parts = (_runs_text(names[:start]), f"{times}*({_shortest(group)})", _shortest(rest))
                best = min(best, " ".join(part for part in parts if part), key=len)
    return best


def _runs_text(names: tuple[str, ...]) -> str:
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    return " ".join(name if n == 1 else f"{n}*{name}" for name, n in runs)
