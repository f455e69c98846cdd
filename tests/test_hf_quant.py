"""Every dialect of quantization_config: which role of a checkpoint is in which format."""

from __future__ import annotations

import pytest

from roofline.errors import SpecError, UnsupportedError
from roofline.parallel import Plan
from roofline.specs.hf import from_hf_config

DENSE = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936, "shared_expert_intermediate_size": 768, "intermediate_size": 6144,
    "mlp_only_layers": [0],
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 6, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
WIDE = {"attention": "bf16", "ffn": "bf16", "expert": "bf16", "shared": "bf16", "router": "bf16", "head": "bf16"}


def parsed(config: dict, quant: dict | None = None, side: dict | None = None):
    return from_hf_config(config | ({"quantization_config": quant} if quant else {}), side=side)


def roles(config: dict, quant: dict | None = None, side: dict | None = None) -> dict[str, str]:
    p = parsed(config, quant, side).precision
    return {role: p.of(role).name for role in WIDE}


def per_layer(patterns: list[str], layers: int) -> list[str]:
    return [p.format(i) for p in patterns for i in range(layers)]


def test_no_quantisation_is_the_dtype():
    assert parsed(DENSE).precision.name == "bf16"
    assert parsed(DENSE | {"torch_dtype": "float16"}).precision.name == "fp16"


def test_fp32_checkpoints_are_loaded_16_bits_wide():
    """vLLM's dtype 'auto' casts fp32 down (OLMo-2, Mamba); a note says so."""
    p = parsed(DENSE | {"torch_dtype": "float32"})
    assert p.precision.name == "bf16" and "fp32" in p.notes[0]


BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def test_fp8_blocks():
    """DeepSeek-V3: all linear layers in blocks; embedding, head and router wide though no list says so."""
    narrow = dict.fromkeys(("attention", "ffn", "expert", "shared"), "fp8_block")
    assert roles(MLA, BLOCKS) == WIDE | narrow
    assert parsed(MLA, BLOCKS).precision.name == "fp8_block"


def test_fp8_per_tensor_static_and_dynamic():
    assert parsed(DENSE, {"quant_method": "fp8", "activation_scheme": "static"}).precision.name == "fp8_static"
    assert parsed(DENSE, {"quant_method": "fp8", "activation_scheme": "dynamic"}).precision.name == "fp8"


def test_fp8_with_a_list_of_single_words():
    """MiniMax-M2.5: 'gate' is the router, not gate_proj."""
    quant = BLOCKS | {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}
    assert roles(MOE, quant)["expert"] == roles(MOE, quant)["ffn"] == "fp8_block"
    assert roles(MOE, quant)["router"] == "bf16"


def test_fp4_experts_beside_the_config():
    """DeepSeek-V4: expert_dtype stands outside; MXFP4 weights under FP8 activations."""
    assert roles(MLA | {"expert_dtype": "fp4"}, BLOCKS)["expert"] == "mxfp4_mxfp8"
    assert roles(MLA | {"expert_dtype": "fp4"}, BLOCKS)["attention"] == "fp8_block"


def test_static_fp8_without_a_method():
    """Qwen3-32B-FP8-Static-PerTensor: quant_algo and kv_cache_scheme, no quant_method."""
    quant = {"quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}
    assert parsed(DENSE, quant).precision.text == "fp8_static,kv=fp8"


def test_mxfp4_of_gpt_oss_is_for_experts_only():
    gpt = MOE | {"model_type": "gpt_oss", "mlp_only_layers": None, "shared_expert_intermediate_size": None}
    quant = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ]}  # fmt: skip
    assert parsed(gpt, quant).precision.name == "mxfp4_experts"


def compressed(weights: dict, acts: dict | None = None, **more) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": acts}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]} | more


KIMI_IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


def test_int4_of_kimi_is_for_routed_experts_only():
    """Kimi-K2.5: patterns leave attention, shared experts and the dense first layer wide."""
    int4 = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}
    quant = compressed(int4, format="pack-quantized", ignore=KIMI_IGNORE)
    assert parsed(MLA | {"model_type": "kimi_k2"}, quant).precision.name == "int4_experts"


def test_mxfp4_in_compressed_tensors():
    """Kimi-K3: the same words with type float and one-byte scales."""
    fp4 = {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group", "scale_dtype": "torch.uint8"}
    quant = compressed(fp4, format="mxfp4-pack-quantized", ignore=KIMI_IGNORE)
    assert parsed(MLA | {"model_type": "kimi_k2"}, quant).precision.name == "mxfp4_experts"


@pytest.mark.parametrize(
    ("weights", "acts", "name"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, {"dynamic": True}, "fp8_channel"),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, {"dynamic": True}, "fp8"),
        ({"num_bits": 8, "type": "float", "strategy": "block"}, {"dynamic": True}, "fp8_block"),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8}, "int8"),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, None, "w8a16"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}, None, "int4_g128"),
        ({"num_bits": 4, "type": "int", "group_size": 64, "symmetric": False}, None, "int4_g64z"),
        ({"num_bits": 4, "type": "float", "group_size": 16}, {"num_bits": 4}, "nvfp4"),
        ({"num_bits": 4, "type": "float", "group_size": 16}, None, "nvfp4_w4a16"),
    ],
)
def test_compressed_tensors_by_bits_type_and_strategy(weights, acts, name):
    assert roles(DENSE, compressed(weights, acts))["ffn"] == name


def test_the_head_is_a_linear_layer_unless_it_is_ignored():
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    assert roles(DENSE, compressed(weights))["head"] == "bf16"
    assert roles(DENSE, compressed(weights, ignore=[]))["head"] == "w8a16"


NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}


def test_nvfp4_keeps_attention_where_the_list_says_so():
    """nvidia's MoE checkpoints: attention of every layer, router and head are in the list."""
    quant = NVFP4 | {"ignore": ["lm_head", *per_layer(["model.layers.{}.self_attn*", "model.layers.{}.mlp.gate"], 8)]}
    assert parsed(MOE, quant).precision.text == "nvfp4_mlp,kv=fp8"
    assert roles(MOE, NVFP4 | {"ignore": per_layer(["model.layers.{}.mlp.gate"], 8)})["attention"] == "nvfp4"


def test_a_side_file_speaks_where_the_config_is_silent():
    side = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}}
    side["quantization"]["exclude_modules"] = ["lm_head", *per_layer(["model.layers.{}.self_attn*"], 8)]
    assert parsed(MOE, side=side).precision.text == "nvfp4_mlp,kv=fp8"


def test_a_role_with_mixed_formats_has_the_mean_of_its_parameters():
    """DeepSeek-V3.1-NVFP4 leaves the low-rank projections of attention wide and quantises the output projection."""
    names = ("kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj", "q_b_proj")
    quant = NVFP4 | {"ignore": per_layer([f"model.layers.{{}}.self_attn.{n}" for n in names], 6)}
    h, heads = 7168, 128
    wide = h * 1536 + 1536 * heads * 192 + h * 576 + 512 * heads * 256
    out = heads * 128 * h
    p = parsed(MLA, quant)
    assert p.precision.of("attention").bits == pytest.approx((16 * wide + 4.5 * out) / (wide + out), rel=1e-3)
    assert any("attention" in note for note in p.notes)


def test_layers_that_are_left_out_whole():
    """GLM-5.1-NVFP4: 'model.layers.0*' and so on are the dense layers: their feed-forward block stays wide."""
    quant = NVFP4 | {"ignore": ["lm_head", "model.layers.0*", "model.layers.1.*", "model.layers.2.*"]}
    r = roles(MLA, quant)
    assert (r["ffn"], r["expert"]) == ("bf16", "nvfp4")
    assert r["attention"].startswith("0.5*")  # three of six layers


def test_prefixes_of_multimodal_checkpoints_do_not_matter():
    for prefix in ("language_model.model.", "model.language_model.", "model.", ""):
        quant = NVFP4 | {"ignore": per_layer([prefix + "layers.{}.self_attn*"], 8)}
        assert roles(MOE, quant)["attention"] == "bf16"


def test_mixed_precision_by_module():
    table = {f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4"} for i in range(1, 8)}
    table |= {f"model.layers.{i}.self_attn.{m}_proj": {"quant_algo": "FP8"} for i in range(8) for m in "qkvo"}
    quant = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": table}
    assert roles(MOE, quant) == WIDE | {"attention": "fp8", "expert": "nvfp4"}


def test_mixed_precision_over_fp8_blocks():
    """DeepSeek-V4-NVFP4: the ignore list speaks of the 4-bit part; what it names stays in fp8 blocks."""
    quant = BLOCKS | {"quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "ignore": ["*.attn.*", "head"]}
    assert roles(MLA, quant) == WIDE | {
        "attention": "fp8_block", "ffn": "fp8_block", "shared": "fp8_block", "expert": "nvfp4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4_awq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}, "int4_gptq"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8_g32z"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": False}, "int4_g64"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "w8a16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4_double"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8_channel"),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4"}, "input_tensors": {"dtype": "fp4"}},
            },
            "mxfp4_w4a4",
        ),
    ],
)
def test_other_dialects(quant, name):
    assert roles(DENSE, quant) == WIDE | dict.fromkeys(("attention", "ffn", "expert", "shared"), name) | {
        "expert": roles(DENSE, quant)["expert"], "shared": roles(DENSE, quant)["shared"],  # the model has none
    }  # fmt: skip


def test_bytes_of_an_awq_checkpoint():
    """5.2032 GiB after load: vllm-project/vllm issue 13882 (Qwen2.5-7B-Instruct-AWQ)."""
    qwen = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28}
    qwen |= {"num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "torch_dtype": "float16"}
    p = parsed(qwen, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"})
    assert float(p.model.weight_bytes(Plan(), p.precision)) / 2**30 == pytest.approx(5.2032, rel=5e-3)


@pytest.mark.parametrize(
    ("quant", "said"),
    [
        ({"quant_method": "hqq"}, "quant_method 'hqq'"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "quant_algo 'FP3'"),
        (compressed({"num_bits": 6, "type": "int"}), "6 bits"),
        ({"quant_method": "gptq", "bits": 5}, "5 bits"),
        (compressed({"num_bits": 8, "type": "int"}, ignore=["re:("]), "regular expression"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(quant, said):
    with pytest.raises(UnsupportedError, match=said):
        parsed(DENSE, quant)


def test_checkpoints_at_hand(shared):
    """What is known of published checkpoints: NVFP4 MoE keep attention wide, 4-bit Kimi its routed experts only, ..."""
    folder = shared / "data" / "hf_configs"
    known = {
        "openai--gpt-oss-120b": "mxfp4_experts",
        "moonshotai--Kimi-K2.5": "int4_experts",
        "deepseek-ai--DeepSeek-V3": "fp8_block",
        "Qwen--Qwen3-32B-FP8-Static-PerTensor": "fp8_static,kv=fp8",
        "nvidia--Kimi-K2.6-NVFP4": "nvfp4_experts,kv=fp8",
        "nvidia--MiniMax-M2.5-NVFP4": "nvfp4_mlp,kv=fp8",
        "nvidia--Gemma-4-31B-IT-NVFP4": "nvfp4_mlp,kv=fp8",
        "nvidia--Qwen3.5-397B-A17B-NVFP4": "nvfp4_experts,kv=fp8",
        "nvidia--Llama-3.1-70B-Instruct-FP8": "fp8_static,kv=fp8",
        "nvidia--DeepSeek-V4-Pro-NVFP4": "fp8_block,expert=nvfp4",
    }
    assert {name: from_hf_config(folder / f"{name}.json").precision.text for name in known} == known


@pytest.mark.parametrize("quant", ["fp8", ["fp8"], 8])
def test_a_quantisation_of_another_shape_is_not_read_as_none(quant):
    with pytest.raises(SpecError, match=r"quantization_config is .*; allowed: an object with quant_method"):
        from_hf_config(DENSE | {"quantization_config": quant})
