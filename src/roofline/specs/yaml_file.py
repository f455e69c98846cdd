"""Reads YAML of unknown origin: in one walk that refuses what no spec has a use for."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from roofline.errors import SpecError
from roofline.files import read_text

MAX_FILE_BYTES = 2_000_000
MAX_DEPTH = 32
MAX_NODES = 200_000  # with every YAML alias expanded, so that a few lines cannot unfold to gigabytes

_MAPPING, _SEQUENCE, _TEXT, _FLOAT = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "float"))


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """PyYAML's safe loader, which remembers what kind of value a word is: the same words stand in every spec."""

    resolve = staticmethod(lru_cache(maxsize=1 << 14)(yaml.resolver.Resolver().resolve))


def read_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """The mapping in a YAML file; refuses duplicate keys, self-reference, and files that are huge or deeply nested."""
    return parse_yaml(read_text(path, MAX_FILE_BYTES, "a spec"), where=Path(path).name)


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping in YAML `text`, under the limits of `read_yaml`; `where` names it in messages."""
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        data = None if node is None else _value(node, loader, where, 1, {})[0]
    except yaml.YAMLError as error:
        raise SpecError(f"{where}: not YAML: {' '.join(str(error).split())[:300]}") from None
    except (RecursionError, ValueError) as error:  # ValueError: an impossible date, or integer with thousands of digits
        raise SpecError(f"{where}: not readable: {str(error)[:200]}") from None
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise SpecError(f"{where}: holds no mapping of fields")
    return data


def _value(node: yaml.Node, loader: Loader, where: str, depth: int, known: dict[int, Any]) -> tuple[Any, int]:
    """What a node holds, and how many values that is with every alias expanded."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, loader), 1
    if depth > MAX_DEPTH:
        raise SpecError(f"{where}: nested more than {MAX_DEPTH} levels deep at line {node.start_mark.line + 1}")
    if id(node) in known:
        if known[id(node)] is None:
            raise SpecError(f"{where}: refers to itself at line {node.start_mark.line + 1}")
        return known[id(node)]
    known[id(node)] = None  # under way
    if node.tag == _MAPPING:
        _refuse_twins(node, where)
        loader.flatten_mapping(node)  # merge keys
        keys = [_scalar(key, loader) for key, _ in node.value]
        inside = [_value(value, loader, where, depth + 1, known) for _, value in node.value]
        data: Any = dict(zip(keys, (value for value, _ in inside)))
    elif node.tag == _SEQUENCE:
        inside = [_value(value, loader, where, depth + 1, known) for value in node.value]
        data = [value for value, _ in inside]
    else:
        raise yaml.constructor.ConstructorError(None, None, f"a spec has no '{node.tag}'", node.start_mark)
    total = 1 + sum(count for _, count in inside)
    if total > MAX_NODES:
        raise SpecError(f"{where}: unfolds to more than {MAX_NODES} values")
    known[id(node)] = data, total
    return data, total


def _scalar(node: yaml.ScalarNode, loader: Loader) -> Any:
    if node.tag == _TEXT:
        return node.value
    if node.tag == _FLOAT:
        try:
            return float(node.value)
        except ValueError:  # .inf, 1:30.5
            pass
    return loader.construct_object(node)


def _refuse_twins(node: yaml.MappingNode, where: str) -> None:
    """Nothing, where every field name is text and stands once."""
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise SpecError(f"{where}: a field name must be text, at line {key.start_mark.line + 1}")
        if key.value in seen:
            raise SpecError(f"{where}: field '{key.value}' stands twice, again at line {key.start_mark.line + 1}")
        seen.add(key.value)
