"""Families whose layers are of several kinds: linear attention, state space, compressed or shared caches, encoders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roofline.errors import UnsupportedError
from roofline.specs.fields import Fields
from roofline.specs.hf_blocks import Part, Style, dense, gqa, index_fields, layer, mla, moe, moe_layers, windows


def layer_kinds(f: Fields, allowed: tuple[str, ...]) -> list[str]:
    """`layer_types`, each one of `allowed`."""
    kinds = f.items("layer_types", f.count("layers"))
    if bad := next((k for k in kinds if k not in allowed), None):
        raise UnsupportedError(f"{f.where}: layer_types holds {str(bad)[:40]!r}; known: {', '.join(allowed)}")
    return kinds


def qwen3_next(f: Fields, style: Style) -> list[Part]:
    """Qwen3-Next and Qwen3.5: gated DeltaNet layers, and every fourth a gated softmax attention."""
    n, interval = f.count("layers"), f.count("full_attention_interval", 4)
    kinds = layer_kinds(f, ("linear_attention", "full_attention"))
    kinds = kinds or ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n)]
    f.require(["linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim"])
    f.skip("mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    linear = {
        "kind": "gated_delta",
        "heads": f.count("linear_num_value_heads"),
        "key_heads": f.count("linear_num_key_heads"),
        "key_dim": f.count("linear_key_head_dim"),
        "value_dim": f.count("linear_value_head_dim"),
        "conv": f.count("conv", 4),
    }
    gate = "full" if f.flag("attn_output_gate", True) else "none"
    full = gqa(f, style, output_gate=gate)
    mixtures = moe_layers(f, n) if f.has("experts") else [False] * n
    return [
        layer(full if kind == "full_attention" else linear, moe(f, style) if mixture else dense(f, style))
        for kind, mixture in zip(kinds, mixtures)
    ]


def kimi_linear(f: Fields, style: Style) -> list[Part]:
    """Kimi Linear and K3: Kimi delta attention, and MLA on the layers that `linear_attn_config` lists from 1."""
    n, config = f.count("layers"), f.inner("linear_attn_config")
    config.require(["num_heads", "head_dim", "full_attn_layers"])
    full = set(config.whole_items("full_attn_layers", low=1))
    linear = set(config.whole_items("kda_layers", low=1))
    if linear and (full | linear != set(range(1, n + 1)) or full & linear):
        raise UnsupportedError(f"{config.where}: full_attn_layers and kda_layers do not share out the {n} layers")
    delta = {
        "kind": "kda",
        "heads": config.count("num_heads"),
        "head_dim": config.count("head_dim"),
        "conv": config.count("conv", 4),
        "full_rank_gate": config.flag("use_full_rank_gate"),
    }
    latent = mla(f, rope=not f.flag("mla_use_nope"), output_gate=f.flag("mla_use_output_gate"))
    narrow = f.count("routed_expert_hidden_size") if f.has("routed_expert_hidden_size") else None
    more = {"latent": narrow, "latent_norm": bool(narrow) and f.flag("latent_moe_use_norm")}
    f.skip("attn_res_block_size")  # queries over earlier residuals: 4 hidden a layer, not in the counted totals
    return [
        layer(latent if i + 1 in full else delta, moe(f, style, **more) if mixture else dense(f, style))
        for i, mixture in enumerate(moe_layers(f, n))
    ]


def mamba1(f: Fields, **more: Any) -> Part:
    """The selective-scan mixer."""
    inner = f.count("width") if f.has("width") and "kind" not in more else None
    inner = inner or f.count("expand", 2) * f.count("hidden")
    return {
        "kind": "mamba1",
        "inner": inner,
        "state": f.count("state"),
        "conv": f.count("conv", 4),
        "dt_rank": f.count("dt_rank", -(-f.count("hidden") // 16)),
    } | more


def mamba2(f: Fields, heads: int, head_dim: int) -> Part:
    """The scalar-decay mixer."""
    f.skip("expand", "mamba_expand", "mamba_d_ssm")
    return {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": head_dim,
        "state": f.count("state"),
        "groups": f.count("groups", 1),
        "conv": f.count("conv", 4),
    }


def _plain_mixer(f: Fields) -> None:
    f.skip("mamba_ssm_cache_dtype", "chunk_size", "use_mamba_kernels", "mamba_hidden_act", "mamba_chunk_size")
    if not f.flag("use_conv_bias", True) or not f.flag("mamba_conv_bias", True):
        raise UnsupportedError(f"{f.where}: a mixer without convolution bias is not modelled")
    if f.flag("use_bias") or f.flag("mamba_proj_bias"):
        raise UnsupportedError(f"{f.where}: a mixer with projection biases is not modelled")


def mamba(f: Fields, style: Style) -> list[Part]:
    """Mamba and Falcon-Mamba: nothing but mixers. `intermediate_size` is the inner width (`expand` may disagree)."""
    _plain_mixer(f)
    f.skip("expand", "mamba_expand")
    return [layer(mamba1(f), None)] * f.count("layers")


def mamba_2(f: Fields, style: Style) -> list[Part]:
    """Mamba-2: nothing but mixers."""
    _plain_mixer(f)
    head_dim = f.count("head_dim")
    heads = f.count("heads", f.count("expand", 2) * f.count("hidden") // head_dim)
    return [layer(mamba2(f, heads, head_dim), None)] * f.count("layers")


def jamba(f: Fields, style: Style) -> list[Part]:
    """Jamba: one attention layer per period, mixers with norms else; mixtures every other layer."""
    _plain_mixer(f)
    n, period = f.count("layers"), f.count("attn_layer_period", 8)
    offset = f.count("attn_layer_offset", 4, low=0)
    mixer = mamba1(f, kind="mamba1", norms=True)
    attention = gqa(f, style)
    return [
        layer(attention if i % period == offset else mixer, moe(f, style) if mixture else dense(f, style))
        for i, mixture in enumerate(moe_layers(f, n))
    ]


def granite_hybrid(f: Fields, style: Style) -> list[Part]:
    """Granite 4: Mamba-2 or attention without positions; a shared expert beside the routed ones, or alone."""
    _plain_mixer(f)
    kinds = layer_kinds(f, ("mamba", "attention"))
    if not kinds:
        raise f.missing(["layer_types"])
    style = replace(style, rope=f.text("position_embedding_type", "rope") != "nope")
    mixer = mamba2(f, f.count("ssm_heads"), f.count("ssm_head_dim"))
    f.skip("num_experts_per_tok", "intermediate_size")
    ffn = moe(f, style) if f.count("experts", 0, low=0) else dense(f, style, f.count("shared_width"))
    attention = gqa(f, style) if "attention" in kinds else None
    return [layer(mixer if kind == "mamba" else attention, ffn) for kind in kinds]


def nemotron_h(f: Fields, style: Style) -> list[Part]:
    """Nemotron-H: every block is a layer of one part: mixer (M), attention (*), dense (-) or mixture (E)."""
    _plain_mixer(f)
    blocks = nemotron_blocks(f, "hybrid_override_pattern", "layers_block_type")
    if f.has("layers") and f.count("layers") != len(blocks):
        raise UnsupportedError(f"{f.where}: {f.count('layers')} layers, but the block pattern names {len(blocks)}")
    return [nemotron_layer(f, style, block) for block in blocks]


def nemotron_blocks(f: Fields, pattern_field: str, list_field: str) -> list[str]:
    """The blocks as words, from a pattern such as 'M-M*' or a list."""
    words = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    pattern, listed = f.text(pattern_field), f.items(list_field)
    blocks = [words.get(c, c) for c in pattern] or listed
    if bad := next((b for b in blocks if b not in words.values()), None):
        known = ", ".join(words.values())
        raise UnsupportedError(f"{f.where}: block {str(bad)[:40]!r} is not modelled; known: {known}")
    if not blocks:
        raise f.missing([pattern_field])
    return blocks


def nemotron_layer(f: Fields, style: Style, block: str) -> Part:
    """One block of Nemotron-H."""
    f.skip("moe_shared_expert_overlap")
    if block == "mamba":
        return layer(mamba2(f, f.count("ssm_heads"), f.count("ssm_head_dim")), None)
    if block == "attention":
        return layer(gqa(f, style), None)
    if block == "mlp":
        return layer(None, dense(f, style))
    latent = f.count("moe_latent_size") if f.has("moe_latent_size") else None
    return layer(None, moe(f, style, latent=latent))


def gemma4(f: Fields, style: Style) -> list[Part]:
    """Gemma 4: wider heads on full layers, whose value may be the key; last layers reuse caches; parallel experts."""
    n = f.count("layers")
    f.skip("vocab_size_per_layer_input", "use_bidirectional_attention", "moe_intermediate_size")
    shared = f.count("num_kv_shared_layers", 0, low=0)
    wide = f.count("global_head_dim", f.count("head_dim"))
    same, double = f.flag("attention_k_eq_v"), f.flag("use_double_wide_mlp")
    per_layer = f.count("hidden_size_per_layer_input", 0, low=0) or None
    mixture = f.flag("enable_moe_block")
    if not mixture:
        f.skip("num_experts", "top_k_experts", "expert_intermediate_size")
    global_kv = f.count("num_global_key_value_heads", f.count("kv_heads", f.count("heads")))
    blocks = []
    for i, window in enumerate(windows(f, n, 6)):
        reuses = i >= n - shared
        more: Part = {"shared_kv": reuses}
        if window is None:
            more |= {"head_dim": wide, "k_is_v": same and not reuses}
            more |= {"kv_heads": global_kv} if same else {}
        width = f.count("width") * (2 if double and reuses else 1)
        ffn, norms = dense(f, style, width), style.norms
        if mixture:  # the dense block runs beside the routed experts, each with norms of its own
            ffn, norms = moe(f, style, shared_width=width), style.norms + 3
        blocks.append(layer(gqa(f, style, window, **more), ffn, norms, per_layer_input=per_layer))
    return blocks


def deepseek_v4(f: Fields, style: Style) -> list[Part]:
    """DeepSeek-V4: a window, entries that each summarise 4 (chosen by an indexer) or 128 tokens, several residuals."""
    n = f.count("layers")
    f.skip("compress_rope_theta", "head_dim", "num_key_value_heads")
    ratios = f.whole_items("compress_ratios")  # one longer than the layers where the MTP layer has an entry
    if len(ratios) not in (n, n + f.count("mtp_layers", 0, low=0)):
        raise UnsupportedError(f"{f.where}: compress_ratios has {len(ratios)} values for {n} layers")
    hashed = f.count("num_hash_layers", 0, low=0)
    more = {"streams": f.count("hc_mult")} if f.has("hc_mult") else {}
    return [
        layer(compressed(f, ratio), moe(f, style, correction_bias=i >= hashed), None, **more)
        for i, ratio in enumerate(ratios[:n])
    ]


def compressed(f: Fields, ratio: int) -> Part:
    """The attention of one DeepSeek-V4 layer."""
    if ratio not in (0, 4, 128):
        raise UnsupportedError(f"{f.where}: compress_ratios holds {ratio}; known: 0, 4, 128")
    return {
        "kind": "compressed",
        "heads": f.count("heads"),
        "head_dim": f.count("head_dim"),
        "rope_dim": f.count("rope_dim"),
        "q_rank": f.count("q_rank"),
        "o_rank": f.count("o_lora_rank"),
        "o_groups": f.count("o_groups"),
        "window": f.count("window"),
        "ratio": ratio or None,
        "overlap": ratio == 4,
        "index": index_fields(f) if ratio == 4 else None,
    }


def t5(f: Fields, style: Style) -> list[Part]:
    """The decoder of T5: attention, attention over the encoder, feed-forward."""
    f.skip("is_encoder_decoder", "num_decoder_layers")
    n = f.count("num_decoder_layers", f.count("layers"))
    attention, ffn = t5_parts(f, style)
    return [{"attention": attention, "cross": attention, "ffn": ffn}] * n


def t5_parts(f: Fields, style: Style) -> tuple[Part, Part]:
    """Attention and feed-forward of T5; its inner width is heads x d_kv."""
    gated = f.text("feed_forward_proj", "relu").startswith("gated")
    f.require(["d_kv", "d_ff"])
    attention = gqa(f, style, head_dim=f.count("d_kv"))
    return attention, dense(f, replace(style, gated=gated), f.count("d_ff"))
