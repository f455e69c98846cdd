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
from roofline.specs.yaml_file import Loader, read_yaml

PACKAGE = Path(__file__).resolve().parents[1]
KINDS = ("hardware", "model")
LISTED = {"hardware": "hardware", "model": "models"}  # what `roofline list` calls them
_HEAD_BYTES = 8192  # `aliases` stand within this many bytes of the start of a file

Spec = TypeVar("Spec", bound=BaseModel)


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
    if not isinstance(specs, str | os.PathLike | None):
        raise InputError(f"specs: {specs!r} is not the path of a folder")
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
        raise InputError(f"{kind}: {str(name)[:80]!r} is no name or path; see 'roofline list {LISTED[kind]}'")
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
    raise UnknownNameError(kind, name[:80], sorted(known), hint=f"see 'roofline list {LISTED[kind]}'")


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
        return iter(map(str, yaml.load(block[1], Loader) or ())) if block else iter(())
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
