"""Launch commands: flags of each engine, refusals of what it cannot do, log lines equal to the memory model."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from roofline.deployment import deployment
from roofline.errors import InfeasibleError, UnknownNameError
from roofline.handoff import EMITTERS, Limits, launch, launch_plan, log_lines
from roofline.planner import Slo, plan, traffic
from roofline.serving.recipes import with_graphs

ASKED = Limits(8192, 256)


def options(text: str) -> dict[str, str]:
    """Options of the last command of a script."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    words = shlex.split("\n".join(lines[-40:]).rpartition("EOF\n")[2].replace("\\\n", " "))
    return {w: (words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else "")
            for i, w in enumerate(words) if w.startswith("--")}  # fmt: skip


def test_vllm():
    d = deployment("deepseek-r1", "h200-sxm", tp=1, dp=8, ep=8, kv="fp8")
    text = launch(d, "vllm", ASKED).text
    assert text.startswith("vllm serve deepseek-ai/DeepSeek-R1")
    found = options(text)
    assert found == {
        "--tensor-parallel-size": "1", "--data-parallel-size": "8", "--enable-expert-parallel": "",
        "--kv-cache-dtype": "fp8", "--max-model-len": "8192", "--max-num-seqs": "256",
        "--max-num-batched-tokens": "8192", "--gpu-memory-utilization": "0.9",
    }  # fmt: skip


def test_vllm_quantises_while_loading():
    d = deployment("llama-3.1-70b", "h100-sxm", tp=2, pp=2, weights="fp8")
    found = options(launch(d, "vllm", ASKED).text)
    assert found["--quantization"] == "fp8" and found["--pipeline-parallel-size"] == "2"
    awq = launch(deployment("llama-3.1-70b", "h100-sxm", weights="int4_awq", tp=2), "vllm", ASKED)
    assert "--quantization" not in awq.text and "checkpoint quantised to int4_awq" in awq.text


def test_sglang_counts_all_ranks():
    """SGLang: tp is the number of ranks, attention data parallelism divides them."""
    d = deployment("deepseek-r1", "h200-sxm", tp=2, dp=4, ep=8, engine="sglang")
    found = options(launch(d, "sglang", ASKED).text)
    assert (found["--tp-size"], found["--dp-size"], found["--ep-size"]) == ("8", "4", "8")
    assert "--enable-dp-attention" in found and found["--context-length"] == "8192"
    two = launch(deployment("deepseek-r1", "h100-sxm", tp=1, dp=16, ep=16, engine="sglang"), "sglang", ASKED)
    assert options(two.text)["--nnodes"] == "2" and "2 nodes" in two.text


def test_tensorrt_llm_yaml():
    d = deployment("deepseek-r1", "b200-sxm", tp=1, dp=8, ep=8, kv="fp8", engine="tensorrt-llm")
    made = launch(d, "tensorrt-llm", ASKED)
    config = yaml.safe_load(made.files["config.yaml"])
    assert config["enable_attention_dp"] is True and config["kv_cache_config"]["dtype"] == "fp8"
    found = options(made.text)
    assert (found["--tp_size"], found["--ep_size"], found["--max_seq_len"]) == ("8", "8", "8192")
    assert found["--config"] == "config.yaml"


def test_sglang_divides_chunks_too():
    """server_args.py: with attention data parallelism chunked_prefill_size and max_running_requests are divided."""
    d = deployment("deepseek-r1", "h200-sxm", tp=1, dp=8, ep=8, engine="sglang")
    found = options(launch(d, "sglang", ASKED).text)
    assert int(found["--chunked-prefill-size"]) == 8 * d.engine.scheduler.token_budget
    assert int(found["--max-running-requests"]) == 8 * 256


@pytest.mark.parametrize(
    ("engine", "kv", "word"),
    [("vllm", "int8", "int8_per_token_head"), ("vllm", "nvfp4", "nvfp4"), ("sglang", "fp8", "fp8_e4m3"),
     ("tensorrt-llm", "nvfp4", "nvfp4"), ("llama.cpp", "q8_0", "q8_0")],
)  # fmt: skip
def test_kv_formats_by_their_own_names(engine, kv, word):
    d = deployment("llama-3.1-8b", "b200-sxm", kv=kv, engine=engine)
    assert word in launch(d, engine, ASKED).text


@pytest.mark.parametrize(("engine", "kv"), [("sglang", "int8"), ("tensorrt-llm", "int8"), ("llama.cpp", "nvfp4")])
def test_kv_formats_that_an_engine_lacks(engine, kv):
    with pytest.raises(InfeasibleError, match=f"{engine} has no KV cache in {kv}; it has bf16"):
        launch(deployment("llama-3.1-8b", "b200-sxm", kv=kv, engine=engine), engine, ASKED)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_context_parallelism_is_refused(engine):
    """Theirs takes tensor-parallel ranks or is for prompts alone; ours adds ranks."""
    with pytest.raises(InfeasibleError, match=r"cp|context"):
        launch(deployment("llama-3.1-8b", "h100-sxm", cp=2, engine=engine), engine, ASKED)


def test_tensorrt_llm_limits():
    with pytest.raises(InfeasibleError, match="tp 1 dp 8, not TP2 DP4"):
        launch(deployment("deepseek-r1", "h200-sxm", tp=2, dp=4, ep=8, engine="tensorrt-llm"), "tensorrt-llm", ASKED)
    with pytest.raises(InfeasibleError, match="NVIDIA devices; this one is of AMD"):
        launch(deployment("llama-3.1-8b", "mi300x", engine="tensorrt-llm"), "tensorrt-llm", ASKED)


def test_dynamo_ranks():
    """Dynamo starts a process for each attention-data-parallel rank of vLLM; TensorRT-LLM has a flag of its own."""
    d = deployment("deepseek-r1", "h200-sxm", tp=1, dp=8, ep=8)
    made = launch(d, "dynamo", ASKED).text
    assert "--data-parallel-rank 0" in made and "0 to 7" in made
    trt = deployment("deepseek-r1", "h200-sxm", tp=1, dp=8, ep=8, engine="tensorrt-llm")
    found = options(launch(trt, "dynamo", ASKED).text)
    assert "--enable-attention-dp" in found and found["--model"] == "deepseek-ai/DeepSeek-R1"


def test_llama_cpp():
    d = deployment("llama-3.1-8b", "rtx-3090", weights="q4_k_m", engine="llama.cpp")
    found = options(launch(d, "llama.cpp", Limits(4096, 4)).text)
    assert found["--ctx-size"] == "16384" and found["--parallel"] == "4"  # the context is shared by the slots
    with pytest.raises(InfeasibleError, match="neither data, expert"):
        launch(deployment("deepseek-r1", "h200-sxm", dp=8, ep=8, engine="llama.cpp"), "llama.cpp", ASKED)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_dynamo_workers(engine):
    d = deployment("llama-3.1-70b", "h100-sxm", tp=4, engine=engine)
    text = launch(d, "dynamo", ASKED, "prefill").text
    module = {"tensorrt-llm": "trtllm"}.get(engine, engine)
    assert f"python -m dynamo.{module}" in text and "dynamo.frontend" in text
    assert options(text)["--disaggregation-mode"] == "prefill"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_pools(role):
    d = deployment("llama-3.1-70b", "h100-sxm", tp=4)
    assert "NixlConnector" in options(launch(d, "vllm", ASKED, role).text)["--kv-transfer-config"]
    assert options(launch(d, "sglang", ASKED, role).text)["--disaggregation-mode"] == role
    trt = launch(d, "tensorrt-llm", ASKED, role)
    assert "cache_transceiver_config" in yaml.safe_load(trt.files[f"{role}.yaml"])
    with pytest.raises(InfeasibleError, match="no prefill and decode pools"):
        launch(deployment("llama-3.1-8b", "l40s", engine="llama.cpp"), "llama.cpp", ASKED, role)


def test_refusals():
    d = deployment("llama-3.1-8b", "h100-sxm")
    with pytest.raises(UnknownNameError, match="did you mean 'vllm'"):
        launch(d, "vlm", ASKED)
    with pytest.raises(InfeasibleError, match="cannot be launched"):
        launch(deployment("deepseek-r1", "h200-sxm", tp=8, ep=2), "vllm", ASKED)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_log_lines_are_those_of_the_memory_model(engine):
    d = deployment("llama-3.1-8b", "h100-sxm", engine=engine)
    memory = d.footprint(8192.0)
    numbers = [float(n.replace(",", "")) for line in log_lines(d, 8192) for n in re.findall(r"[\d,]+\.?\d*", line)]
    tokens = float(memory.kv_tokens) if engine != "llama.cpp" else memory.tightest.kv_pool / 2**20
    assert any(n == pytest.approx(tokens, abs=0.51) for n in numbers)


@pytest.mark.parametrize("engine", EMITTERS)
def test_every_engine_realises_a_plan(engine):
    profile = engine if engine != "dynamo" else "vllm"
    r = plan(
        "llama-3.1-8b", ["l40s"], traffic=traffic(rate_per_s=0.2, isl=1000, osl=100), slo=Slo(), engine=profile,
        weights="q4_k_m" if engine == "llama.cpp" else None, max_gpus=1, disaggregate=False,
    )  # fmt: skip
    text = launch_plan(r, engine)
    assert "# its log should say" in text and "vllm bench serve" in text and "users should see TTFT" in text
    assert "plan again" not in text


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--max-cudagraph-capture-size 700"), ("sglang", "--cuda-graph-max-bs 700"),
     ("tensorrt-llm", "max_batch_size: 700")],
)  # fmt: skip
def test_graphs_are_captured_up_to_what_was_priced(engine, flag):
    """By themselves engines capture up to 512, 256 and 128 here; only another limit is said, TensorRT-LLM's always."""
    d = deployment("llama-3.1-8b", "h100-sxm", engine=engine)
    asked = Limits(max_model_len=4096, max_num_seqs=1000)
    own = launch(d, engine, asked).text
    assert flag.split()[0] not in own or "max_batch_size: 128" in own
    more = d.with_(engine=with_graphs(d.engine, 700))
    text = launch(more, engine, asked).text.replace(" \\\n  ", " ")
    assert flag in text
    few = launch(more, engine, Limits(max_model_len=4096, max_num_seqs=64)).text
    assert "700" not in few and "cudagraph" not in few and "cuda-graph" not in few
