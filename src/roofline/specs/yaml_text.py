"""Writes a model as the YAML that `specs` read: kinds of layers once, then their order in one line."""

from __future__ import annotations

from typing import Any

import yaml

from roofline.specs.model import Layer, Model, Run, layer_text

_SEARCHED_LAYERS = 160  # beyond, the search for a repeated group takes longer than it is worth


def to_yaml(model: Model) -> str:
    """The text of a model YAML that reads back to an equal model; fields that have their default are left out."""
    kinds: dict[str, Layer] = {}
    data = model.model_dump(mode="json", exclude_defaults=True, exclude={"layers", "encoder", "mtp"})
    text = {"layers": _order(model.layers, kinds)}
    if model.encoder:
        text["encoder"] = _order(model.encoder, kinds)
    lines = [_line(key, value) for key, value in data.items()]
    if model.mtp:
        mtp = model.mtp.model_dump(mode="json", exclude_defaults=True, exclude={"layers"})
        mtp["layers"] = _order([Run(layer, 1) for layer in model.mtp.layers], kinds)
        lines.append(_line("mtp", mtp))
    lines.append("kinds:")
    for name, layer in kinds.items():
        lines.append(f"  {name}:")
        lines += [f"    {_line(key, value)}" for key, value in _plain(layer).items()]
    lines += [f"{key}: {order}" for key, order in text.items()]
    return "\n".join(lines) + "\n"


def _order(runs: Any, kinds: dict[str, Layer]) -> str:
    named = [(_name(layer, kinds), count) for layer, count in runs]
    if sum(count for _, count in named) > _SEARCHED_LAYERS:
        return " ".join(f"{count}*{name}" for name, count in named)
    return layer_text([name for name, count in named for _ in range(count)])


def _name(layer: Layer, kinds: dict[str, Layer]) -> str:
    """The name of a kind of layer: what tells it apart in a word or two, and a number where that is taken."""
    known = next((name for name, kind in kinds.items() if kind == layer), None)
    if known:
        return known
    base = "_".join(filter(None, (_mixer_word(layer), layer.ffn.kind if layer.ffn else ""))) or "layer"
    name, i = base, 2
    while name in kinds:
        name, i = f"{base}{i}", i + 1
    kinds[name] = layer
    return name


def _mixer_word(layer: Layer) -> str:
    mixer = layer.attention
    if mixer is None:
        return "cross" if layer.cross else ""
    if mixer.kind != "gqa":
        return mixer.kind
    if mixer.window or mixer.chunk:
        return "windowed" if mixer.window else "chunked"
    return "full" if mixer.causal else "encoder"


def _plain(layer: Layer) -> dict[str, Any]:
    """The fields of a layer that have no default, `kind` of each part kept."""
    data = layer.model_dump(mode="json", exclude_defaults=True)
    for part in ("attention", "ffn", "cross"):
        if part in data:
            data[part] = {"kind": getattr(layer, part).kind} | data[part]
    return data


def _line(key: str, value: Any) -> str:
    text = yaml.safe_dump({key: value}, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.strip()[1:-1]
