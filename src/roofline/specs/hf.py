"""Turns a Hugging Face `config.json` into a `Model` and the `Precision` of its checkpoint, or refuses it by name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from roofline.errors import SpecError, UnsupportedError
from roofline.specs.fields import FIELD_NAMES, Fields
from roofline.specs.hf_blocks import Style, max_positions
from roofline.specs.hf_extras import model_fields
from roofline.specs.hf_families import FAMILIES, LLAMA, Builder, decoder
from roofline.specs.hf_memory import stretch_rope, vision_fields
from roofline.specs.hf_quant import checkpoint_precision
from roofline.specs.json_file import checked_json, read_json
from roofline.specs.library import build
from roofline.specs.model import Model
from roofline.specs.parsed import ParsedModel
from roofline.specs.yaml_text import to_yaml

__all__ = ["FIELD_NAMES", "ParsedModel", "from_hf_config", "to_yaml"]

MAX_PARAMS = 1e15
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "text_model_config")
_SIDE_FILE = "hf_quant_config.json"


def from_hf_config(
    config: Mapping[str, Any] | str | os.PathLike,
    *,
    side: Mapping[str, Any] | str | os.PathLike | None = None,
    name: str | None = None,
    variant: str | None = None,
) -> ParsedModel:
    """The model, the precision and notes that a `config.json` stands for.

    Args:     config: the file or its content; side: `hf_quant_config.json` of a ModelOpt checkpoint (found by itself
              beside a file); variant: which of several checkpoints, where the file bundles them
    Errors:   SpecError for what is missing, absurd or contradictory; UnsupportedError for an architecture, field or
              number format that is not modelled. Nothing is guessed: an unknown architecture loads only if all its
              fields are those of a plain decoder, and a note says so
    """
    if isinstance(config, Mapping):
        data, where = checked_json(dict(config), "config"), "config"
    else:
        path = Path(config)
        data, where = read_json(path), path.name
        side = _side_file(path) if side is None else side
        name = name or (path.parent.name if path.name == "config.json" else path.stem)
    if side is not None:
        side = checked_json(dict(side), _SIDE_FILE) if isinstance(side, Mapping) else read_json(side)
    if isinstance(data.get("variants"), dict):
        return _from_bundle(data, where, name, variant)
    if set(data) & {"quantization", "producer"} and not set(data) & {"model_type", "architectures"}:
        raise SpecError(f"{where}: is a quantisation file without a model; give the config.json beside it")
    model, notes, dtype = _model(data, where, name or _own_name(data))
    precision, more = checkpoint_precision(model, data, side, dtype, where)
    model = model.model_copy(update={"native": precision.text})
    return ParsedModel(model, precision, tuple(notes + more))


def _model(data: dict[str, Any], where: str, name: str) -> tuple[Model, list[str], str]:
    f = _text_fields(data, where)
    family, style, builder = _family(f)
    notes = [] if family in FAMILIES else [f"model_type '{family}' is not known: read as a plain decoder"]
    f.require(["hidden", "vocab"] if family == "nemotron_h" else ["hidden", "vocab", "layers"])
    layers = builder(f, style)
    stretch_rope(layers, f.data)
    fields, more = model_fields(f, family, style, layers)
    vision, unseen = vision_fields(data, f.count("hidden"))
    dtype = _dtype(f)
    if dtype == "fp32":
        dtype, more = "bf16", [*more, "the checkpoint is fp32; engines load it 16 bits wide, and so it is counted"]
    spec = {
        "name": name,
        "hidden": f.count("hidden"),
        "vocab": f.count("vocab"),
        "layers": [part | {"count": len(list(run))} for part, run in groupby(layers)],
        "norm": style.norm,
        "tied": _tied(f, style),
        "max_positions": max_positions(f),
        "vision": vision,
    }
    _known_and_harmless(f)
    f.refuse_unread(family, known=family in FAMILIES)
    model = build(Model, _without_none(spec | fields), where)
    if not 0 < model.params <= MAX_PARAMS:
        raise SpecError(f"{where}: the fields come to {model.params:.3g} parameters, which is absurd")
    return model, notes + more + unseen, dtype


def _text_fields(data: dict[str, Any], where: str) -> Fields:
    """The fields of the language model: nested ones win even where the top level has sizes, too."""
    inner = data
    for _ in range(2):  # thinker_config.text_config
        key = next((k for k in _NESTED if isinstance(inner.get(k), dict)), None)
        if key is None:
            break
        inner = inner[key]
    return Fields(inner, where, outer=data if inner is not data else None)


def _family(f: Fields) -> tuple[str, Style, Builder]:
    """model_type, its style and its builder."""
    types = [t for d in (f.data, f.outer) if isinstance(t := d.get("model_type"), str)]
    for known in types:
        if known in FAMILIES:
            return known, *FAMILIES[known]
    architectures = [a for d in (f.data, f.outer) for a in _texts(d.get("architectures"))]
    by_class = {re.sub(r"[_-]", "", known): known for known in FAMILIES}
    for architecture in [] if types else architectures:
        known = by_class.get(re.sub(r"(For|LMHead|Sparse).*$|Model$", "", architecture).lower())
        if known:
            return known, *FAMILIES[known]
    family = next(iter(types + architectures), "(none)")[:60]
    _refuse_unless_plain(f, family)
    return family, LLAMA, decoder


def _refuse_unless_plain(f: Fields, family: str) -> None:
    """An unknown architecture must at least state everything that a plain decoder has, and nothing more."""
    special = [c for c in ("experts", "kv_rank", "state", "window") if f.has(c) and f.raw(c) not in (0, False)]
    needed = ["layers", "hidden", "heads", "kv_heads", "width", "vocab"]
    needed += ["top_k", "expert_width"] if "experts" in special else []
    absent = [c for c in needed if not f.has(c)]
    if not absent and not special:
        return
    missing = ", ".join(FIELD_NAMES[c][0] for c in absent)
    said = ", ".join(f"{f.spelling(c)} {str(f.raw(c))[:20]}" for c in special)
    near = difflib.get_close_matches(family, FAMILIES, n=3, cutoff=0.6)
    raise UnsupportedError(
        f"{f.where}: model_type '{family}' is not modelled"
        + (f" and has {said}" if special else "")
        + (f"; missing: {missing}" if absent else "")
        + (f". Near: {', '.join(near)}" if near else "")
        + ". Known families: docs/ingestion.md; a spec can be written by hand: docs/adding-a-model.md"
    )


def _tied(f: Fields, style: Style) -> bool:
    """Whether the head is the embedding: the outer config decides, then the inner, then the family's default."""
    f.skip("tie_word_embeddings")
    if f.outer.get("tie_word_embeddings") is not None:
        return Fields(f.outer, f.where).flag("tie_word_embeddings")
    return f.flag("tie_word_embeddings", style.tied)


def _dtype(f: Fields) -> str:
    """The 16 or 32 bit format of what is not quantised."""
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "auto": "bf16"}
    for source in (f, Fields(f.outer, f.where)):
        said = source.text("dtype").removeprefix("torch.")
        if said in names:
            return names[said]
        if said:
            raise UnsupportedError(f"{f.where}: dtype '{said[:40]}' is not modelled; known: {', '.join(names)}")
    return "bf16"


def _known_and_harmless(f: Fields) -> None:
    """Fields that look structural and change nothing that is modelled."""
    f.skip("num_key_value_heads", "head_dim", "quantization_config", "max_window_layers")
    if not f.has("window") or not f.flag("use_sliding_window", True):
        f.skip(*FIELD_NAMES["window"])
    if f.data.get("is_encoder_decoder") is False:
        f.skip("is_encoder_decoder")


def _own_name(data: Mapping[str, Any]) -> str:
    said = data.get("_name_or_path") or data.get("name") or data.get("model_type") or "model"
    return str(said)[:120]


def _side_file(path: Path) -> Path | None:
    beside = (path.with_name(_SIDE_FILE), path.with_name(f"{path.stem}.{_SIDE_FILE}"))
    return next((p for p in beside if p.is_file() and (p.name != _SIDE_FILE or path.name == "config.json")), None)


def _from_bundle(data: dict[str, Any], where: str, name: str | None, variant: str | None) -> ParsedModel:
    """One checkpoint of a file that holds the configs of several."""
    variants = {k: v for k, v in data["variants"].items() if isinstance(v, dict) and isinstance(v.get("config"), dict)}
    chosen = variant or next(iter(variants), None)
    if chosen not in variants:
        raise SpecError(f"{where}: no checkpoint '{chosen}'; it holds: {', '.join(variants) or 'none'}")
    entry = variants[chosen]
    families = entry.get("unquantised_module_families")
    side = entry.get("hf_quant_config")
    config, side = _with_lists(entry["config"], families), _with_lists(side if isinstance(side, dict) else {}, families)
    parsed = from_hf_config(config, side=side, name=name or chosen)
    others = [v for v in variants if v != chosen]
    note = (f"the file holds several checkpoints; {chosen} was read (others: {', '.join(others)})",) if others else ()
    return replace(parsed, notes=parsed.notes + note)


def _with_lists(config: Mapping[str, Any], families: Any) -> dict[str, Any]:
    """A bundled config with its collapsed lists of unquantised modules put back where they were."""
    config = dict(config)
    if not isinstance(families, Mapping) or not config:
        return config
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = _with_lists(config["text_config"], families)
    for key in ("quantization_config", "quantization"):
        if isinstance(config.get(key), dict):
            config[key] = {**config[key], **families}
    return config


def _texts(value: Any) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _without_none(value: Any) -> Any:
    """The spec without fields that are None: those have their default."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
