"""How the families of decoders are put together: a style per family, and builders for what a table cannot say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from roofline.errors import UnsupportedError
from roofline.specs import hf_hybrids as hybrids
from roofline.specs.fields import Fields
from roofline.specs.hf_blocks import (
    Part,
    Style,
    dense,
    gqa,
    indexers,
    layer,
    mla,
    moe,
    moe_layers,
    rotary,
    windows,
)

Builder = Callable[[Fields, Style], list[Part]]

LLAMA = Style()
_CORRECTED = {"correction_bias": True}
_LEARNED = {"rope": False, "norm": "layer", "attention_bias": True, "mlp_bias": True, "gated": False}


def decoder(f: Fields, style: Style) -> list[Part]:
    """Attention over keys and values of its own, full or windowed, and dense or mixture blocks."""
    n = f.count("layers")
    mixtures = moe_layers(f, n) if f.count("experts", 0, low=0) else [False] * n
    seen = windows(f, n, style.period)
    return [
        layer(
            gqa(f, style, window, rope=rope),
            moe(f, style) if mixture else dense(f, style),
            style.norms,
            parallel=style.parallel,
        )
        for window, rope, mixture in zip(seen, rotary(f, style, seen), mixtures)
    ]


def latent_decoder(f: Fields, style: Style) -> list[Part]:
    """MLA, with or without a sparse indexer, over dense-first mixtures."""
    n = f.count("layers")
    return [
        layer(mla(f, index), moe(f, style) if mixture else dense(f, style))
        for index, mixture in zip(indexers(f, n), moe_layers(f, n))
    ]


def four_h(f: Fields, style: Style) -> list[Part]:
    """GPT-J, BLOOM: the inner width is four times hidden unless it is given."""
    width = f.count("width", 4 * f.count("hidden"))
    return [layer(gqa(f, style), dense(f, style, width), parallel=style.parallel)] * f.count("layers")


def starcoder2(f: Fields, style: Style) -> list[Part]:
    """StarCoder2: one flag for the biases of all linear layers."""
    bias = f.flag("use_bias", True)
    return decoder(f, replace(style, attention_bias=bias, mlp_bias=bias))


def opt(f: Fields, style: Style) -> list[Part]:
    """OPT; the small variant that projects its embedding and the one with post-norms are not modelled."""
    if f.count("word_embed_proj_dim", f.count("hidden")) != f.count("hidden"):
        raise UnsupportedError(f"{f.where}: OPT with word_embed_proj_dim other than the hidden size is not modelled")
    return decoder(f, style)


def falcon(f: Fields, style: Style) -> list[Part]:
    """Falcon: kv heads as the architecture flags say; one norm in the first parallel block, two in the later one."""
    heads, new = f.count("heads"), f.flag("new_decoder_architecture")
    kv = f.count("kv_heads", heads) if new else 1 if f.flag("multi_query", True) else heads
    f.skip("num_kv_heads")
    bias = f.flag("bias")
    style = replace(style, attention_bias=bias, mlp_bias=bias, rope=not f.flag("alibi"))
    parallel = new or f.flag("parallel_attn", True)
    norms = f.count("num_ln_in_parallel_attn", 2) if new else None
    width = f.count("width", 4 * f.count("hidden"))
    block = layer(gqa(f, style, kv_heads=kv), dense(f, style, width), norms, parallel=parallel)
    return [block] * f.count("layers")


def dbrx(f: Fields, style: Style) -> list[Part]:
    """DBRX keeps its attention and expert fields in objects of their own."""
    attention, experts = f.inner("attn_config"), f.inner("ffn_config")
    experts.require(["ffn_hidden_size", "moe_num_experts", "moe_top_k"])
    mixture = {
        "kind": "moe",
        "width": experts.count("ffn_hidden_size"),
        "experts": experts.count("moe_num_experts"),
        "top_k": experts.count("moe_top_k"),
    }
    block = layer(gqa(f, style, kv_heads=attention.count("kv_n_heads")), mixture)
    return [block] * f.count("layers")


def llama4(f: Fields, style: Style) -> list[Part]:
    """Llama 4: three of four layers attend within chunks, the fourth sees everything and has no rotary positions."""
    n, chunk = f.count("layers"), f.count("attention_chunk_size", 0, low=0) or None
    interval = f.count("no_rope_layer_interval", 4)
    rotates = f.whole_items("no_rope_layers", n) or [int((i + 1) % interval != 0) for i in range(n)]
    f.skip("layer_types", "moe_layers")
    plain = f.count("intermediate_size_mlp") if f.has("intermediate_size_mlp") else f.count("width")
    width = f.count("width")
    normed = "head" if f.flag("use_qk_norm", True) else "none"
    blocks = []
    for rope, mixture in zip(rotates, moe_layers(f, n)):
        attention = gqa(f, style, rope=bool(rope), chunk=chunk if rope else None)
        attention |= {"qk_norm": normed, "qk_norm_params": False} if rope and normed != "none" else {}
        block = moe(f, style, width=width, shared_width=width) if mixture else dense(f, style, plain)
        blocks.append(layer(attention, block))
    return blocks


def mimo_v2(f: Fields, style: Style) -> list[Part]:
    """MiMo-V2: windowed layers (1 in hybrid_layer_pattern) have their own heads and attention sinks."""
    n = f.count("layers")
    f.skip("attention_chunk_size", "swa_rope_theta")
    sliding = f.whole_items("hybrid_layer_pattern", n)
    full_sinks, window_sinks = f.flag("add_full_attention_sink_bias"), f.flag("add_swa_attention_sink_bias")
    heads = f.count("heads")
    own = {
        "heads": f.count("swa_num_attention_heads", heads),
        "kv_heads": f.count("swa_num_key_value_heads", f.count("kv_heads", heads)),
        "head_dim": f.count("swa_head_dim", f.count("head_dim")),
        "v_dim": f.count("swa_v_head_dim", f.count("v_dim")),
        "sinks": window_sinks,
    }
    full = gqa(f, style, v_dim=f.count("v_dim"), sinks=full_sinks)
    windowed = gqa(f, style, f.count("window"), **own)
    return [
        layer(windowed if slides else full, moe(f, style) if mixture else dense(f, style))
        for slides, mixture in zip(sliding, moe_layers(f, n))
    ]


def step3(f: Fields, style: Style) -> list[Part]:
    """Step-3.5/3.7: windowed layers have more query heads; attention output has a gate per head."""
    n, corrected = f.count("layers"), f.flag("use_moe_router_bias")
    sliding_heads = f.count("num_sliding_attention_heads", f.count("heads"))
    f.skip("moe_router_scaling_factor")
    return [
        layer(
            gqa(f, style, window, output_gate="head", heads=sliding_heads if window else f.count("heads")),
            moe(f, style, correction_bias=corrected) if mixture else dense(f, style),
        )
        for window, mixture in zip(windows(f, n), moe_layers(f, n))
    ]


def minimax_m2(f: Fields, style: Style) -> list[Part]:
    """MiniMax-M2: all layers full; the declared MTP modules are not stored."""
    f.skip("use_mtp", "mtp_transformer_layers", "num_mtp_modules")
    if any(kind != 1 for kind in f.whole_items("attn_type_list")):
        raise UnsupportedError(f"{f.where}: attn_type_list with lightning attention is not modelled")
    style = replace(style, moe={"correction_bias": f.flag("use_routing_bias")})
    return decoder(f, style)


def minimax_m3(f: Fields, style: Style) -> list[Part]:
    """MiniMax-M3: an indexer chooses blocks of tokens; `intermediate_size` is the experts' width."""
    n, sparse = f.count("layers"), f.inner("sparse_attention_config")
    f.skip("num_mtp_modules")
    sparse.skip("sparse_attention_freq")
    used = sparse.whole_items("sparse_attention_freq", n) if sparse.flag("use_sparse_attention") else [0] * n
    index: Part = {}
    if any(used):
        top_k = sparse.count("sparse_topk_blocks") * sparse.count("sparse_block_size")
        index = {"heads": sparse.count("sparse_num_index_heads"), "dim": sparse.count("sparse_index_dim")}
        index |= {"top_k": top_k, "head_weights": False, "k_norm": "qk"}
    gate = "full" if f.flag("attention_output_gate") else "none"
    width = f.count("dense_intermediate_size")
    bias = f.flag("use_routing_bias")
    f.skip("first_k_dense_replace")
    return [
        layer(
            gqa(f, style, output_gate=gate, index=index if chosen else None),
            moe(f, style, correction_bias=bias) if mixture else dense(f, style, width),
        )
        for chosen, mixture in zip(used, moe_layers(f, n))
    ]


def nemotron_nas(f: Fields, style: Style) -> list[Part]:
    """Nemotron-NAS: each block has its own kv heads and width, or skips attention."""
    n, hidden, heads = f.count("layers"), f.count("hidden"), f.count("heads")
    blocks = []
    for i, config in enumerate(f.items("block_configs", n)):
        block = Fields(config if isinstance(config, dict) else {}, f"{f.where}: block_configs[{i}]")
        attention, ffn = block.inner("attention"), block.inner("ffn")
        if attention.flag("replace_with_linear") or ffn.flag("replace_with_linear") or attention.has("window_length"):
            raise UnsupportedError(f"{block.where}: blocks replaced by a linear layer or windowed are not modelled")
        skip_attention, skip_ffn = attention.flag("no_op"), ffn.flag("no_op")
        group = 1 if skip_attention else attention.count("n_heads_in_group")
        part = None if skip_attention else gqa(f, style, kv_heads=max(heads // group, 1))
        width = 0 if skip_ffn else ffn_width(ffn, hidden)
        if not (skip_attention and skip_ffn):
            blocks.append(layer(part, None if skip_ffn else dense(f, style, width)))
    return blocks


def ffn_width(ffn: Fields, hidden: int) -> int:
    """2/3 of ffn_mult x hidden, rounded up to 256 (DeciLM modelling code)."""
    mult = ffn.raw("ffn_mult")
    if not isinstance(mult, int | float) or isinstance(mult, bool) or not 0 < mult <= 100:
        raise UnsupportedError(f"{ffn.where}: ffn_mult {str(mult)[:40]} is not modelled; allowed: above 0, up to 100")
    return -(-int(2 * mult * hidden / 3) // 256) * 256


def _table() -> dict[str, tuple[Style, Builder]]:
    qwen2 = Style(attention_bias=True, o_bias=False)
    qwen3 = Style(qk_norm="head")
    gemma = Style(tied=True)
    cohere = Style(qk_norm="full", qk_norm_flag=True, norm="layer_no_bias", parallel=True, tied=True)
    deepseek = Style(moe=_CORRECTED)
    mixture: dict[str, Any] = {"qwen2_moe": replace(qwen2, moe={"shared_gate": True})}
    gpt_oss = Style(attention_bias=True, sinks=True, moe={"bias": True, "router_bias": True})
    nope = Style(rope=False)
    qwen_next = Style(qk_norm="head", moe={"shared_gate": True})
    return {
        **dict.fromkeys(
            ("llama", "mistral", "mistral3", "mixtral", "ministral3", "granite", "smollm3", "phi3"), (LLAMA, decoder)
        ),
        **dict.fromkeys(
            ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "mimo"), (qwen2, decoder)
        ),
        "qwen2_moe": (mixture["qwen2_moe"], decoder),
        **dict.fromkeys(
            ("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_vl", "qwen3_vl_moe"), (qwen3, decoder)
        ),
        "gemma": (gemma, decoder),
        "gemma2": (replace(gemma, norms=4, period=2), decoder),
        **dict.fromkeys(("gemma3", "gemma3_text"), (replace(gemma, norms=4, period=6, qk_norm="head"), decoder)),
        "cohere": (cohere, decoder),
        "cohere2": (replace(cohere, period=4, full_rope=False), decoder),
        **dict.fromkeys(("olmo2", "olmoe"), (Style(qk_norm="full"), decoder)),
        "olmo3": (Style(qk_norm="full", period=4), decoder),
        "gpt_oss": (gpt_oss, decoder),
        "phimoe": (Style(attention_bias=True, norm="layer"), decoder),
        "glm4_moe": (Style(qk_norm="head", qk_norm_flag=True, o_bias=False, moe=_CORRECTED), decoder),
        "minimax_m2": (Style(qk_norm="full", qk_norm_flag=True), minimax_m2),
        **dict.fromkeys(("minimax_m3", "minimax_m3_vl"), (Style(qk_norm="head", qk_norm_flag=True), minimax_m3)),
        **dict.fromkeys(("deepseek_v2", "mistral4"), (LLAMA, latent_decoder)),
        **dict.fromkeys(
            ("deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm4_moe_lite", "glm_moe_dsa"),
            (deepseek, latent_decoder),
        ),
        "gptj": (Style(**_LEARNED | {"attention_bias": False, "rope": True}, parallel=True), four_h),
        "gpt_neox": (Style(**_LEARNED | {"rope": True}, parallel=True, norms=2), decoder),
        "phi": (Style(**_LEARNED | {"rope": True}, parallel=True), decoder),
        "gpt2": (Style(**_LEARNED, tied=True), four_h),
        "starcoder2": (Style(**_LEARNED | {"rope": True}, tied=True), starcoder2),
        "bloom": (Style(**_LEARNED, tied=True), four_h),
        "opt": (Style(**_LEARNED, tied=True), opt),
        "gpt3": (Style(**_LEARNED, tied=True), decoder),
        "falcon": (Style(norm="layer", gated=False, tied=True), falcon),
        "dbrx": (Style(norm="layer_no_bias"), dbrx),
        **dict.fromkeys(("llama4", "llama4_text"), (LLAMA, llama4)),
        **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), (Style(moe=_CORRECTED), mimo_v2)),
        **dict.fromkeys(("step3p5", "step3p7"), (Style(qk_norm="head"), step3)),
        "nemotron-nas": (LLAMA, nemotron_nas),
        **dict.fromkeys(
            ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
            (qwen_next, hybrids.qwen3_next),
        ),
        **dict.fromkeys(("kimi_linear", "kimi_k3"), (deepseek, hybrids.kimi_linear)),
        **dict.fromkeys(("mamba", "falcon_mamba"), (Style(), hybrids.mamba)),
        "mamba2": (Style(), hybrids.mamba_2),
        "jamba": (nope, hybrids.jamba),
        "granitemoehybrid": (Style(), hybrids.granite_hybrid),
        "nemotron_h": (Style(rope=False, gated=False, moe=_CORRECTED | {"gated": False}), hybrids.nemotron_h),
        **dict.fromkeys(
            ("gemma4", "gemma4_text"),
            (replace(gemma, norms=4, qk_norm="head", moe={"router_scales": True}), hybrids.gemma4),
        ),
        "deepseek_v4": (LLAMA, hybrids.deepseek_v4),
        "t5": (Style(rope=False), hybrids.t5),
    }


FAMILIES: dict[str, tuple[Style, Builder]] = _table()
