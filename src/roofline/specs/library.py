"""Finds, loads and lists specs by name.

A spec is one YAML file `<kind>_specs/<vendor or family>/<name>.yaml`; its name is the file's. A name is looked up among
the file names first, then among the `aliases` at the head of each file, so that one spec is parsed, never all of them,
and no index can be stale. Folders of the user (the `specs` argument, then the environment variable ROOFLINE_SPECS)
are searched before the shipped ones; each holds `hardware_specs/` or `model_specs/` like the checkout does.
"""

from __future__ import annotations

import copy
import os
import re
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from roofline.errors import InputError, SpecError, UnknownNameError
from roofline.specs.hardware import Accelerator

PACKAGE = Path(__file__).resolve().parents[1]
KINDS = ("hardware", "model")
MAX_FILE_BYTES = 2_000_000
MAX_DEPTH = 32
MAX_NODES = 200_000  # with every YAML alias expanded, so that a few lines cannot unfold to gigabytes
_HEAD_BYTES = 8192  # `aliases` stand within this many bytes of the start of a file

Spec = TypeVar("Spec", bound=BaseModel)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def spec_root(kind: str) -> Path:
    """The folder of the shipped specs of `kind` ('hardware' or 'model'), in a wheel or in a checkout."""
    if kind not in KINDS:
        raise InputError(f"unknown kind of spec '{kind}'; known: {', '.join(KINDS)}")
    installed = PACKAGE / f"{kind}_specs"
    return installed if installed.is_dir() else PACKAGE.parents[1] / f"{kind}_specs"


def user_roots(kind: str, specs: str | os.PathLike | None = None) -> list[Path]:
    """The user's folders for `kind`, in the order they are searched."""
    given = [specs] if specs else []
    given += [p for p in os.environ.get("ROOFLINE_SPECS", "").split(os.pathsep) if p]
    roots = []
    for folder in map(Path, given):
        if not folder.is_dir():
            raise SpecError(f"spec folder '{folder}' is not a folder")
        if not any((folder / f"{k}_specs").is_dir() for k in KINDS):
            raise SpecError(f"spec folder '{folder}' holds neither hardware_specs/ nor model_specs/")
        roots.append(folder / f"{kind}_specs")
    return [root for root in roots if root.is_dir()]


def canonical(name: str) -> str:
    """`name` as it is compared: lower case, every run of other characters than letters, digits, '.' and '+' a hyphen.

    >>> canonical("H100_SXM"), canonical("meta-llama/Llama-3.1-70B")
    ('h100-sxm', 'meta-llama-llama-3.1-70b')
    """
    return re.sub(r"[^a-z0-9.+]+", "-", name.lower()).strip("-")


def names(kind: str, specs: str | os.PathLike | None = None) -> list[str]:
    """Every name of `kind`, sorted, the user's included; aliases are not listed (see `aliases`)."""
    return sorted({name for root in _roots(kind, specs) for name in _files(root)})


def aliases(kind: str, specs: str | os.PathLike | None = None) -> dict[str, str]:
    """Every alias of `kind` in compared form, with the name it stands for."""
    found: dict[str, str] = {}
    for root in _roots(kind, specs):
        for alias, name in _aliases(root).items():
            found.setdefault(alias, name)
    return found


def locate(kind: str, name: str | os.PathLike, specs: str | os.PathLike | None = None) -> Path:
    """The file of the spec called `name` (a name, an alias, or the path of a .yaml file)."""
    if isinstance(name, os.PathLike) or str(name).endswith((".yaml", ".yml")):
        return Path(name)
    if not isinstance(name, str):
        raise InputError(f"a {kind} is named by text, not {name!r}")
    roots = _roots(kind, specs)
    asked = (name, tuple(roots))
    state = tuple(_folder_stamps(root) for root in roots[:-1])  # shipped folders hold still, a user's may not
    path, known_stamp, known_state = _located.get(asked, (None, 0, ()))
    if path and state == known_state and _stamp(path) == known_stamp:
        return path
    key = canonical(name)
    for root in roots:
        files = _files(root)
        path = files.get(key) or files.get(_aliases(root).get(key, ""))
        if path:
            _located[asked] = (path, _stamp(path), state)
            return path
    known = {*names(kind, specs), *aliases(kind, specs)}
    raise UnknownNameError(kind, name[:80], sorted(known), hint=f"see 'roofline list {kind}'")


_located: dict[tuple, tuple[Path, int, tuple]] = {}  # what was asked -> file, its stamp, stamps of the user's folders


def find(kind: str, name: str | os.PathLike, specs: str | os.PathLike | None = None) -> dict[str, Any]:
    """The data of the one spec called `name`, as read from its file, not yet checked against a schema."""
    return read_yaml(locate(kind, name, specs))


def hardware(
    name: str | os.PathLike,
    *,
    specs: str | os.PathLike | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Accelerator:
    """The accelerator called `name`: a name or an alias of the library, or the path of a YAML file.

    `overrides` replaces single facts, written as they are in the file: {"memory.usable": "14 GB"}.

    >>> hardware("H100_SXM").bandwidth_bytes_per_s
    3350000000000.0
    """
    path = locate("hardware", name, specs)
    if not overrides:
        return _loaded(path, _stamp(path))
    data = copy.deepcopy(read_yaml(path))
    for key, value in overrides.items():
        _put(data, key, value)
    return build(Accelerator, data, where=f"{path.name} with overrides")


def build(schema: type[Spec], data: Any, where: str) -> Spec:
    """`data` checked against `schema`; a SpecError that lists what is wrong, field by field, says `where` it was."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        problems = [_explain(schema, problem) for problem in error.errors()]
        more = f"\n  and {len(problems) - 8} more" if len(problems) > 8 else ""
        text = problems[0] if len(problems) == 1 else "".join(f"\n  {p}" for p in problems[:8]) + more
        raise SpecError(f"{where}: {text}") from None


def read_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """The mapping in a YAML file; refuses duplicate keys, self-reference, and files that are huge or deeply nested."""
    path = Path(path)
    try:
        if path.is_dir():
            raise SpecError(f"'{path}' is a folder; give the path of a file")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise SpecError(f"{path.name}: {size} bytes; a spec has at most {MAX_FILE_BYTES}")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"there is no file '{path}'") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise SpecError(f"cannot read '{path}': {error}") from None
    return parse_yaml(text, where=path.name)


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping in YAML `text`, under the limits of `read_yaml`; `where` names it in messages."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            _unfolded(node, where, 1, {})
            data = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise SpecError(f"{where}: not YAML: {' '.join(str(error).split())[:300]}") from None
    except (RecursionError, ValueError) as error:  # ValueError: an impossible date, or integer with thousands of digits
        raise SpecError(f"{where}: not readable: {str(error)[:200]}") from None
    finally:
        loader.dispose()
    if node is None or not isinstance(data, dict):
        raise SpecError(f"{where}: holds no mapping of fields")
    return data


def _unfolded(node: yaml.Node, where: str, depth: int, known: dict[int, int]) -> int:
    """Number of nodes below `node` with every alias expanded; refuses what a spec has no use for."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if depth > MAX_DEPTH:
        raise SpecError(f"{where}: nested more than {MAX_DEPTH} levels deep at line {node.start_mark.line + 1}")
    if id(node) in known:
        if not known[id(node)]:
            raise SpecError(f"{where}: refers to itself at line {node.start_mark.line + 1}")
        return known[id(node)]
    known[id(node)] = 0  # being counted
    children = node.value
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise SpecError(f"{where}: a field name must be text, at line {key.start_mark.line + 1}")
            if key.value in seen:
                raise SpecError(f"{where}: field '{key.value}' stands twice, again at line {key.start_mark.line + 1}")
            seen.add(key.value)
        children = [value for _, value in node.value]
    total = 1 + sum(_unfolded(child, where, depth + 1, known) for child in children)
    if total > MAX_NODES:
        raise SpecError(f"{where}: unfolds to more than {MAX_NODES} values")
    known[id(node)] = total
    return total


def _roots(kind: str, specs: str | os.PathLike | None) -> list[Path]:
    return [*user_roots(kind, specs), spec_root(kind)]


def _files(root: Path) -> dict[str, Path]:
    """Name -> file, one folder below `root`. The listing is kept as long as no folder changed."""
    return _listing(root, _folder_stamps(root))


@lru_cache(maxsize=32)
def _listing(root: Path, _changed: tuple[int, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in _folders(root):
        for path in sorted(folder.glob("*.yaml")):
            other = files.setdefault(canonical(path.stem), path)
            if other != path:
                raise SpecError(f"two specs are called '{path.stem}': {other} and {path}")
    return files


def _folder_stamps(root: Path) -> tuple[int, ...]:
    return tuple(folder.stat().st_mtime_ns for folder in _folders(root))


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(Path(entry) for entry in os.scandir(root) if entry.is_dir())


def _aliases(root: Path) -> dict[str, str]:
    return _alias_table(root, tuple((name, path, _stamp(path)) for name, path in _files(root).items()))


@lru_cache(maxsize=32)
def _alias_table(root: Path, files: tuple[tuple[str, Path, int], ...]) -> dict[str, str]:
    table: dict[str, str] = {}
    for name, path, _ in files:
        for alias in head_aliases(path):
            other = table.setdefault(canonical(alias), name)
            if other != name:
                raise SpecError(f"alias '{alias}' stands for both '{other}' and '{name}'")
    return table


def head_aliases(path: Path) -> Iterator[str]:
    """The aliases of a spec file, read from its head without parsing the rest."""
    with open(path, encoding="utf-8", errors="replace") as file:
        head = file.read(_HEAD_BYTES)
    block = re.search(r"^aliases:[ \t]*(\[[^\]]*\]|\n(?:[ \t]*-.*\n?)+)", head, re.MULTILINE)
    try:
        return iter(map(str, yaml.load(block[1], _Loader) or ())) if block else iter(())
    except yaml.YAMLError:
        return iter(())  # the file still loads by its own name, and then says what is wrong


def _stamp(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return 0  # read_yaml says what is wrong


@lru_cache(maxsize=256)
def _loaded(path: Path, _changed: int) -> Accelerator:
    return build(Accelerator, read_yaml(path), where=path.name)


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise SpecError(f"override '{key}': '{parent}' holds no fields")
    data[last] = value


def _explain(schema: type[BaseModel], problem: Mapping[str, Any]) -> str:
    """One pydantic problem as text for people: path, what was given, what is allowed."""
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(schema, problem["loc"][:-1])
        wrong = str(problem["loc"][-1])
        near = UnknownNameError("field", wrong[:60], fields) if fields else f"unknown field '{wrong[:60]}'"
        return f"{path}: {near}"
    if problem["type"] == "missing":
        return f"{path}: is required"
    message = problem["msg"].removeprefix("Value error, ")
    given = problem.get("input")
    if isinstance(given, str | int | float | bool) and repr(given)[:40] not in message:
        message += f", not {str(given)[:60]!r}"
    return f"{path}: {message}" if path else message


def _fields_at(schema: Any, loc: tuple) -> list[str]:
    """Field names of the model that `loc` leads to, as far as plain annotations tell."""
    for part in loc:
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            field = schema.model_fields.get(str(part))
            schema = field.annotation if field else None
        models = [a for a in _flat(schema) if isinstance(a, type) and issubclass(a, BaseModel)]
        schema = models[0] if models else None
    return list(schema.model_fields) if schema else []


def _flat(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in typing.get_args(annotation):
        yield from _flat(inner)
