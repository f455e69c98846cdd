"""Reads JSON of unknown origin: strictly, and with a message for people when it is not what it should be."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from roofline.errors import SpecError
from roofline.files import read_text

MAX_FILE_BYTES = 5_000_000  # the longest per-layer quantisation lists seen are about 2 MB
MAX_DEPTH = 24
UNBOUNDED_FIELDS = ("time_step_limit",)  # Mamba configs write Infinity here, which is not JSON; the field is not read


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """The object in a JSON file.

    Raises SpecError for a missing file, a folder, more than 5 MB, text that is not JSON, duplicate keys, NaN and
    Infinity (but for `time_step_limit`), more than 24 levels, or a value that is no object.
    """
    text = read_text(path, MAX_FILE_BYTES, "a config", encoding="utf-8-sig")
    return parse_json(text, where=Path(path).name)


def parse_json(text: str, where: str) -> dict[str, Any]:
    """The object in JSON `text`, under the rules of `read_json`; `where` names it in messages."""
    try:
        data = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, where))
    except RecursionError:
        raise SpecError(f"{where}: nested too deeply") from None
    except ValueError as error:  # not JSON, or an integer with thousands of digits
        raise SpecError(f"{where}: not JSON: {str(error)[:200]}") from None
    return checked_json(data, where)


def checked_json(data: Any, where: str) -> dict[str, Any]:
    """`data` if it is what a JSON object can hold (finite numbers, text keys, bounded depth), else a SpecError."""
    if not isinstance(data, dict):
        raise SpecError(f"{where}: holds no object of fields")
    _check(data, where, "", 1)
    return data


def _unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SpecError(f"{where}: field '{twice[:60]}' stands twice")
    return data


def _check(value: Any, where: str, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise SpecError(f"{where}: nested more than {MAX_DEPTH} levels deep at '{path[:80]}'")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise SpecError(f"{where}: field name {str(key)[:60]!r} is not text")
            if key not in UNBOUNDED_FIELDS:
                _check(inner, where, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _check(inner, where, f"{path}[{i}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{where}: {path[:80]} is {value}, which is not a number in JSON")
    elif value is not None and not isinstance(value, str | int | float):
        raise SpecError(f"{where}: {path[:80]} is a {type(value).__name__}, which JSON cannot hold")
