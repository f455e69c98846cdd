"""Engine profiles: every one loads, names its sources, and follows its releases."""

from __future__ import annotations

import pytest

from roofline.errors import SpecError, UnknownNameError
from roofline.specs.engine import GraphLimit, MemoryProfile, engine_named, engine_names, graph_limit, release

MIB, GIB = 2.0**20, 2.0**30


def test_all_shipped_engines():
    assert engine_names() == [
        "exllamav2", "ideal", "llama.cpp", "megakernel", "sglang", "tensorrt-llm", "transformers", "vllm",
    ]  # fmt: skip


@pytest.mark.parametrize("name", engine_names())
def test_every_number_has_a_source(name):
    engine = engine_named(name)
    for block in (engine.memory, engine.step, engine.scheduler):
        given = block.model_fields_set - {"sources"}
        assert "*" in block.sources or given <= set(block.sources)
        assert all(len(text) > 8 for text in block.sources.values())


def test_ideal_adds_nothing():
    m = engine_named("ideal").memory
    assert (m.utilisation, m.block_size) == (1.0, 1)
    flags = {"pool_rule", "utilisation", "block_size", "window_holds", "sources"}
    ones = {"cell_multiple", "mxfp4_multiple", "mxfp4_k_multiple", "mxfp4_scale_multiple", "mxfp4_scale_copies"}
    limits = {"max_num_seqs", "max_num_batched_tokens", "graph_sizes"}
    rest = {f: v for f, v in m.model_dump().items() if f not in flags | ones | limits}
    assert not any(rest.values()), rest
    step = engine_named("ideal").step
    assert (step.schedule, step.small_kernel_s, step.host_gap_s, step.mixed_layer_s) == ("serial", 0, 0, 0)


def test_versions_change_the_sampler_rate():
    # vllm-project/vllm: top-k/top-p sorted the vocabulary until 0.16 (38 B with the 2 raw ones), a Triton kernel since
    assert engine_named("vllm").memory.logit_bytes == engine_named("vllm", version="0.17").memory.logit_bytes == 12
    assert engine_named("vllm==0.16.0").memory.logit_bytes == engine_named("vLLM 0.11.x").memory.logit_bytes == 36
    assert engine_named("vllm", version="0.11.0").memory.hidden_copies == 3.75
    assert engine_named("vllm", version="0.6.3").memory.hidden_copies == 3  # 6 H bytes in 16 bits, issue 10517


def test_versions_change_what_the_host_does():
    """vLLM: whole graphs since 0.11, asynchronous scheduling since 0.14; SGLang: overlapped scheduler since 0.4."""
    pieces = {v: engine_named("vllm", version=v).step.piece_s for v in ("0.6.3", "0.8.5", "0.10.2", "0.11.0", "0.19")}
    assert [v for v, s in pieces.items() if s] == ["0.8.5", "0.10.2"]
    late = {v: engine_named("vllm", version=v).scheduler.lookahead for v in ("0.6.3", "0.13.0", "0.14.0")}
    assert late == {"0.6.3": 0, "0.13.0": 0, "0.14.0": 1}
    assert engine_named("vllm==0.6.3").step.host_gap_s > engine_named("vllm==0.12").step.host_gap_s > 0
    assert engine_named("vllm==0.6.3").step.graph_tokens == 0 < engine_named("vllm==0.12").step.graph_tokens
    old, new = (engine_named("sglang", version=v) for v in ("0.3.5", "0.4.0"))
    assert (old.scheduler.lookahead, new.scheduler.lookahead) == (0, 1)
    assert old.step.host_sequence_s > 0 == new.step.host_sequence_s
    assert old.step.measured_on == new.step.measured_on != engine_named("sglang").step.measured_on == {}


def test_limits_of_graphs_are_the_first_that_fits():
    step = engine_named("sglang").step
    found = [graph_limit(step, memory * GIB, tp) for memory in (16, 24, 48, 80, 141, 180) for tp in (1, 4)]
    assert found == [8, 8, 24, 80, 32, 160, 256, 512, 256, 512, 512, 512]
    with pytest.raises(ValueError, match="batch"):
        GraphLimit(batch=0)


def test_release():
    assert release("0.11.x (image in the how-to; unstated per row)") == (0, 11)
    assert release("v0.19.0rc1") == (0, 19, 0)
    assert release("") == ()


def test_settings_can_be_replaced():
    engine = engine_named("vllm", block_size=128, matmul_workspace="64 MiB")
    assert (engine.memory.block_size, engine.memory.matmul_workspace) == (128, 64 * MIB)
    assert engine.memory.max_num_seqs == engine_named("vllm").memory.max_num_seqs
    assert engine.memory.sources["block_size"] == "set by the caller"


def test_messages():
    with pytest.raises(UnknownNameError, match="did you mean 'vllm'"):
        engine_named("vlm")
    with pytest.raises(UnknownNameError, match="did you mean 'block_size'"):
        engine_named("vllm", blocksize=16)
    with pytest.raises(SpecError, match="matmul_workspace"):
        engine_named("vllm", matmul_workspace=64)
    with pytest.raises(ValueError, match="no source for block_size"):
        MemoryProfile(block_size=16)


def test_aliases():
    assert engine_named("TRT-LLM").name == "tensorrt-llm"
    assert engine_named("llamacpp").name == "llama.cpp"
