"""Reading what benchmarks and engines write, and predictions beside it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from roofline.cli.compare import compare_command
from roofline.comparison import Measured, compare, compare_log, read_log, read_results, transferred
from roofline.deployment import deployment
from roofline.errors import InputError
from roofline.serving.steady import steady_state

# Fields as the tools write them: vllm/benchmarks/serve.py, sglang/bench_serving.py, genai-perf and AIPerf exports.
VLLM = {
    "date": "20260401-120000", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 320,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 32, "duration": 61.0, "completed": 320,
    "total_input_tokens": 320 * 1000, "total_output_tokens": 320 * 250, "request_throughput": 5.2,
    "output_throughput": 1311.5, "total_token_throughput": 6557.0, "mean_ttft_ms": 210.0, "median_ttft_ms": 190.0,
    "std_ttft_ms": 80.0, "p99_ttft_ms": 900.0, "mean_tpot_ms": 21.0, "median_tpot_ms": 20.5, "std_tpot_ms": 1.0,
    "p99_tpot_ms": 26.0, "mean_itl_ms": 20.9, "median_itl_ms": 18.0, "p99_itl_ms": 120.0,
}  # fmt: skip
SGLANG = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": None,
    "random_input_len": 1000, "random_output_len": 250, "duration": 80.0, "completed": 320,
    "total_input_tokens": 320000,
    "total_output_tokens": 80000, "request_throughput": 4.0, "input_throughput": 4000.0, "output_throughput": 1000.0,
    "mean_e2e_latency_ms": 5000.0, "median_e2e_latency_ms": 4900.0, "mean_ttft_ms": 150.0, "median_ttft_ms": 120.0,
    "p99_ttft_ms": 700.0, "mean_tpot_ms": 19.0, "median_tpot_ms": 18.8, "p99_tpot_ms": 24.0, "mean_itl_ms": 19.0,
    "accept_length": None, "concurrency": 20.0,
}  # fmt: skip
AIPERF = {
    "schema_version": "1.0", "aiperf_version": "0.11.0",
    "request_throughput": {"unit": "requests/sec", "avg": 5.2}, "request_count": {"unit": "requests", "avg": 320},
    "time_to_first_token": {"unit": "ms", "avg": 210.0, "p50": 190.0, "p90": 400.0, "p99": 900.0, "std": 80.0},
    "inter_token_latency": {"unit": "ms", "avg": 21.0, "p50": 20.5, "p90": 22.0, "p99": 26.0},
    "request_latency": {"unit": "ms", "avg": 5450.0, "p50": 5400.0, "p99": 7000.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1311.5},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 250.0},
    "input_config": {"endpoint": {"model_names": ["llama"]}, "loadgen": {"concurrency": 32, "request_rate": None}},
}  # fmt: skip
LOG = """
(EngineCore_DP0 pid=9) INFO 04-01 12:00:00 [gpu_model_runner.py:3338] Model loading took 14.9889 GiB and 2.1 s
INFO 04-01 12:00:09 [gpu_worker.py:359] Available KV cache memory: 54.10 GiB
INFO 04-01 12:00:09 [kv_cache_utils.py:1286] GPU KV cache size: 443,200 tokens
INFO 04-01 12:00:09 [kv_cache_utils.py:1291] Maximum concurrency for 8,192 tokens per request: 54.10x
INFO 04-01 12:00:30 [gpu_model_runner.py:4244] Graph capturing finished in 9 secs, took 0.86 GiB
"""


@pytest.fixture(scope="module")
def where():
    return deployment("llama-3.1-8b", "h100-sxm")


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_vllm(tmp_path):
    (r,) = read_results(written(tmp_path, "bench.json", VLLM))
    assert (r.tool, r.isl, r.osl, r.concurrency, r.requests) == ("vllm bench serve", 1000, 250, 32, 320)
    assert r.rate_per_s is None  # inf: as fast as answers come
    assert r.stats["ttft_s"] == pytest.approx({"mean": 0.21, "p50": 0.19, "p99": 0.9})
    assert r.stats["tpot_s"]["p99"] == pytest.approx(0.026) and "e2e_s" not in r.stats
    assert r.tokens_per_s == 1311.5 and r.model.startswith("meta-llama")


def test_sglang_writes_lines(tmp_path):
    runs = read_results(
        written(tmp_path, "out.jsonl", json.dumps(SGLANG) + "\n" + json.dumps(SGLANG | {"request_rate": 8.0}))
    )
    assert [r.rate_per_s for r in runs] == [4.0, 8.0] and runs[0].tool == "sglang.bench_serving"
    assert runs[0].concurrency is None and runs[0].stats["e2e_s"] == {"mean": 5.0, "p50": 4.9}


def test_aiperf_and_genai_perf(tmp_path):
    (r,) = read_results(written(tmp_path, "profile_export_aiperf.json", AIPERF))
    assert (r.tool, r.isl, r.osl, r.concurrency, r.requests) == ("AIPerf", 1000, 250, 32, 320)
    assert r.stats["ttft_s"]["p90"] == pytest.approx(0.4) and r.model == "llama"
    genai = {k: v for k, v in AIPERF.items() if k not in ("aiperf_version", "schema_version")}
    genai["time_to_first_token"] = {"unit": "ns", "avg": 2.1e8}
    (r,) = read_results(written(tmp_path, "profile_export_genai_perf.json", genai))
    assert r.tool == "genai-perf" and r.stats["ttft_s"]["mean"] == pytest.approx(0.21)
    nested = {"records": {k: v for k, v in AIPERF.items() if isinstance(v, dict) and "unit" in v}}
    assert read_results(written(tmp_path, "nested.json", nested))[0].stats["tpot_s"]["mean"] == pytest.approx(0.021)


def test_same_numbers_whichever_tool_wrote_them(tmp_path, where):
    """One run, as vLLM and as AIPerf write it: the same rows."""
    a = compare(where, written(tmp_path, "a.json", VLLM))
    b = compare(where, written(tmp_path, "b.json", AIPERF))
    theirs = {r.quantity: (r.predicted, r.measured) for r in b.rows}
    for r in a.rows:
        assert theirs[r.quantity] == pytest.approx((r.predicted, r.measured)), r.quantity


def test_prediction_is_the_steady_state(tmp_path, where):
    found = {r.quantity: r for r in compare(where, written(tmp_path, "a.json", VLLM)).rows}
    state = steady_state(where, isl=1000.0, osl=250.0, concurrency=32.0, burst_share=0.1)
    assert found["TPOT mean"].predicted == pytest.approx(float(state.tpot_s))
    assert found["TTFT p99"].predicted == pytest.approx(float(state.ttft.at(0.99)))
    assert found["output tokens/s"].ratio == pytest.approx(1311.5 / float(state.tokens_per_s))
    row = found["TPOT mean"]
    assert row.inside == (row.low <= 0.021 <= row.high) and row.low < row.predicted < row.high
    assert found["requests/s"].inside is None


def test_replicas_share_the_load(where):
    one = Measured("x", 500.0, 100.0, 16.0, None, 100, {"tpot_s": {"mean": 0.01}}, 100.0)
    two = Measured("x", 500.0, 100.0, 32.0, None, 200, {"tpot_s": {"mean": 0.01}}, 200.0)
    a, b = compare(where, [one]).rows, compare(where, [two], replicas=2).rows
    assert b[0].predicted == pytest.approx(a[0].predicted) and b[1].predicted == pytest.approx(2 * a[1].predicted)


def test_log(tmp_path, where):
    path = written(tmp_path, "server.log", LOG)
    found = read_log(path)
    assert (found.kv_tokens, found.max_model_len, found.max_concurrency) == (443200, 8192, 54.10)
    assert found.weight_bytes == pytest.approx(14.9889 * 2**30)
    rows = {r.quantity: r for r in compare_log(where, path).rows}
    assert rows["weights"].ratio == pytest.approx(1.0, abs=0.01)  # Llama-3.1-8B bf16 loads 14.99 GiB
    assert {"weights", "KV pool", "cached tokens", "requests of 8,192 tokens", "CUDA graphs"} <= set(rows)


def test_log_with_cache_and_concurrency_on_one_line(tmp_path):
    """As vLLM of late 2026 prints it."""
    line = "INFO GPU KV cache size: 443,200 tokens, Maximum concurrency for 8,192 tokens per request: 54.10x"
    found = read_log(written(tmp_path, "server.log", line))
    assert (found.kv_tokens, found.max_model_len, found.max_concurrency) == (443200, 8192, 54.10)


def test_texts(tmp_path, where):
    text = str(compare(where, written(tmp_path, "a.json", VLLM)))
    assert "1,000 in, 250 out, 32 in flight" in text and "TPOT mean [ms]" in text
    assert len(compare(where, written(tmp_path, "a.json", VLLM)).to_pandas()) == 8


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "neither JSON nor JSONL"),
        ({"a": 1}, "not a result of"),
        ([], "no benchmark result"),
        ({k: v for k, v in VLLM.items() if k not in ("total_input_tokens",)}, "isl is not in the file"),
    ],
)
def test_refusals(tmp_path, where, content, text):
    with pytest.raises(InputError, match=text):
        compare(where, written(tmp_path, "x.json", content))


def test_missing_files(tmp_path, where):
    with pytest.raises(InputError, match="no such file"):
        read_results(tmp_path / "none.json")
    with pytest.raises(InputError, match="no line of a vLLM start-up log"):
        compare_log(where, written(tmp_path, "x.log", "hello"))


# From one measured step to another deployment.


def steps(engine, model="qwen3-30b-a3b", hw="h100-sxm"):
    return [deployment(model, hw, tp=n, engine=engine) for n in (1, 2)]


@pytest.mark.parametrize("engine", ["vllm", "vllm==0.10.2", "sglang==0.3.5", "transformers"])
def test_a_measurement_is_met_where_it_was_made(engine):
    one, two = steps(engine)
    context = 1000.0
    for factor in (0.7, 1.0, 1.2, 3.0):
        measured = factor * float(one.decode_step(4.0, context).total_s)
        assert float(transferred(measured, one, one, 4.0, context).seconds) == pytest.approx(measured)
    plain = transferred(float(one.decode_step(4.0, context).total_s), one, two, 4.0, context)
    assert float(plain.seconds) == pytest.approx(float(plain.plain_s))
    assert (float(plain.device), float(plain.host)) == pytest.approx((1.0, 1.0))


def test_a_slow_host_is_as_slow_with_two_devices():
    """A step that waits for launches has them all on every rank; one that waits for the device has half of it."""
    one, two = steps("vllm==0.10.2")
    found = transferred(0.016, one, two, 1.0, 1000.0)
    assert float(found.seconds) == pytest.approx(0.016) and float(found.device) == 1.0 and float(found.host) > 1.5
    one, two = steps("vllm")
    found = transferred(0.016, one, two, 1.0, 1000.0)
    ratio = float(two.decode_step(1.0, 1000.0).total_s / one.decode_step(1.0, 1000.0).total_s)
    assert float(found.seconds) == pytest.approx(0.016 * ratio) and float(found.host) == 1.0


def test_a_longer_measurement_never_lets_expect_a_shorter_step():
    one, two = steps("vllm==0.10.2", "gpt-oss-20b", "a100-sxm")
    measured = np.geomspace(1e-3, 0.1, 200)
    found = transferred(measured, one, two, 1.0, 1000.0).seconds
    assert np.all(np.diff(found) >= -1e-12)
    alone = [float(transferred(m, one, two, 1.0, 1000.0).seconds) for m in measured]
    assert found == pytest.approx(alone, rel=1e-12)


def test_a_comparison_says_what_another_layout_would_do(tmp_path, where):
    two = deployment("llama-3.1-8b", "h100-sxm", tp=2)
    found = compare(where, written(tmp_path, "a.json", VLLM), then=two)
    state = steady_state(two, isl=1000.0, osl=250.0, concurrency=32.0, burst_share=0.1)
    assert len(found.notes) == 1 and f"{float(state.tpot_s) * 1e3:.4g} without" in found.notes[0]
    assert "TP2" in found.notes[0] and compare(where, written(tmp_path, "b.json", VLLM)).notes == ()


def test_then_names_a_part_of_a_deployment(tmp_path):
    path = str(written(tmp_path, "a.json", VLLM))
    said = {}
    for text in ("tp=2", "tp=x", "tp", "gpu=2"):
        found = CliRunner().invoke(compare_command, ["llama-3.1-8b", path, "--hw", "h100-sxm", "--then", text])
        said[text] = found.output + str(found.exception or "")
    assert "would take" in said["tp=2"] and "not a whole number" in said["tp=x"]
    assert "NAME=VALUE" in said["tp"] and "part of a deployment" in said["gpu=2"]


@pytest.mark.parametrize(
    ("rate", "limit", "how"),
    [(2.0, 256, "2 requests/s"), (500.0, 64, "64 in flight"), ("inf", 64, "64 in flight"), (2.0, None, "2 requests/s")],
)
def test_of_a_rate_and_a_limit_in_flight_counts_what_holds_the_run_up(tmp_path, rate, limit, how):
    """`vllm bench serve --request-rate 2 --max-concurrency 256` has a handful in flight, not 256."""
    path = written(tmp_path, "a.json", VLLM | {"request_rate": rate, "max_concurrency": limit})
    where = deployment("llama-3.1-8b", "h100-sxm")
    found = compare(where, path)
    assert found.rows[0].run.endswith(how)
    given = {"concurrency": 64.0} if "flight" in how else {"rate_per_s": 2.0}
    alone = VLLM | {"request_rate": "inf", "max_concurrency": None}
    assert compare(where, written(tmp_path, "b.json", alone), **given).rows[0].predicted == found.rows[0].predicted


def test_what_a_run_says_against_itself(tmp_path):
    where = deployment("llama-3.1-8b", "h100-sxm")
    other = written(tmp_path, "a.json", VLLM | {"model_id": "meta-llama/Llama-3.1-70B-Instruct", "failed": 17})
    assert compare(where, other).notes == (
        "the file measures meta-llama/Llama-3.1-70B-Instruct, predicted is llama-3.1-8b",
        "vllm bench serve: 17 requests failed; the others had the device to themselves",
    )
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "/models/mine", ""):
        assert not compare(where, written(tmp_path, "b.json", VLLM | {"model_id": name})).notes
    with pytest.raises(InputError, match="completed is 0"):
        compare(where, written(tmp_path, "c.json", VLLM | {"completed": 0}))
    nonsense = compare(where, written(tmp_path, "d.json", VLLM | {"mean_tpot_ms": -3.0}))
    assert "TPOT mean" not in {r.quantity for r in nonsense.rows}


def test_several_deployments_to_carry_a_measurement_to(tmp_path):
    path = str(written(tmp_path, "a.json", VLLM))
    found = CliRunner().invoke(compare_command, ["llama-3.1-8b", path, "--then", "tp=2", "--then", "hw=h200-sxm"])
    assert "2 x h100-sxm (TP2), vllm would take" in found.output
    assert "1 x h200-sxm, vllm would take" in found.output
