"""The parts of a decoder layer, read from a config: attention, feed-forward block, and which layer has which.

Each function returns plain data in the words of a model YAML; the schema checks it when the model is built.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from roofline.errors import SpecError, UnsupportedError
from roofline.specs.fields import FIELD_NAMES, Fields

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Style:
    """What the code of a family fixes and its config does not say."""

    qk_norm: str = "none"
    qk_norm_flag: bool = False  # only where `use_qk_norm` is set
    attention_bias: bool = False  # where the config has no such field
    o_bias: bool | None = None  # None: as attention_bias
    mlp_bias: bool = False
    gated: bool = True
    norms: int | None = None  # None: one per part
    parallel: bool = False
    norm: str = "rms"
    tied: bool = False
    period: int = 0  # every period-th layer sees everything, the others a window
    rope: bool = True
    full_rope: bool = True  # False: windowed layers rotate, layers that see everything do not
    sinks: bool = False
    moe: Part = field(default_factory=dict)
    model: Part = field(default_factory=dict)  # further fields of the model


def gqa(f: Fields, style: Style, window: int | None = None, **more: Any) -> Part:
    """Softmax attention in the usual fields."""
    heads = f.count("heads")
    bias = f.flag("attention_bias", style.attention_bias) or f.flag("qkv_bias")
    kv = more.get("kv_heads", f.count("kv_heads", heads))
    if (queries := more.get("heads", heads)) % kv:
        named = f"{f.spelling('heads')} {queries} is no multiple of {f.spelling('kv_heads')} {kv}"
        raise SpecError(f"{f.where}: {named}")
    normed = style.qk_norm != "none" and (not style.qk_norm_flag or f.flag("use_qk_norm"))
    part = {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": kv,
        "head_dim": head_dim(f, heads),
        "window": window,
        "qkv_bias": bias,
        "o_bias": bias if style.o_bias is None else style.o_bias,
        "qk_norm": style.qk_norm if normed else "none",
        "rope": style.rope,
        "sinks": style.sinks,
    }
    return part | more


def head_dim(f: Fields, heads: int) -> int:
    """The width of a head: the field where it is there (it need not be hidden / heads)."""
    hidden = f.count("hidden")
    if not f.has("head_dim") and hidden % heads:
        raise SpecError(
            f"{f.where}: hidden size {hidden} is no multiple of {heads} heads, and there is no head_dim field"
        )
    return f.count("head_dim", hidden // heads)


def mla(f: Fields, index: Part | None = None, **more: Any) -> Part:
    """Multi-head latent attention. `head_dim` and `num_key_value_heads` mean nothing here; a null q_lora_rank means no
    query compression."""
    f.require(["heads", "kv_rank", "nope_dim", "rope_dim", "v_dim"])
    f.skip("head_dim", "num_key_value_heads", "qk_head_dim")
    if f.flag("attention_bias"):
        raise UnsupportedError(f"{f.where}: latent attention with biases (attention_bias) is not modelled")
    return {
        "kind": "mla",
        "heads": f.count("heads"),
        "q_rank": f.count("q_rank") if f.has("q_rank") else None,
        "kv_rank": f.count("kv_rank"),
        "nope_dim": f.count("nope_dim"),
        "rope_dim": f.count("rope_dim", low=0),
        "v_dim": f.count("v_dim"),
        "index": index,
    } | more


def indexers(f: Fields, layers: int) -> list[Part | None]:
    """The sparse indexer of each layer (DeepSeek-V3.2, GLM-5); `shared` layers reuse the choice of an earlier one."""
    if not f.has("index_heads"):
        return [None] * layers
    f.skip("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset")
    if any(kind != "deepseek_sparse_attention" for kind in f.items("layer_types", layers)):
        raise UnsupportedError(f"{f.where}: layer_types other than deepseek_sparse_attention are not modelled here")
    index = index_fields(f)
    kinds = f.items("indexer_types", layers) or ["full"] * layers
    if bad := next((k for k in kinds if k not in ("full", "shared")), None):
        raise UnsupportedError(f"{f.where}: indexer_types holds {str(bad)[:40]!r}; known: full, shared")
    return [index if kind == "full" else index | {"shared": True} for kind in kinds]


def index_fields(f: Fields) -> Part:
    """The indexer of a layer that has its own."""
    return {"heads": f.count("index_heads"), "dim": f.count("index_dim"), "top_k": f.count("index_top_k")}


def dense(f: Fields, style: Style, width: int | None = None) -> Part:
    """The dense feed-forward block."""
    bias = f.flag("mlp_bias", style.mlp_bias)
    return {"kind": "dense", "width": width or f.count("width"), "gated": style.gated, "bias": bias}


def moe(f: Fields, style: Style, **more: Any) -> Part:
    """The mixture-of-experts block; without a field of its own the expert width is the intermediate size."""
    f.require(["experts", "top_k"])
    width = f.count("expert_width") if f.has("expert_width") else f.count("width")
    count = f.count("shared_experts", 0, low=0)
    shared = f.count("shared_width", count * width, low=0)
    return (
        {
            "kind": "moe",
            "width": width,
            "experts": f.count("experts"),
            "top_k": f.count("top_k"),
            "shared_width": shared,
        }
        | style.moe
        | more
    )


def windows(f: Fields, layers: int, period: int = 0) -> list[int | None]:
    """The window of each layer; None: it sees everything.

    A window that is switched off, or that reaches as far as the context, is none. Where the config gives no pattern,
    every `period`-th layer sees everything; without a period all layers have the window.
    """
    window = f.count("window", 0, low=0)
    given = f.raw("use_sliding_window")
    on = f.flag("use_sliding_window", True)
    types = f.items("layer_types", layers)
    if known := next((t for t in types if t not in ("full_attention", "sliding_attention")), None):
        raise UnsupportedError(
            f"{f.where}: layer_types holds {str(known)[:40]!r}, which this family is not modelled with"
        )
    period = f.count("sliding_window_pattern", period, low=0) if f.has("sliding_window_pattern") else period
    from_layer = f.count("max_window_layers", 0, low=0) if given is not None else 0
    if not window or not on or window >= (max_positions(f) or window + 1):
        return [None] * layers
    if types:
        return [window if t == "sliding_attention" else None for t in types]
    if period:
        return [window if (i + 1) % period else None for i in range(layers)]
    return [window if i >= from_layer else None for i in range(layers)]


def max_positions(f: Fields) -> int | None:
    """The longest context: the largest of the fields that state one (one of them may be the length before scaling)."""
    stated = [f.count(name) for name in FIELD_NAMES["max_positions"] if f.has(name)]
    return max(stated) if stated else None


def rotary(f: Fields, style: Style, seen: list[int | None]) -> list[bool]:
    """Which layers have rotary positions: a list of flags, every n-th without (SmolLM3), or only windowed ones."""
    n = len(seen)
    interval = f.count("no_rope_layer_interval", 0, low=0)
    if flags := f.whole_items("no_rope_layers", n):  # 1: rotary, in spite of the name
        return [bool(flag) for flag in flags]
    if interval:
        return [(i + 1) % interval != 0 for i in range(n)]
    return [style.rope and (style.full_rope or window is not None) for window in seen]


def moe_layers(f: Fields, layers: int) -> list[bool]:
    """Which layers are mixtures, from whatever field says so; without one, all of them."""
    first = f.count("first_dense", 0, low=0)
    dense_only = set(f.whole_items("mlp_only_layers"))
    types = f.items("mlp_layer_types", layers)
    freq = f.raw("moe_layer_freq")
    listed = f.whole_items("moe_layer_freq", layers) if isinstance(freq, list) else []
    step = 1 if listed else f.count("moe_layer_freq", 1)
    sparse = f.count("decoder_sparse_step", 1) * f.count("interleave_moe_layer_step", 1)
    period, offset = f.count("expert_layer_period", 1), f.count("expert_layer_offset", 0, low=0)
    return [
        i >= first
        and i not in dense_only
        and (not types or types[i] == "sparse")
        and (bool(listed[i]) if listed else i % step == 0)
        and (i + 1) % sparse == 0
        and i % period == offset % period
        for i in range(layers)
    ]


def layer(attention: Part | None, ffn: Part | None, norms: int | None = None, **more: Any) -> Part:
    """One layer; without `norms` it has one per part, or one if it is parallel."""
    return {"attention": attention, "ffn": ffn, "norms": norms} | more
