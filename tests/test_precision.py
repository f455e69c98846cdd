"""Formats and precisions against published sizes, and the text form of a precision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.errors import InputError, RooflineError, UnknownNameError
from roofline.parallel import Plan
from roofline.precision import FORMATS, PRECISIONS, ROLES, Precision, format_named, mixture, precision_named
from roofline.specs.model import Model


def dense(layers, hidden, heads, kv_heads, width, vocab) -> Model:
    attention = {"kind": "gqa", "heads": heads, "kv_heads": kv_heads, "head_dim": 128}
    group = {"count": layers, "attention": attention, "ffn": {"kind": "dense", "width": width}}
    return Model(name="m", hidden=hidden, vocab=vocab, layers=[group])


def weight_bytes(model: Model, precision: Precision) -> float:
    """Bytes of all weights on one device."""
    return float(model.weight_bytes(Plan(), precision))


LLAMA_8B = dense(32, 4096, 32, 8, 14336, 128256)
LLAMA2_7B = dense(32, 4096, 32, 32, 11008, 32000)
LLAMA2_70B = dense(80, 8192, 64, 8, 28672, 32000)


@pytest.mark.parametrize(
    ("name", "bits"),
    [  # ggml-org/llama.cpp tools/quantize/README.md at 311c2c9, Llama-3.1-8B: 'bits/weight' as llama-quantize prints
        ("q2_k", 3.1593), ("q3_k_s", 3.6429), ("q3_k_l", 4.2979), ("q4_k_s", 4.6672), ("q4_k_m", 4.8944),
        ("q5_k_s", 5.5704), ("q5_k_m", 5.7036), ("q6_k", 6.5633), ("q8_0", 8.5008), ("iq4_xs", 4.4597),
        ("iq4_nl", 4.6818), ("iq3_xxs", 3.2548), ("iq3_s", 3.6606), ("iq3_m", 3.7628),
    ],
)  # fmt: skip
def test_gguf_mixtures_match_llama_quantize(name, bits):
    ours = 8 * weight_bytes(LLAMA_8B, precision_named(name)) / LLAMA_8B.params
    assert ours == pytest.approx(bits, rel=5e-4)


@pytest.mark.parametrize(
    ("model", "name", "bits"),
    [  # the same README at b8c1476 (examples/quantize), Llama-2 7B (MHA) and 70B (8 queries a key)
        (LLAMA2_7B, "q3_k_m", 3.91), (LLAMA2_7B, "q4_k_s", 4.58), (LLAMA2_7B, "q4_k_m", 4.84),
        (LLAMA2_7B, "q5_k_m", 5.68), (LLAMA2_7B, "q6_k", 6.56), (LLAMA2_70B, "q3_k_m", 3.85),
        (LLAMA2_70B, "q4_k_m", 4.80), (LLAMA2_70B, "q5_k_m", 5.65), (LLAMA2_70B, "q6_k", 6.56),
    ],
)  # fmt: skip
def test_gguf_mixtures_hold_for_other_head_layouts(model, name, bits):
    ours = 8 * weight_bytes(model, precision_named(name)) / model.params
    assert ours == pytest.approx(bits, rel=1e-2)


def test_q4_k_m_of_a_30b_moe():
    """17.28 GiB file, 4.86 bits a weight: ggml-org/llama.cpp issue 14235 (Qwen3-30B-A3B)."""
    attention = {"kind": "gqa", "heads": 32, "kv_heads": 4, "head_dim": 128, "qk_norm": "head"}
    ffn = {"kind": "moe", "width": 768, "experts": 128, "top_k": 8}
    model = Model(name="m", hidden=2048, vocab=151936, layers=[{"count": 48, "attention": attention, "ffn": ffn}])
    assert model.params == 30_532_122_624
    size = weight_bytes(model, precision_named("Q4_K_M"))
    assert size / 2**30 == pytest.approx(17.28, rel=2e-3)


def test_q8_0_of_a_trillion():
    """1016.6 GiB for 1.027e12 parameters: ikawrakow/ik_llama.cpp PR 616; 34 B per block of 32."""
    assert float(FORMATS["q8_0"].bytes(1.027e12 / 32, 32)) / 2**30 == pytest.approx(1016.6, rel=2e-3)


def test_awq_of_a_7b():
    """5.2032 GiB after load: vllm-project/vllm issue 13882 (Qwen2.5-7B AWQ g128); embedding and head stay 16 bits."""
    attention = {"kind": "gqa", "heads": 28, "kv_heads": 4, "head_dim": 128, "qkv_bias": True}
    group = {"count": 28, "attention": attention, "ffn": {"kind": "dense", "width": 18944}}
    model = Model(name="m", hidden=3584, vocab=152064, layers=[group])
    assert weight_bytes(model, precision_named("awq")) / 2**30 == pytest.approx(5.2032, rel=5e-3)


def test_int8_per_channel_of_a_70b():
    """67.7229 GiB: vllm-project/vllm PR 12569; includes the rope table of 131072 x 128 bf16 (0.03 GiB)."""
    rope = 131072 * 128 * 2
    model = dense(80, 8192, 64, 8, 28672, 128256)
    assert (weight_bytes(model, precision_named("int8")) + rope) / 2**30 == pytest.approx(67.7229, rel=2e-4)


@pytest.mark.parametrize(
    ("name", "bits"),
    [  # block layouts: OCP MX v1.0; NVFP4; AWQ g128 with 4-bit zero; ggml-common.h block structs
        ("mxfp4", 4.25), ("nvfp4", 4.5), ("mxfp8", 8.25), ("int4_awq", 4 + 20 / 128), ("q8_0", 34 * 8 / 32),
        ("q6_k", 210 * 8 / 256), ("q5_k", 176 * 8 / 256), ("q4_k", 144 * 8 / 256), ("q3_k", 110 * 8 / 256),
        ("q2_k", 84 * 8 / 256), ("iq4_xs", 136 * 8 / 256), ("nf4", 4.5), ("nf4_double", 4 + 8.125 / 64),
        ("int4_g64", 4.25), ("int8_g128z", 8 + 24 / 128),
    ],
)  # fmt: skip
def test_mean_bits_of_formats(name, bits):
    assert 8 * format_named(name).element_bytes == pytest.approx(bits)


def test_mixture_is_linear_in_bytes():
    a, b = FORMATS["nvfp4"], FORMATS["bf16"]
    mean = mixture({a: 3.0, b: 1.0})
    apart = float(a.bytes(3 * 1024, 4096)) + float(b.bytes(1024, 4096))
    assert float(mean.bytes(4 * 1024, 4096)) == pytest.approx(apart)
    assert (mean.matmul, mean.act_bits) == (a.matmul, a.act_bits)
    assert mixture({a: 2.0}) == a
    assert mixture({a: 1.0, b: 1e-9}) == a


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("kv", [None, "fp8"])
def test_text_of_a_named_precision_reads_back(name, kv):
    p = PRECISIONS[name].with_kv(kv)
    back = precision_named(p.text)
    assert [back.of(r) for r in ROLES] == [p.of(r) for r in ROLES]
    assert (back.kv, back.static_activation_scales) == (p.kv, p.static_activation_scales)


@given(
    st.sampled_from(["bf16", "fp16", "fp32"]),
    st.dictionaries(st.sampled_from(ROLES), st.sampled_from(["nvfp4", "int4_g32", "fp8_block", "0.6*nvfp4+0.4*bf16"])),
    st.sampled_from(["bf16", "fp8", "int8"]),
    st.booleans(),
)
def test_text_of_any_precision_reads_back(default, roles, kv, static):
    weights = {r: format_named(f) for r, f in roles.items()}
    p = Precision("x", weights, FORMATS[default], FORMATS[kv], static)
    back = precision_named(p.text)
    assert [back.of(r) for r in ROLES] == [p.of(r) for r in ROLES]
    assert (back.kv, back.static_activation_scales) == (p.kv, p.static_activation_scales)


@given(st.text(max_size=40))
def test_any_text_is_a_precision_or_a_clear_error(text):
    try:
        p = precision_named(text)
    except RooflineError as error:
        assert str(error)
    else:
        assert all(0 < p.of(r).bits <= 64 for r in ROLES)


def test_messages_name_what_is_near():
    with pytest.raises(UnknownNameError, match="nvfp4"):
        precision_named("nvpf4")
    with pytest.raises(InputError, match="roles: attention"):
        precision_named("bf16,experts=nvfp4")
    with pytest.raises(InputError, match="share"):
        format_named("x*q4_k+0.5*q6_k")
