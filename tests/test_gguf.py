"""GGUF headers -> Model, mean formats and real bytes; the files are written here with the package itself."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roofline.errors import RooflineError, SpecError, UnsupportedError
from roofline.parallel import Plan
from roofline.precision import precision_named
from roofline.specs.gguf_model import from_gguf
from roofline.specs.hf import from_hf_config
from roofline.specs.refs import load_model

gguf = pytest.importorskip("gguf")
Q = gguf.GGMLQuantizationType
HIDDEN, VOCAB, WIDTH, HEADS, KV, D = 256, 1024, 512, 4, 2, 64
META = {
    "block_count": 2, "embedding_length": HIDDEN, "context_length": 4096, "attention.head_count": HEADS,
    "attention.head_count_kv": KV, "feed_forward_length": WIDTH,
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "intermediate_size": WIDTH, "vocab_size": VOCAB, "max_position_embeddings": 4096,
}  # fmt: skip


def dense(layers: int, kv: int = KV, d: int = D, fmt=Q.Q4_K) -> dict:
    """Tensors of a Llama-like model: name -> (rows, columns, quantisation)."""
    tensors = {"token_embd.weight": (VOCAB, HIDDEN, fmt), "output_norm.weight": (1, HIDDEN, Q.F32)}
    for i in range(layers):
        tensors |= {
            f"blk.{i}.attn_norm.weight": (1, HIDDEN, Q.F32),
            f"blk.{i}.attn_q.weight": (HEADS * d, HIDDEN, fmt),
            f"blk.{i}.attn_k.weight": (kv * d, HIDDEN, fmt),
            f"blk.{i}.attn_v.weight": (kv * d, HIDDEN, Q.Q6_K),
            f"blk.{i}.attn_output.weight": (HIDDEN, HEADS * d, fmt),
            f"blk.{i}.ffn_norm.weight": (1, HIDDEN, Q.F32),
            f"blk.{i}.ffn_gate.weight": (WIDTH, HIDDEN, fmt),
            f"blk.{i}.ffn_up.weight": (WIDTH, HIDDEN, fmt),
            f"blk.{i}.ffn_down.weight": (HIDDEN, WIDTH, Q.Q6_K),
        }
    return tensors


UNTIED = {"output.weight": (VOCAB, HIDDEN, Q.Q6_K)}


def write(path, tensors: dict, meta: dict, arch: str = "llama"):
    """A GGUF file whose tensors are zeros."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in meta.items():
        key = f"{arch}.{key}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(VOCAB)])
    for name, (*shape, columns, quantisation) in tensors.items():
        block, size = gguf.GGML_QUANT_SIZES[quantisation]
        shape = [n for n in shape if n > 1 or len(shape) > 1]
        if quantisation in (Q.F32, Q.F16):
            data = np.zeros([*shape, columns], np.float32 if quantisation == Q.F32 else np.float16)
            writer.add_tensor(name, data)
        else:
            data = np.zeros([*shape, columns // block * size], np.uint8)
            writer.add_tensor(name, data, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def size_of(tensors: dict) -> int:
    """Bytes of all tensors by the block sizes of ggml."""
    total = 0
    for *shape, columns, quantisation in tensors.values():
        block, size = gguf.GGML_QUANT_SIZES[quantisation]
        total += int(np.prod(shape)) * columns // block * size
    return total


def layers_of(parsed) -> list:
    return [run.layer for run in parsed.model.layer_runs for _ in range(run.count)]


def test_a_dense_model_equals_its_config(tmp_path):
    tensors = dense(2) | UNTIED
    parsed = from_gguf(write(tmp_path / "m.gguf", tensors, META))
    expected = from_hf_config(CONFIG).model
    assert parsed.model.layer_runs == expected.layer_runs
    assert (parsed.model.params, parsed.model.max_positions) == (expected.params, 4096)
    assert parsed.file_bytes == size_of(tensors)
    assert not parsed.notes


def test_formats_of_roles_are_means_over_real_tensors(tmp_path):
    tensors = dense(2) | UNTIED
    parsed = from_gguf(write(tmp_path / "m.gguf", tensors, META))
    p = parsed.precision
    down, block = WIDTH * HIDDEN, 3 * WIDTH * HIDDEN
    assert p.of("ffn").bits == pytest.approx((4.5 * (block - down) + 6.5625 * down) / block, rel=1e-3)
    assert (p.of("embed").name, p.of("head").name, p.kv.name) == ("q4_k", "q6_k", "fp16")
    assert precision_named(parsed.model.native).of("ffn").bits == pytest.approx(p.of("ffn").bits)
    ours = float(parsed.model.weight_bytes(Plan(), p))
    assert ours == pytest.approx(parsed.file_bytes, rel=5e-3)  # norms count 16 bits wide, the file has 32


def test_tied_embeddings_and_fused_projections(tmp_path):
    """No output.weight: tied. phi3 keeps q, k, v in one tensor and gate and up in another."""
    tensors = {k: v for k, v in dense(2).items() if not any(w in k for w in ("attn_q", "attn_k", "attn_v", "ffn_gate"))}
    for i in range(2):
        tensors[f"blk.{i}.attn_qkv.weight"] = ((HEADS + 2 * KV) * D, HIDDEN, Q.Q4_K)
        tensors[f"blk.{i}.ffn_up.weight"] = (2 * WIDTH, HIDDEN, Q.Q4_K)
    parsed = from_gguf(write(tmp_path / "m.gguf", tensors, META, "phi3"))
    assert parsed.model.tied
    assert parsed.model.params == from_hf_config(CONFIG | {"tie_word_embeddings": True}).model.params


def test_kv_heads_per_layer_and_window_sizes(tmp_path):
    """KV heads as an array, window layers with another key length: only global layers grow with context.

    tmac1973/llama-toolchest PR 58 (a 58 GB estimate for a model that runs in 24 GB), scaled down.
    """
    kv, wide, narrow = [4, 4, 4, 4, 4, 1] * 2, 128, 64
    tensors = {"token_embd.weight": (VOCAB, HIDDEN, Q.Q8_0), "output_norm.weight": (1, HIDDEN, Q.F32)}
    for i, n in enumerate(kv):
        d = wide if n == 1 else narrow
        tensors |= {
            f"blk.{i}.attn_norm.weight": (1, HIDDEN, Q.F32),
            f"blk.{i}.attn_q.weight": (HEADS * d, HIDDEN, Q.Q8_0),
            f"blk.{i}.attn_k.weight": (n * d, HIDDEN, Q.Q8_0),
            f"blk.{i}.attn_v.weight": (n * d, HIDDEN, Q.Q8_0),
            f"blk.{i}.attn_output.weight": (HIDDEN, HEADS * d, Q.Q8_0),
            f"blk.{i}.ffn_norm.weight": (1, HIDDEN, Q.F32),
            f"blk.{i}.ffn_gate.weight": (WIDTH, HIDDEN, Q.Q8_0),
            f"blk.{i}.ffn_up.weight": (WIDTH, HIDDEN, Q.Q8_0),
            f"blk.{i}.ffn_down.weight": (HIDDEN, WIDTH, Q.Q8_0),
        }
    meta = META | {
        "block_count": 12, "attention.head_count_kv": kv, "attention.key_length": wide,
        "attention.value_length": wide, "attention.key_length_swa": narrow, "attention.value_length_swa": narrow,
        "attention.sliding_window": 1024, "attention.sliding_window_pattern": [1, 1, 1, 1, 1, 0] * 2,
    }  # fmt: skip
    parsed = from_gguf(write(tmp_path / "m.gguf", tensors, meta, "gemma4"))
    context, window, fp16 = 131072, 1024, 2
    expected = (10 * min(context, window) * 4 * 2 * narrow + 2 * context * 1 * 2 * wide) * fp16
    assert parsed.model.kv_bytes_per_sequence(float(context)) == expected
    assert parsed.precision.text.startswith("q8_0")


@pytest.mark.parametrize(("arch", "full"), [("gemma2", [1, 3, 5]), ("gemma3", [5]), ("llama", [0, 1, 2, 3, 4, 5])])
def test_a_window_without_a_pattern_follows_the_architecture(tmp_path, arch, full):
    meta = META | {"block_count": 6, "attention.sliding_window": 1024}
    parsed = from_gguf(write(tmp_path / "m.gguf", dense(6) | UNTIED, meta, arch))
    assert [i for i, layer in enumerate(layers_of(parsed)) if layer.attention.window is None] == full
    assert ("sliding window" in " ".join(parsed.notes)) == (arch == "llama")


def test_a_mixture_with_shared_expert(tmp_path):
    tensors = dense(2) | UNTIED
    for i in range(2):
        for name in ("gate", "up", "down"):
            del tensors[f"blk.{i}.ffn_{name}.weight"]
        tensors |= {
            f"blk.{i}.ffn_gate_inp.weight": (8, HIDDEN, Q.F32),
            f"blk.{i}.ffn_gate_exps.weight": (8, 256, HIDDEN, Q.IQ4_XS),
            f"blk.{i}.ffn_up_exps.weight": (8, 256, HIDDEN, Q.IQ4_XS),
            f"blk.{i}.ffn_down_exps.weight": (8, HIDDEN, 256, Q.IQ4_XS),
            f"blk.{i}.ffn_gate_shexp.weight": (512, HIDDEN, Q.Q8_0),
            f"blk.{i}.ffn_up_shexp.weight": (512, HIDDEN, Q.Q8_0),
            f"blk.{i}.ffn_down_shexp.weight": (HIDDEN, 512, Q.Q8_0),
            f"blk.{i}.exp_probs_b.bias": (1, 8, Q.F32),
        }
    parsed = from_gguf(write(tmp_path / "m.gguf", tensors, META | {"expert_used_count": 2}, "qwen3moe"))
    ffn = layers_of(parsed)[0].ffn
    assert (ffn.experts, ffn.top_k, ffn.width, ffn.shared_width, ffn.correction_bias) == (8, 2, 256, 512, True)
    assert (parsed.precision.of("expert").name, parsed.precision.of("shared").name) == ("iq4_xs", "q8_0")
    assert parsed.precision.of("router").name == "fp32"
    assert not parsed.notes  # all tensors are accounted for


def test_latent_attention(tmp_path):
    rank, rope, nope, v, q_rank = 256, 64, 64, 64, 256
    tensors = {k: t for k, t in (dense(2) | UNTIED).items() if not any(w in k for w in ("attn_q", "attn_k", "attn_v"))}
    for i in range(2):
        tensors |= {
            f"blk.{i}.attn_q_a.weight": (q_rank, HIDDEN, Q.Q8_0),
            f"blk.{i}.attn_q_a_norm.weight": (1, q_rank, Q.F32),
            f"blk.{i}.attn_q_b.weight": (HEADS * (nope + rope), q_rank, Q.Q8_0),
            f"blk.{i}.attn_kv_a_mqa.weight": (rank + rope, HIDDEN, Q.Q8_0),
            f"blk.{i}.attn_kv_a_norm.weight": (1, rank, Q.F32),
            f"blk.{i}.attn_k_b.weight": (HEADS, rank, nope, Q.Q8_0),
            f"blk.{i}.attn_v_b.weight": (HEADS, v, rank, Q.Q8_0),
        }
    meta = META | {
        "attention.kv_lora_rank": rank, "attention.q_lora_rank": q_rank, "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": v, "rope.dimension_count": rope,
    }  # fmt: skip
    parsed = from_gguf(write(tmp_path / "m.gguf", tensors, meta, "deepseek2"))
    a = layers_of(parsed)[0].attention
    assert (a.kind, a.kv_rank, a.nope_dim, a.rope_dim, a.q_rank) == ("mla", rank, nope, rope, q_rank)
    assert not parsed.notes


def test_split_files(tmp_path):
    """Two parts: tensors of both count; without the second one the file is refused."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=12)
    for key, value in META.items():
        writer.add_uint32(f"llama.{key}", value)
    tensors = dense(2, fmt=Q.F16) | UNTIED
    tensors = {name: (*shape, Q.F16) for name, (*shape, _) in tensors.items()}
    for name, (*shape, _) in tensors.items():
        writer.add_tensor(name, np.zeros([n for n in shape if n > 1], np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first, second = sorted(tmp_path.glob("*.gguf"))
    assert from_gguf(first).file_bytes == size_of(tensors)
    assert load_model(tmp_path).file_bytes == size_of(tensors)
    second.unlink()
    with pytest.raises(SpecError, match=second.name):
        from_gguf(first)


@pytest.mark.parametrize(
    ("meta", "drop", "said"),
    [
        ({"attention.head_count": 8}, (), "attn_k has 128 rows"),
        ({"embedding_length": 512}, (), "contradict"),
        ({"block_count": 3}, (), "no tensors of layer 2"),
        ({"block_count": 2**31}, (), "block_count"),
        ({}, ("token_embd.weight",), "token_embd"),
        ({"attention.head_count": 0}, (), "head_count"),
    ],
)
def test_files_that_contradict_themselves(tmp_path, meta, drop, said):
    tensors = {k: v for k, v in (dense(2) | UNTIED).items() if k not in drop}
    with pytest.raises(SpecError) as error:
        from_gguf(write(tmp_path / "m.gguf", tensors, META | meta))
    assert said in str(error.value)


def norms_and_ffn(i: int) -> dict:
    """What a layer has beside its mixer."""
    block = {k: v for k, v in dense(i + 1).items() if k.startswith(f"blk.{i}.")}
    return {k: v for k, v in block.items() if "norm" in k or "ffn" in k}


def test_state_space_and_linear_layers(tmp_path):
    """Mamba, Mamba-2 and gated DeltaNet in a row: every tensor is accounted for to the last parameter."""
    inner, state, conv, rank, groups = 512, 64, 4, 32, 2
    ends = {k: v for k, v in (dense(1) | UNTIED).items() if not k.startswith("blk")}
    meta = META | {"block_count": 1, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.conv_kernel": conv}
    cases = {
        "mamba": {
            "ssm_in.weight": (2 * inner, HIDDEN, Q.Q8_0), "ssm_conv1d.weight": (inner, conv, Q.F32),
            "ssm_conv1d.bias": (1, inner, Q.F32), "ssm_x.weight": (rank + 2 * state, inner, Q.Q8_0),
            "ssm_dt.weight": (inner, rank, Q.F32), "ssm_dt.bias": (1, inner, Q.F32),
            "ssm_a": (inner, state, Q.F32), "ssm_d": (1, inner, Q.F32), "ssm_out.weight": (HIDDEN, inner, Q.Q8_0),
        },
        "mamba2": {
            "ssm_in.weight": (2 * inner + 2 * groups * state + rank, HIDDEN, Q.Q8_0),
            "ssm_conv1d.weight": (inner + 2 * groups * state, conv, Q.F32),
            "ssm_conv1d.bias": (1, inner + 2 * groups * state, Q.F32), "ssm_dt.bias": (1, rank, Q.F32),
            "ssm_a": (rank, 1, Q.F32), "ssm_d": (rank, 1, Q.F32), "ssm_norm.weight": (groups, inner // groups, Q.F32),
            "ssm_out.weight": (HIDDEN, inner, Q.Q8_0),
        },
        "qwen3next": {
            "attn_qkv.weight": (2 * groups * state + inner, HIDDEN, Q.Q8_0),
            "attn_gate.weight": (inner, HIDDEN, Q.Q8_0),
            "ssm_ba.weight": (2 * rank, HIDDEN, Q.Q8_0), "ssm_conv1d.weight": (2 * groups * state + inner, conv, Q.F32),
            "ssm_dt.bias": (1, rank, Q.F32), "ssm_a": (1, rank, Q.F32), "ssm_norm.weight": (1, inner // rank, Q.F32),
            "ssm_out.weight": (HIDDEN, inner, Q.Q8_0),
        },
    }  # fmt: skip
    kinds = {"mamba": "mamba1", "mamba2": "mamba2", "qwen3next": "gated_delta"}
    for arch, mixer in cases.items():
        tensors = ends | norms_and_ffn(0) | {f"blk.0.{name}": t for name, t in mixer.items()}
        more = {"ssm.time_step_rank": rank, "ssm.group_count": groups}
        parsed = from_gguf(write(tmp_path / f"{arch}.gguf", tensors, meta | more, arch))
        attention = layers_of(parsed)[0].attention
        assert attention.kind == kinds[arch]
        assert parsed.model.params == sum(int(np.prod(t[:-1])) for t in tensors.values())
        assert not parsed.notes
        matmul = parsed.precision.of("attention")
        assert matmul.matmul == "fp16" and 8.5 <= 8 * matmul.element_bytes < 12  # q8_0 but for the small fp32 tables


def test_layers_that_are_not_read_from_gguf(tmp_path):
    tensors = dense(2) | UNTIED | {"blk.0.time_mix_w1.weight": (512, HIDDEN, Q.Q8_0)}
    with pytest.raises(UnsupportedError, match=r"time_mix_w1.*config\.json"):
        from_gguf(write(tmp_path / "m.gguf", tensors, META, "rwkv7"))
    odd = dense(2) | UNTIED | {"blk.0.altup_proj.weight": (4096, HIDDEN, Q.Q8_0)}
    with pytest.raises(UnsupportedError, match="not modelled in full"):
        from_gguf(write(tmp_path / "n.gguf", odd, META, "gemma3n"))


def test_without_the_package_the_message_says_how_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "m.gguf", dense(2), META)
    real = builtins.__import__

    def without_gguf(name, *args, **kwargs):
        if name == "gguf":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_gguf)
    with pytest.raises(SpecError, match=r"pip install 'roofline\[gguf\]'"):
        from_gguf(path)


def test_files_that_are_not_gguf(tmp_path):
    path = tmp_path / "m.gguf"
    for content in (b"", b"GGUF", b"not a model", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(SpecError, match=r"m\.gguf"):
            from_gguf(path)
    with pytest.raises(SpecError, match="folder"):
        from_gguf(tmp_path)
    with pytest.raises(SpecError, match="no file"):
        from_gguf(tmp_path / "absent.gguf")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_a_model_or_a_message(tmp_path, data):
    path = tmp_path / "m.gguf"
    if not path.exists():
        write(path, dense(1, fmt=Q.Q4_0), META | {"block_count": 1})
    content = bytearray(path.read_bytes())
    header = 1500
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "d.gguf"
    damaged.write_bytes(content[: data.draw(st.sampled_from([len(content), header, 100]))])
    try:
        parsed = from_gguf(damaged)
    except RooflineError as error:
        assert "d.gguf" in str(error)
    else:
        assert 0 < parsed.model.params < 1e15
