"""What a model has beside its layers: position tables, biases, an encoder, multi-token prediction."""

from __future__ import annotations

from typing import Any

from roofline.specs import hf_hybrids as hybrids
from roofline.specs.fields import Fields
from roofline.specs.hf_blocks import Part, Style, index_fields, layer, max_positions, mla, moe

Extras = tuple[dict[str, Any], list[str]]

# Families whose checkpoints carry multi-token-prediction layers, and how they are stored (facts/models: traps).
_MTP: dict[str, Part] = {
    "deepseek_v3": {"own_vocab": True},
    "deepseek_v32": {"own_vocab": True},
    "glm4_moe": {"own_vocab": True},
    "glm4_moe_lite": {"own_vocab": True},
    "glm_moe_dsa": {"own_vocab": True, "vocab_stored": False},
    "deepseek_v4": {},
    "mimo": {},
    "nemotron_h": {},
    "qwen3_next": {},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {},
}


def model_fields(f: Fields, family: str, style: Style, layers: list[Part]) -> Extras:
    """Further fields of the model spec, and notes."""
    fields: dict[str, Any] = {}
    if family in ("opt", "gpt2", "gpt3"):  # OPT's table is offset by two rows
        fields["positions"] = (max_positions(f) or 2048) + (2 if family == "opt" else 0)
    if family == "bloom":
        fields["embed_norm"] = True
    if family in ("gptj", "phi") or f.flag("lm_head_bias"):
        fields["head_bias"] = True
    if any(part.get("per_layer_input") for part in layers):
        fields["per_layer_vocab"] = f.count("vocab_size_per_layer_input", f.count("vocab"))
    if family == "t5":
        fields |= _t5(f, style)
    if family == "deepseek_v4" and f.has("hc_mult"):  # the streams are mixed once more before the head
        m = f.count("hc_mult")
        head = {"name": "streams.head", "n": m, "k": m * f.count("hidden")}
        fields["extras"] = [head, {"name": "streams.head_bias", "n": m + 1}]
    mtp, notes = _mtp(f, family, style, layers)
    return fields | ({"mtp": mtp} if mtp else {}), notes


def _t5(f: Fields, style: Style) -> dict[str, Any]:
    """The encoder, and one table of relative biases for each of the two stacks."""
    attention, ffn = hybrids.t5_parts(f, style)
    encoder = layer(attention | {"causal": False}, ffn) | {"count": f.count("layers")}
    buckets = f.count("relative_attention_num_buckets", 32)
    return {"encoder": [encoder], "extras": [{"name": "relative_bias", "n": 2 * buckets * f.count("heads")}]}


def _mtp(f: Fields, family: str, style: Style, layers: list[Part]) -> tuple[Part | None, list[str]]:
    """Multi-token-prediction modules, where the family stores them."""
    count = f.count("mtp_layers", 0, low=0)
    f.skip("mtp_hybrid_override_pattern", "mtp_layers_block_type", "mtp_use_dedicated_embeddings")
    if not count:
        return None, []
    if family not in _MTP:
        return None, [f"{count} multi-token-prediction layers are declared; they are not modelled for '{family}'"]
    if family == "nemotron_h":
        blocks = hybrids.nemotron_blocks(f, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
        inner = [hybrids.nemotron_layer(f, style, block) for block in blocks]
    else:
        inner = [_draft_layer(f, family, style, layers)]
    module = {"count": count, "layers": inner} | _MTP[family]
    if family == "deepseek_v4" and f.has("hc_mult"):
        m = f.count("hc_mult")
        module["extra_params"] = m * m * f.count("hidden") + m + 1
    return module, []


def _draft_layer(f: Fields, family: str, style: Style, layers: list[Part]) -> Part:
    """A further decoder layer: like the last one, with full attention and, sparse or not, all of its own."""
    if family in ("glm_moe_dsa", "deepseek_v32"):
        return layer(mla(f, index_fields(f)), moe(f, style))
    if family == "deepseek_v4":  # the entry after those of the layers
        ratios = f.whole_items("compress_ratios")
        ratio = ratios[len(layers)] if len(ratios) > len(layers) else 0
        return layers[-1] | {"attention": hybrids.compressed(f, ratio)}
    return layers[-1]
