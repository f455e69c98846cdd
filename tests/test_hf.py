"""config.json -> Model: exact totals of every known config, the traps of ingesting one, and refusals by name.

Totals without another origin beside them are those of the Hub's safetensors, as listed in the project's model facts.
"""

from __future__ import annotations

import copy
import csv
import json
import math

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roofline.errors import RooflineError, SpecError, UnsupportedError
from roofline.specs.fields import FIELD_NAMES, Fields
from roofline.specs.hf import ParsedModel, from_hf_config
from roofline.specs.hf_families import FAMILIES
from roofline.specs.json_file import parse_json, read_json
from roofline.specs.library import build
from roofline.specs.model import Model
from roofline.specs.yaml_file import parse_yaml
from roofline.specs.yaml_text import to_yaml

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
NEMO = LLAMA | {
    "model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128, "vocab_size": 131072,
    "sliding_window": None,
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960,
    "tie_word_embeddings": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 102400, "max_position_embeddings": 163840, "tie_word_embeddings": False,
}  # fmt: skip
GLM5 = {
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64,
    "num_key_value_heads": 64, "head_dim": 64, "intermediate_size": 12288, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
    "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "num_nextn_predict_layers": 1,
    "vocab_size": 154880, "max_position_embeddings": 202752, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 15360, "vocab_size": 262208,
        "sliding_window": 1024, "sliding_window_pattern": 6, "max_position_embeddings": 131072,
    },
}  # fmt: skip


def model(config: dict, **changes) -> Model:
    return from_hf_config(config | changes).model


def attention_of(m: Model) -> list:
    """The attention of each layer, in order."""
    return [run.layer.attention for run in m.layer_runs for _ in range(run.count)]


def ffn_of(m: Model) -> list:
    return [run.layer.ffn for run in m.layer_runs for _ in range(run.count)]


def configs(shared) -> list:
    return [p for p in sorted((shared / "data" / "hf_configs").glob("*.json")) if "hf_quant" not in p.name]


# All configs at hand.


def test_every_config_loads_with_exact_totals(shared):
    """Total, active and MTP parameters to the last one, for all 150 models; variants of their checkpoints load, too."""
    with open(shared / "facts" / "models.csv", newline="") as file:
        facts = {row["model"]: row for row in csv.DictReader(file)}
    wrong, seen = [], set()
    for path in configs(shared):
        parsed = from_hf_config(path)
        row = facts.get(path.stem.replace("--", "/"))
        if row is None:
            continue
        seen.add(row["model"])
        ours = (parsed.model.params, parsed.model.active_params(), parsed.model.params_mtp)
        theirs = tuple(int(float(row[k] or 0)) for k in ("params_total", "params_active", "params_mtp"))
        wrong += [(row["model"], ours, theirs)] if ours != theirs else []
    assert not wrong
    assert seen == set(facts)


def test_every_config_survives_a_round_through_yaml(shared):
    for path in configs(shared):
        m = from_hf_config(path).model
        assert build(Model, parse_yaml(to_yaml(m), path.name), path.name) == m


def test_a_quantisation_file_is_refused_by_name(shared):
    path = next((shared / "data" / "hf_configs").glob("*.hf_quant_config.json"))
    with pytest.raises(SpecError, match=r"give the config\.json beside it"):
        from_hf_config(path)


# Traps.


def test_head_dim_is_read_before_it_is_divided():
    """Mistral-Nemo: 5120 / 32 = 160, the field says 128. 12,247,782,400 on the Hub."""
    assert model(NEMO).params == 12_247_782_400
    assert attention_of(model(NEMO))[0].head_dim == 128


def test_head_dim_of_mla_is_ignored():
    """GLM-5 says 64 (the rotary part), GLM-5.2 says 192: the width is 192 + 64 either way."""
    for said in (64, 192, None):
        m = model(GLM5, head_dim=said)
        assert (m.params, attention_of(m)[0].nope_dim) == (743_911_218_432, 192)


def test_no_kv_heads_means_mha():
    """phi-2 (2,779,683,840 on the Hub) has no such field; a missing one is all heads, not one."""
    phi = {"model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32}
    phi |= {"intermediate_size": 10240, "vocab_size": 51200, "max_position_embeddings": 2048}
    m = model(phi)
    assert (m.params, attention_of(m)[0].kv_heads) == (2_779_683_840, 32)


@pytest.mark.parametrize(
    ("flags", "kv", "params"),
    [
        ({"multi_query": True, "new_decoder_architecture": False, "num_kv_heads": 71}, 1, 6_921_720_704),
        ({"multi_query": False, "new_decoder_architecture": False}, 71, None),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 71}, 71, None),
    ],
)
def test_falcon_kv_heads_follow_the_architecture_flags(flags, kv, params):
    """falcon-7b is multi-query (6,921,720,704 parameters) whatever num_kv_heads says; the later one reads the field."""
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
    m = model(falcon | flags, parallel_attn=True, bias=False, vocab_size=65024, tie_word_embeddings=True)
    assert attention_of(m)[0].kv_heads == kv
    assert params is None or m.params == params


def test_mla_caches_one_latent_for_all_heads():
    """DeepSeek-V2-Lite: (512 + 64) x 2 B x 27 layers = 31,104 B a token, whatever num_key_value_heads says."""
    for heads in (16, 1):
        assert model(V2_LITE, num_key_value_heads=heads).kv_bytes_per_token() == 31_104


@pytest.mark.parametrize(
    ("changes", "windowed"),
    [
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32768}, 0),  # Qwen2.5
        ({"model_type": "phi3", "sliding_window": 262144}, 0),  # Phi-4-mini: reaches past the context
        ({"model_type": "mistral", "sliding_window": 4096}, 32),  # Mistral-7B-v0.1: all layers
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}, 12),
    ],
)
def test_a_window_counts_only_where_it_is_on(changes, windowed):
    assert sum(a.window is not None for a in attention_of(model(LLAMA, **changes))) == windowed


@pytest.mark.parametrize(
    ("config", "full"),
    [
        (GEMMA3["text_config"], [5, 11, 17, 23, 29, 35, 41, 47]),  # every sixth
        (LLAMA | {"model_type": "gemma2", "sliding_window": 4096}, list(range(1, 32, 2))),  # no pattern field at all
        (LLAMA | {"model_type": "cohere2", "sliding_window": 4096, "sliding_window_pattern": 4}, list(range(3, 32, 4))),
        (
            LLAMA | {"model_type": "olmo3", "sliding_window": 4096, "num_hidden_layers": 3}
            | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            [1],
        ),
    ],
)  # fmt: skip
def test_window_patterns(config, full):
    assert [i for i, a in enumerate(attention_of(model(config))) if a.window is None] == full


def test_patterns_of_other_kinds_of_layer():
    """Nine spellings of a layer pattern; here those that no other test covers."""
    qwen = QWEN_MOE | {"model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4}
    qwen |= {"linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128}
    qwen |= {"linear_value_head_dim": 128, "shared_expert_intermediate_size": 512}
    assert [a.kind for a in attention_of(model(qwen))] == (["gated_delta"] * 3 + ["gqa"]) * 2

    kimi = V2_LITE | {"model_type": "kimi_linear", "num_hidden_layers": 4, "mla_use_nope": True}
    kimi |= {"linear_attn_config": {"num_heads": 32, "head_dim": 128, "full_attn_layers": [4], "kda_layers": [1, 2, 3]}}
    assert [a.kind for a in attention_of(model(kimi))] == ["kda"] * 3 + ["mla"]  # indices count from 1

    jamba = LLAMA | {"model_type": "jamba", "num_hidden_layers": 8, "attn_layer_period": 4, "attn_layer_offset": 2}
    jamba |= {"num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1}
    jamba |= {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256}
    m = model(jamba)
    assert [i for i, a in enumerate(attention_of(m)) if a.kind == "gqa"] == [2, 6]
    assert [i for i, f in enumerate(ffn_of(m)) if f.kind == "moe"] == [1, 3, 5, 7]

    mimo = QWEN_MOE | {"model_type": "mimo_v2_flash", "num_hidden_layers": 3, "hybrid_layer_pattern": [0, 1, 1]}
    mimo |= {"v_head_dim": 128, "sliding_window": 128, "swa_num_key_value_heads": 8, "moe_layer_freq": [0, 1, 1]}
    mimo |= {"add_swa_attention_sink_bias": True}
    assert [(a.window, a.kv_heads, a.sinks) for a in attention_of(model(mimo))] == [
        (None, 4, False), (128, 8, True), (128, 8, True),
    ]  # fmt: skip

    llama4 = LLAMA | {"model_type": "llama4_text", "num_hidden_layers": 4, "attention_chunk_size": 8192}
    llama4 |= {"num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}
    llama4 |= {"intermediate_size": 8192, "intermediate_size_mlp": 16384}
    m = model(llama4)
    assert [(a.chunk, a.rope) for a in attention_of(m)] == [(8192, True)] * 3 + [(None, False)]
    assert [(f.kind, f.width) for f in ffn_of(m)] == [("dense", 16384), ("moe", 8192)] * 2

    block = {"n_heads_in_group": 4, "no_op": False}
    nas = LLAMA | {"model_type": "nemotron-nas", "num_hidden_layers": 2, "num_key_value_heads": None}
    nas |= {"intermediate_size": None, "block_configs": [
        {"attention": block, "ffn": {"ffn_mult": 2.625}}, {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
    ]}  # fmt: skip
    m = model(nas)  # 2/3 of ffn_mult x 4096, up to a multiple of 256
    assert [f.width for f in ffn_of(m)] == [7168, 2816]
    assert [a and a.kv_heads for a in attention_of(m)] == [8, None]


def test_nemotron_patterns_need_no_layer_count():
    """Ultra has `layers_block_type` and no num_hidden_layers; the older ones a string."""
    base = {"model_type": "nemotron_h", "hidden_size": 4096, "vocab_size": 131072, "intermediate_size": 21504}
    base |= {"num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128, "mamba_num_heads": 128}
    base |= {"mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "expand": 2}
    listed = model(base | {"layers_block_type": ["mamba", "mlp", "attention", "mlp"]})
    drawn = model(base | {"hybrid_override_pattern": "M-*-", "num_hidden_layers": 4})
    assert listed.layer_runs == drawn.layer_runs
    assert [a and a.kind for a in attention_of(drawn)] == ["mamba2", None, "gqa", None]
    with pytest.raises(UnsupportedError, match="names 4"):
        model(base | {"hybrid_override_pattern": "M-*-", "num_hidden_layers": 5})


@pytest.mark.parametrize("experts", FIELD_NAMES["experts"])
@pytest.mark.parametrize("top_k", FIELD_NAMES["top_k"])
def test_every_spelling_of_experts_counts(experts, top_k):
    """The same 30,532,122,624 parameters (Qwen3-30B-A3B on the Hub), however the fields are called."""
    config = {k: v for k, v in QWEN_MOE.items() if k not in ("num_experts", "num_experts_per_tok")}
    m = model(config, **{experts: 128, top_k: 8})
    assert (m.params, ffn_of(m)[0].top_k) == (30_532_122_624, 8)


def test_expert_width_falls_back_to_the_intermediate_size():
    """Mixtral-8x7B has one width only: 46,702,792,704 on the Hub. Qwen3-MoE ignores intermediate_size."""
    mixtral = LLAMA | {"model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
    assert model(mixtral).params == 46_702_792_704
    assert model(QWEN_MOE, intermediate_size=1).params == model(QWEN_MOE).params


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({"first_k_dense_replace": 2}, [0, 1]),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, [0, 3]),
        ({"moe_layer_freq": 2}, [1, 3, 5]),
        ({"mlp_only_layers": [1, 4]}, [1, 4]),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense", "sparse", "sparse"]}, [0, 3]),
        ({"decoder_sparse_step": 2}, [0, 2, 4]),
        ({"expert_layer_period": 3, "expert_layer_offset": 1}, [0, 2, 3, 5]),
    ],
)
def test_spellings_of_dense_layers(changes, dense):
    m = model(QWEN_MOE, num_hidden_layers=6, **changes)
    assert [i for i, f in enumerate(ffn_of(m)) if f.kind == "dense"] == dense


def test_shared_experts():
    """One field says how many of the experts' width, another how wide; 0 is none; Qwen2-MoE has a gate on it."""
    assert ffn_of(model(V2_LITE))[-1].shared_width == 2 * 1408
    qwen2 = QWEN_MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632}
    assert (ffn_of(model(qwen2))[0].shared_width, ffn_of(model(qwen2))[0].shared_gate) == (5632, True)
    minimax = QWEN_MOE | {"model_type": "minimax_m2", "shared_intermediate_size": 0, "use_routing_bias": True}
    assert ffn_of(model(minimax))[0].shared_width == 0
    step = QWEN_MOE | {"model_type": "step3p7", "share_expert_dim": 1280, "n_shared_experts": 1}
    assert ffn_of(model(step))[0].shared_width == 1280


def test_mtp_layers_stand_beside_the_total():
    """GLM-5: 743,911,218,432 and 11,856,086,016 in one MTP layer, of which embedding and head are not stored."""
    m = model(GLM5)
    assert (m.params, m.params_mtp, m.params_mtp_stored) == (743_911_218_432, 11_856_086_016, 9_952_920_576)
    minimax = QWEN_MOE | {"model_type": "minimax_m2", "use_mtp": True, "num_mtp_modules": 3}
    assert model(minimax).mtp is None  # declared, never stored


def test_tied_embeddings():
    """The family decides where the field is absent, the outer config where it is nested."""
    untied = {k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"}
    assert [model(untied, model_type=t).tied for t in ("llama", "gemma", "cohere", "qwen2")] == [0, 1, 1, 0]
    nested = {"model_type": "qwen3_vl", "text_config": untied | {"model_type": "qwen3_vl_text"}}
    assert model(nested | {"tie_word_embeddings": True}).tied
    assert not model(nested).tied


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_nested_sizes_win_over_outer_ones(key):
    """48 layers of the language model, not the 27 of the top level (jundot/omlx PR 1448 and others)."""
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "num_hidden_layers": 27, "hidden_size": 1152}
    config = outer | {key: GEMMA3["text_config"], "vision_config": {"num_hidden_layers": 27}}
    m = model(config)
    assert (m.stored_layers, m.hidden, m.vocab) == (48, 3840, 262208)


def test_a_twice_nested_config():
    config = {"thinker_config": {"text_config": LLAMA, "audio_config": {"num_hidden_layers": 1}}}
    assert model(config).params == 8_030_261_248  # Llama-3.1-8B


def test_vocabulary_is_the_field_of_the_config():
    """Gemma 3 multimodal 262208, not the 262144 of the text-only table: 11,766,034,176 for 12B."""
    assert model(GEMMA3).params == 11_766_034_176


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),  # Command-R: before scaling
        ({"max_position_embeddings": None, "seq_length": 2048}, 2048),  # BLOOM
        ({"max_position_embeddings": None, "n_positions": 2048}, 2048),  # GPT-J
        ({"max_position_embeddings": None, "max_seq_len": 32768}, 32768),  # DBRX
        ({"max_position_embeddings": None}, None),
    ],
)
def test_context_length(changes, context):
    assert model(LLAMA, **changes).max_positions == context


def test_null_q_lora_rank_is_no_compression():
    """DeepSeek-V2-Lite: 15,706,484,224 on the Hub; a class default of 1536 would add 42.5 M."""
    assert attention_of(model(V2_LITE))[0].q_rank is None
    assert model(V2_LITE).params == 15_706_484_224


def test_totals_hold_no_buffers():
    """Llama-2-7B: the Hub's 6,738,417,664 contains 2,048 rotary frequencies; the model has 6,738,415,616."""
    llama2 = LLAMA | {"num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}
    assert model(llama2).params == 6_738_415_616


def test_indexers_only_on_some_layers():
    """GLM-5.2: layers of type `shared` use the choice of an earlier one and have no indexer weights."""
    m = model(GLM5, num_hidden_layers=4, indexer_types=["full", "full", "shared", "full"], index_topk_freq=4)
    assert [a.index.shared for a in attention_of(m)] == [False, False, True, False]
    size = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32  # ql ih id + h id + 2 id + h ih
    assert model(GLM5, num_hidden_layers=4).params - m.params == size


def test_step_has_more_heads_on_windowed_layers():
    step = QWEN_MOE | {"model_type": "step3p7", "num_hidden_layers": 2, "num_sliding_attention_heads": 96}
    step |= {"num_attention_heads": 64, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512}
    assert [(a.heads, a.window) for a in attention_of(model(step))] == [(64, None), (96, 512)]


def test_layers_that_reuse_a_cache_hold_no_keys_of_their_own():
    """Gemma 4 E2B: the checkpoint stores projections for them that no runtime uses."""
    gemma = GEMMA3["text_config"] | {"model_type": "gemma4_text", "num_kv_shared_layers": 12, "global_head_dim": 512}
    m = model(gemma)
    assert [a.shared_kv for a in attention_of(m)] == [False] * 36 + [True] * 12
    assert all(a.cache_bytes(100.0, *plan_and_precision()) == 0 for a in attention_of(m)[36:])


def plan_and_precision():
    from roofline.parallel import Plan
    from roofline.precision import PRECISIONS

    return Plan(), PRECISIONS["bf16"]


def test_infinity_is_borne_where_mamba_configs_write_it(tmp_path):
    """`time_step_limit: [0.0, Infinity]` is in published configs and read by nobody; anywhere else it is an error."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"time_step_limit": [0.0, math.inf]}))
    assert from_hf_config(path).model.params == 8_030_261_248
    for text in ("NaN", "Infinity", "-Infinity", "1e999"):
        path.write_text(json.dumps(LLAMA)[:-1] + f', "rope_theta": {text}}}')
        with pytest.raises(SpecError, match="rope_theta"):
            from_hf_config(path)
    path.write_text(json.dumps(LLAMA | {"hidden_size": 1e308}))
    with pytest.raises(SpecError, match=r"hidden_size is 1e\+308"):
        from_hf_config(path)


def test_a_shape_copied_from_another_model_shows_in_the_total():
    """A peer table gives Gemma-3-12B the shape of a 2B: a derived total can tell, a table cannot."""
    two_b = GEMMA3["text_config"] | {"num_hidden_layers": 26, "hidden_size": 2304, "num_attention_heads": 8}
    assert model(two_b).params < 0.5 * 11_766_034_176


# Refusals.


def test_an_unknown_model_with_experts_is_refused_with_what_is_missing():
    """Never a dense default (GitM-Labs/runtime PR 78)."""
    with pytest.raises(UnsupportedError) as error:
        from_hf_config({"model_type": "brand_new_moe", "num_experts": 256})
    for word in ("brand_new_moe", "num_experts 256", "num_hidden_layers", "vocab_size", "num_experts_per_tok"):
        assert word in str(error.value)
    with pytest.raises(UnsupportedError, match="brand_new_moe"):  # complete, and still not modelled
        from_hf_config(QWEN_MOE | {"model_type": "brand_new_moe"})


def test_an_unknown_plain_decoder_loads_with_a_note():
    parsed = from_hf_config(LLAMA | {"model_type": "brand_new"})
    assert parsed.model.params == 8_030_261_248
    assert any("brand_new" in note for note in parsed.notes)
    harmless = {
        "bos_token_id": 128000,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "hidden_act": "silu",
        "use_cache": True,
    }
    assert from_hf_config(LLAMA | {"model_type": "brand_new"} | harmless).model.params == 8_030_261_248


@pytest.mark.parametrize(
    "extra", [{"total_ut_steps": 4}, {"num_heads_per_thing": 3}, {"use_qk_norm": True}, {"x": [2, 2]}]
)
def test_an_unknown_decoder_with_more_than_a_plain_one_has_is_refused(extra):
    """Ouro executes its layers total_ut_steps times: read as a plain decoder it would be four times too fast."""
    with pytest.raises(UnsupportedError, match=next(iter(extra))):
        from_hf_config(LLAMA | {"model_type": "brand_new"} | extra)


def test_the_class_name_serves_where_the_type_is_absent():
    config = {k: v for k, v in QWEN_MOE.items() if k != "model_type"}
    assert model(config, architectures=["Qwen3MoeForCausalLM"]).params == 30_532_122_624


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_loops": 3}, "num_loops 3"),
        ({"kv_lora_rank": 512}, "kv_lora_rank 512"),
        ({"index_topk": 2048}, "index_topk 2048"),
        ({"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input 256"),
        ({"layer_types": ["lightning"] * 32}, "lightning"),
        ({"mamba_d_state": 16}, "mamba_d_state 16"),
        ({"num_key_value_heads": 7}, "num_attention_heads 32 is no multiple of num_key_value_heads 7"),
        ({"num_key_value_heads": -8}, "num_key_value_heads is -8"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"hidden_size": 4096.5}, "hidden_size is 4096.5"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 4100}, "no multiple of 32 heads"),
        ({"vocab_size": None}, "missing vocab_size"),
        ({"n_embd": 2048}, "hidden_size 4096 and n_embd 2048"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"num_local_experts": 8, "n_routed_experts": 16, "num_experts_per_tok": 2}, "contradict"),
    ],
)
def test_wrong_and_contradictory_fields_are_named(changes, said):
    with pytest.raises(SpecError) as error:
        from_hf_config(LLAMA | changes)
    assert said in str(error.value)


def test_more_experts_per_token_than_experts():
    with pytest.raises(SpecError, match=r"top_k \(256\) is larger than experts \(128\)"):
        model(QWEN_MOE, num_experts_per_tok=256)


# Files.


def test_files_that_are_no_config(tmp_path):
    path = tmp_path / "config.json"
    cases = {
        "": "not JSON",
        "{": "not JSON",
        "[1, 2]": "no object",
        '{"a": 1, "a": 2}': "'a' stands twice",
        '{"a": ' * 40 + "1" + "}" * 40: "nested more than",
        '{"a": ' * 100_000 + "1" + "}" * 100_000: "nested too deeply",
        '{"a": ' + "9" * 6000 + "}": "not JSON",
        '{"hidden_size": NaN}': "hidden_size is nan",
    }
    for text, said in cases.items():
        path.write_text(text)
        with pytest.raises(SpecError) as error:
            from_hf_config(path)
        assert said in str(error.value) and "config.json" in str(error.value)
    path.write_bytes(b"\xff\xfe\x00{}")
    with pytest.raises(SpecError, match="cannot read"):
        read_json(path)
    path.write_text(" " * 5_000_001)
    with pytest.raises(SpecError, match="5000001 bytes"):
        read_json(path)
    with pytest.raises(SpecError, match="is a folder"):
        from_hf_config(tmp_path)
    with pytest.raises(SpecError, match="there is no file"):
        from_hf_config(tmp_path / "absent.json")


def test_one_of_several_checkpoints_in_a_file(tmp_path):
    path = tmp_path / "bundle.json"
    fp8 = LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    path.write_text(json.dumps({"variants": {"a/wide": {"config": LLAMA}, "b/narrow": {"config": fp8}}}))
    first, second = from_hf_config(path), from_hf_config(path, variant="b/narrow")
    assert (first.precision.name, second.precision.name) == ("bf16", "fp8_block")
    assert "b/narrow" in first.notes[-1]
    with pytest.raises(SpecError, match="a/wide, b/narrow"):
        from_hf_config(path, variant="c")


# YAML.


@pytest.mark.parametrize("config", [LLAMA, QWEN_MOE, V2_LITE, GLM5, GEMMA3])
def test_yaml_reads_back_to_an_equal_model(config):
    parsed = from_hf_config(config, name="my: model #1")
    text = to_yaml(parsed.model)
    assert build(Model, parse_yaml(text, "text"), "text") == parsed.model
    assert len(text.splitlines()) < 30


def test_yaml_is_compact():
    text = to_yaml(from_hf_config(GEMMA3, name="gemma-3-12b").model)
    assert "layers: 8*(5*windowed_dense full_dense)" in text
    assert text.count("window: 1024") == 1


# Properties.


def test_concepts_share_no_spelling():
    names = [name for spellings in FIELD_NAMES.values() for name in spellings]
    assert len(names) == len(set(names))


@given(st.integers(1, 8), st.sampled_from([64, 128]), st.integers(1, 64), st.booleans())
def test_total_of_a_plain_decoder_is_its_formula(groups, d, layers, tied):
    """V h (1 + untied) + L (2 h q d + 2 h kv d + 3 h i + 2 h) + h."""
    kv, q = 4, 4 * groups
    h, i, v = q * d, 3 * q * d, 1000
    config = LLAMA | {"hidden_size": h, "intermediate_size": i, "vocab_size": v, "num_hidden_layers": layers}
    config |= {"num_attention_heads": q, "num_key_value_heads": kv, "head_dim": d, "tie_word_embeddings": tied}
    expected = v * h * (1 if tied else 2) + layers * (2 * h * q * d + 2 * h * kv * d + 3 * h * i + 2 * h) + h
    assert model(config).params == expected


# Fuzz: whatever a config says, the answer is a sane model or a message.

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.text(max_size=8), st.floats(allow_nan=True),
    st.sampled_from([0, 1, 2, -1, 8, 1e308, "fp8", "mxfp4", "full_attention", [], {}, [0], {"a": 1}]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
QUANT = {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"], "config_groups": {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}}
}}  # fmt: skip
SEEDS = [
    LLAMA, NEMO, QWEN_MOE, V2_LITE, GLM5, GEMMA3["text_config"], GEMMA3,
    QWEN_MOE | {"quantization_config": QUANT, "model_type": "kimi_k2"} | V2_LITE,
    LLAMA | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}},
    LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}},
]  # fmt: skip
FIELDS = sorted({n for names in FIELD_NAMES.values() for n in names} | {k for seed in SEEDS for k in seed})


def sane(parsed: ParsedModel) -> None:
    m = parsed.model
    assert build(Model, parse_yaml(to_yaml(m), "text"), "text") == m
    assert 0 < m.params <= 1e15 and 0 < m.active_params() <= m.params
    held = m.kv_bytes_per_sequence(1000.0)
    assert math.isfinite(held) and held >= 0
    assert parsed.precision is not None and 0 < parsed.precision.kv.bits <= 64


def answers(config) -> None:
    try:
        parsed = from_hf_config(config)
    except RooflineError as error:
        assert str(error) and len(str(error)) < 3000
    else:
        sane(parsed)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(SEEDS),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
    st.sampled_from(["", *sorted(FAMILIES)]),
    st.sets(st.sampled_from(FIELDS), max_size=2),
)
@example(LLAMA, {"num_attention_heads": 0}, "", set())
@example(LLAMA, {"quantization_config": {"quant_method": [], "bits": {}}}, "", set())
def test_any_mutation_gives_a_model_or_a_message(seed, changes, family, dropped):
    config = copy.deepcopy(seed) | changes
    config = {k: v for k, v in config.items() if k not in dropped}
    answers(config | ({"model_type": family} if family else {}))


@settings(max_examples=150)
@given(st.sampled_from(SEEDS[-3:]), st.data())
def test_any_mutation_of_a_quantisation_gives_a_model_or_a_message(seed, data):
    config = copy.deepcopy(seed)
    node = config["quantization_config"]
    for _ in range(data.draw(st.integers(0, 3))):
        inner = [v for v in node.values() if isinstance(v, dict)]
        if not inner:
            break
        node = data.draw(st.sampled_from(inner))
    node[data.draw(st.sampled_from([*node, "kv_cache_scheme", "quant_algo", "quantized_layers"]))] = data.draw(VALUES)
    answers(config)


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=12), VALUES, max_size=5))
def test_any_object_gives_a_message(config):
    answers(config)


@settings(max_examples=100)
@given(st.text(max_size=200))
def test_any_text_is_an_object_or_a_message(text):
    try:
        assert isinstance(parse_json(text, "text"), dict)
    except RooflineError as error:
        assert str(error).startswith("text")


def test_mutations_of_all_real_configs(shared):
    """Every sixth config at hand with each of its own fields replaced once by something wrong."""
    wrong = [None, -1, 0, "x", [], {}, 1e308, True]
    for n, path in enumerate(configs(shared)[::6]):
        config = read_json(path)
        target = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
        for k, key in enumerate(sorted(target)):
            kept = target[key]
            target[key] = wrong[(n + k) % len(wrong)]
            answers(config)
            target[key] = kept


def test_fields_count_refuses_what_is_not_a_number():
    f = Fields({"hidden_size": [1]}, "here")
    with pytest.raises(SpecError, match="here: hidden_size is"):
        f.count("hidden")


def test_the_docs_list_every_family(root):
    text = (root / "docs" / "ingestion.md").read_text()
    listed = text.split("Known `model_type`s:")[1].split("A new family")[0]
    assert sorted(listed.replace("`", "").replace(".\n", "").replace("\n", " ").replace(" ", "").split(",")) == sorted(
        FAMILIES
    )
