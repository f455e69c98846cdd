"""What of a `config.json` matters for memory only: how far rotary tables reach, and what a vision tower weighs.

Towers are counted from their own config; a kind that is not known is left out, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]
Part = dict[str, Any]


def stretch_rope(layers: list[Part], text: Config) -> None:
    """Set `rope_scale` where scaling is linear: the table then has `factor` times the rows.

    Windowed layers of a model that has a local rope base are not scaled (Gemma 3).
    Source: vLLM LinearScalingRotaryEmbedding; YaRN and llama3 scaling keep max_position_embeddings rows
    """
    scaling = text.get("rope_scaling")
    if not isinstance(scaling, Mapping) or scaling.get("rope_type", scaling.get("type")) != "linear":
        return
    factor = scaling.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 < factor <= 1024:
        return
    local = "rope_local_base_freq" in text
    for part in layers:
        attention = part.get("attention")
        if attention and attention.get("kind") == "gqa" and not (local and attention.get("window")):
            attention["rope_scale"] = float(factor)


def vision_fields(data: Config, hidden: int) -> tuple[Part | None, list[str]]:
    """The `vision` block of a model spec for a config with a vision tower, and notes."""
    tower = data.get("vision_config")
    kind = str(data.get("model_type", ""))
    if kind == "llama4" and (not isinstance(tower, Mapping) or not tower.get("hidden_size")):
        return _LLAMA4 | {"params": _LLAMA4["params"] + 4096 * hidden}, []
    if not isinstance(tower, Mapping) or not tower:
        return None, []
    names = (kind, str(tower.get("model_type", "")))
    for pattern, count in _TOWERS.items():
        if any(pattern in name for name in names):
            try:
                return count(tower, data, hidden), []
            except (KeyError, TypeError, ValueError):
                break
    return None, ["the vision tower is not counted: weights are those of the language model"]


def _int(tower: Config, *names: str, default: int | None = None) -> int:
    for name in names:
        value = tower.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 20:
            return value
    if default is None:
        raise KeyError(names[0])
    return default


def _encoder(d: int, width: int, layers: int) -> int:
    """A pre-norm transformer with biases everywhere: four projections, two plain MLP matrices, two LayerNorms."""
    return layers * (4 * (d * d + d) + 2 * d * width + width + d + 4 * d)


def _siglip(tower: Config) -> int:
    d, patch, side = _int(tower, "hidden_size"), _int(tower, "patch_size"), _int(tower, "image_size")
    embed = d * 3 * patch**2 + d + (side // patch) ** 2 * d
    return embed + _encoder(d, _int(tower, "intermediate_size"), _int(tower, "num_hidden_layers")) + 2 * d


def _gemma3(tower: Config, data: Config, hidden: int) -> Part:
    d, side = _int(tower, "hidden_size"), _int(tower, "image_size")
    tokens = _int(data, "mm_tokens_per_image", default=256)
    return _block(_siglip(tower) + d * hidden + d, tokens, 3 * side**2, "SigLIP tower and projection")


def _llava_next(tower: Config, data: Config, hidden: int) -> Part:
    """Tiles of the largest grid and the base image, (side / patch)^2 tokens each; layers may be concatenated."""
    d, side, patch = _int(tower, "hidden_size"), _int(tower, "image_size"), _int(tower, "patch_size")
    layers = data.get("vision_feature_layer")
    wide = d * (len(layers) if isinstance(layers, list) else 1)
    grids = [g for g in data.get("image_grid_pinpoints") or [] if isinstance(g, list) and len(g) == 2]
    tiles = 1 + max((round(a * b / side**2) for a, b in grids), default=0)
    projector = wide * hidden + hidden + hidden * hidden + hidden + hidden
    tokens = tiles * (side // patch) ** 2
    return _block(_siglip(tower) + projector, tokens, 3 * tiles * side**2, "SigLIP tower and projector")


def _pixtral(tower: Config, data: Config, hidden: int) -> Part:
    d, width, layers = _int(tower, "hidden_size"), _int(tower, "intermediate_size"), _int(tower, "num_hidden_layers")
    patch, side = _int(tower, "patch_size"), _int(tower, "image_size")
    merge = _int(data, "spatial_merge_size", default=2)
    tower_params = d * 3 * patch**2 + d + layers * (4 * d * d + 3 * d * width + 2 * d)
    projector = d + merge**2 * d * d + d * hidden + hidden * hidden
    edge = side // (patch * merge)
    return _block(tower_params + projector, edge * (edge + 1), 3 * side**2, "Pixtral tower and projector")


def _qwen2_5_vl(tower: Config, data: Config, hidden: int) -> Part:
    d, width, layers = _int(tower, "hidden_size"), _int(tower, "intermediate_size"), _int(tower, "depth")
    patch, frames = _int(tower, "patch_size"), _int(tower, "temporal_patch_size", default=2)
    merge = _int(tower, "spatial_merge_size", default=2)
    out, wide = _int(tower, "out_hidden_size", default=hidden), merge**2 * d
    block = 4 * (d * d + d) + 3 * d * width + 2 * width + d + 2 * d
    merger = d + wide * wide + wide + wide * out + out
    values = 16384 * 3 * frames * (patch * merge) ** 2
    return _block(
        3 * frames * patch**2 * d + layers * block + merger, 16384, values, "Qwen2.5-VL tower; 12.8 Mpixel at most"
    )


def _qwen3_vl(tower: Config, data: Config, hidden: int) -> Part:
    d, width, layers = _int(tower, "hidden_size"), _int(tower, "intermediate_size"), _int(tower, "depth")
    patch, frames = _int(tower, "patch_size"), _int(tower, "temporal_patch_size", default=2)
    merge, out = _int(tower, "spatial_merge_size", default=2), _int(tower, "out_hidden_size", default=hidden)
    wide, deep = merge**2 * d, len(tower.get("deepstack_visual_indexes") or [])
    mlp = wide * wide + wide + wide * out + out
    positions = _int(tower, "num_position_embeddings", default=2304)
    params = 3 * frames * patch**2 * d + d + positions * d + _encoder(d, width, layers)
    params += 2 * d + mlp + deep * (2 * wide + mlp)
    values = 16384 * (3 * frames * (patch * merge) ** 2 + deep * hidden)  # deepstack keeps embeddings of earlier layers
    return _block(params, 16384, values, "Qwen3-VL tower; 16.8 Mpixel at most")


def _block(params: int, tokens: int, values: int, source: str) -> Part:
    return {"params": params, "image_tokens": tokens, "image_values": values, "source": f"{source}, from vision_config"}


# 17 tiles of 336 pixels, 144 tokens each, and what separates them; tower of the public checkpoints.
_LLAMA4: Part = {
    "params": 850_960_896,
    "image_tokens": 2465,
    "image_values": 17 * 3 * 336**2,
    "source": "Llama 4 tower, counted with transformers (facts on models)",
}
_TOWERS: dict[str, Callable[[Config, Config, int], Part]] = {
    "gemma3": _gemma3,
    "llava_next": _llava_next,
    "mistral3": _pixtral,
    "pixtral": _pixtral,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
}
