"""Whatever names a model: a library name, a file, a folder or a Hub id."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from roofline.errors import InputError, SpecError, UnknownNameError
from roofline.parallel import Plan
from roofline.precision import precision_named
from roofline.specs import library
from roofline.specs.hub import hub_config, is_hub_id
from roofline.specs.json_file import read_json
from roofline.specs.model import Model
from roofline.specs.parsed import ParsedModel
from roofline.specs.yaml_file import read_yaml

_SUFFIXES = (".yaml", ".yml", ".json", ".gguf")
_INDEX = "model.safetensors.index.json"
_SIZE_TOLERANCE = 0.05


def load_model(ref: str | os.PathLike | Model | ParsedModel, specs: str | os.PathLike | None = None) -> ParsedModel:
    """The model that `ref` names.

    Args:     ref: tried in this order: a name or alias of the library; the path of a `config.json` (with `#name` for
              one of several checkpoints in it), a model folder, a `.gguf` file or a spec YAML; a Hub id owner/name.
              What is loaded already is taken as it is; specs: a folder of specs of your own, searched first
    Errors:   UnknownNameError with the nearest names; SpecError and UnsupportedError of the readers
    """
    if isinstance(ref, ParsedModel):
        return ref
    if isinstance(ref, Model):
        return ParsedModel(ref, precision_named(ref.native), ref.notes)
    if not isinstance(ref, str | os.PathLike):
        raise InputError(f"model: {str(ref)[:80]!r} is no name, path or loaded model; see 'roofline list models'")
    text = os.fspath(ref)
    if not isinstance(ref, os.PathLike) and not text.lower().endswith(_SUFFIXES):
        try:
            return _from_library(text, specs)
        except UnknownNameError as error:
            unknown = error
    else:
        unknown = None
    path, _, variant = text.partition("#")
    found = Path(path)
    try:
        exists = found.exists()
    except (OSError, ValueError):  # a name that no file system takes
        exists = False
    if unknown is not None and not text.strip():
        raise unknown
    if exists or unknown is None:
        return _from_path(found, variant or None)
    if is_hub_id(text):
        return _from_hub(text, unknown)
    if "/" in text or os.sep in text:
        raise SpecError(f"there is no file or folder '{text[:200]}'")
    raise unknown


def _from_library(name: str, specs: str | os.PathLike | None) -> ParsedModel:
    path = library.locate("model", name, specs)
    return _from_yaml(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _from_yaml(path: Path, _changed: int) -> ParsedModel:
    model = library.build(Model, read_yaml(path), where=path.name)
    return ParsedModel(model, precision_named(model.native), model.notes)


def _from_path(path: Path, variant: str | None) -> ParsedModel:
    if path.is_dir():
        return _from_folder(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(path, path.stat().st_mtime_ns if path.is_file() else 0)
    if path.suffix.lower() == ".gguf":
        from roofline.specs.gguf_model import from_gguf

        return from_gguf(path)
    return _from_config(path, variant=variant)


def _from_config(path: Path, **more) -> ParsedModel:
    from roofline.specs.hf import from_hf_config  # the readers of foreign formats are imported where they are needed

    return from_hf_config(path, **more)


def _from_folder(path: Path) -> ParsedModel:
    """A model folder: its config.json, held against the size of its weights; or the one GGUF file in it."""
    if (path / "config.json").is_file():
        parsed = _from_config(path / "config.json", name=path.resolve().name)
        size = _safetensors_bytes(path)
        notes = parsed.notes + _size_note(parsed, size)
        return ParsedModel(parsed.model, parsed.precision, notes, file_bytes=size)
    files = sorted(path.glob("*.gguf"))
    firsts = [f for f in files if "-of-" not in f.name or "-00001-of-" in f.name]
    if len(firsts) == 1:
        return _from_path(firsts[0], None)
    if firsts:
        raise SpecError(f"'{path}' holds several GGUF files; give one of: {', '.join(f.name for f in firsts[:6])}")
    raise SpecError(f"'{path}' is a folder without a config.json or a .gguf file")


def _safetensors_bytes(path: Path) -> int | None:
    """Bytes of the weights in a folder: what the index says, else the size of the files; None: there are none."""
    if (path / _INDEX).is_file():
        metadata = read_json(path / _INDEX).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        if isinstance(total, int) and not isinstance(total, bool) and total > 0:
            return total
    return sum(f.stat().st_size for f in path.glob("*.safetensors")) or None


def _size_note(parsed: ParsedModel, size: int | None) -> tuple[str, ...]:
    """A warning where files and config disagree: a vision tower, a packed format, or another architecture."""
    if not size or parsed.precision is None:
        return ()
    computed = float(parsed.model.weight_bytes(Plan(), parsed.precision))
    if abs(size / computed - 1.0) <= _SIZE_TOLERANCE:
        return ()
    return (
        f"the weight files hold {size / 1e9:.1f} GB, model and formats come to {computed / 1e9:.1f} GB: parts that are "
        "not modelled, or another number format",
    )


def _from_hub(repo: str, unknown: UnknownNameError) -> ParsedModel:
    try:
        config, side = hub_config(repo)
    except SpecError as error:
        near = " or ".join(f"'{n}'" for n in unknown.suggestions)
        raise SpecError(f"{error}" + (f". In the library: {near}" if near else "")) from None
    return _from_config(config, side=side, name=repo.rpartition("/")[2])
