"""One estimate: what goes in is checked where it enters, and shares stay shares."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.deployment import deployment
from roofline.errors import InfeasibleError, InputError, RooflineError, UnsupportedError, check_number
from roofline.estimates import estimate
from roofline.memory import fewest_gpus
from roofline.planner.layouts import plans
from roofline.specs.refs import load_model


@pytest.mark.parametrize("load", ["batch", "concurrency"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), np.array([1, 2]), True, "8", None])
def test_a_load_below_one_request_is_refused(load, value):
    """Nothing is replaced by a default in silence; None alone says that nothing was given."""
    if value is None:
        assert estimate("llama-3.1-8b", **{load: value}).batch == 1.0
        return
    with pytest.raises(InputError, match=load):
        estimate("llama-3.1-8b", **{load: value})


@pytest.mark.parametrize("value", [np.float32(2.0), np.int64(2), np.array(2.0), 2])
def test_numbers_of_any_library_are_numbers(value):
    assert check_number("n", value, low=1, integer=True) == 2


@pytest.mark.parametrize("value", [None, "2", True, [2], np.array([2, 3]), 1j, object()])
def test_what_is_not_one_number_is_refused(value):
    with pytest.raises(InputError, match=r"n: .* is not a number"):
        check_number("n", value)


def test_the_shortest_request_has_a_first_token_only():
    found = estimate("llama-3.1-8b", isl=1, osl=1, batch=1)
    assert found.e2e_s.value == found.ttft_s.value > 0.0


@pytest.mark.parametrize("name", [None, 3])
def test_a_model_is_named_by_text(name):
    with pytest.raises(InputError, match="is no name, path or loaded model"):
        load_model(name)


def test_a_layout_of_latents_needs_latents():
    """656 B a token are 512 latent and 64 rotary values: there is no such cache of keys and values by head."""
    with pytest.raises(UnsupportedError, match="latent"):
        deployment("llama-3.1-8b", "h100-sxm", kv="fp8_ds_mla")
    assert deployment("deepseek-v3", "h200-sxm", tp=8, kv="fp8_ds_mla").precision.kv.bits == 8


def test_no_plan_over_devices_that_nothing_connects():
    """What `deployment` refuses is not recommended."""
    found = estimate("llama-3.1-70b", "m4-max", weights="bf16")
    d = found.deployment
    assert fewest_gpus(d.model, d.accelerator, d.precision, d.engine) is None
    assert found.smallest_plan is None and not found.fits
    assert [p.gpus for p in plans(d.model, d.accelerator)] == [1]
    with pytest.raises(InfeasibleError, match="no link"):
        deployment("llama-3.1-70b", "m4-max", tp=2)


def test_the_smallest_plan_holds_the_drafter_too():
    """140 GB of drafter beside 16 GB of model do not fit the one device that holds the model."""
    found = estimate("llama-3.1-8b", "h100-sxm", speculation="llama-3.1-70b:3:0.7")
    assert not found.fits and found.smallest_plan.gpus == 4
    there = estimate("llama-3.1-8b", "h100-sxm", tp=4, speculation="llama-3.1-70b:3:0.7")
    assert there.fits


@pytest.mark.parametrize("drafts", [1, 3, 8])
def test_slots_of_a_fixed_length_hold_the_drafts(drafts):
    """An engine that reserves whole slots (llama.cpp) reserves the tokens under verification too."""
    plain = estimate("mistral-7b-v0.1", "rtx-4090", weights="q4_k_m", engine="llama.cpp")
    found = estimate("mistral-7b-v0.1", "rtx-4090", weights="q4_k_m", engine="llama.cpp",
                     speculation=f"eagle:{drafts}:0.7")  # fmt: skip
    assert plain.fits and found.fits
    assert found.memory.kv_tokens >= found.isl + found.osl + drafts


def test_utilisation_of_a_mixture_is_that_of_its_experts_format():
    """NVFP4 experts multiply four times as fast as bf16 on B200: against the peak of bf16 a prompt would reach 1.75."""
    found = estimate("qwen3-235b-a22b", "b200", weights="nvfp4_experts", engine="ideal", isl=2048, osl=2, batch=64)
    assert 0.3 < found.mfu_prefill <= 1.0


def test_overlapping_hides_the_exchange_of_tokens_too():
    run = deployment("deepseek-v3", "h200-sxm", dp=8, ep=8)
    profile = run.engine.step.model_copy(update={"schedule": "overlapped"})
    other = run.with_(engine=run.engine.model_copy(update={"step": profile}))
    step = run.decode_step(256.0, 2000.0)
    exchanged = sum(float(t.op.count * t.total_s) for t in step.times if t.op.kind == "exchange")
    assert exchanged > 0.0
    assert float(step.total_s - other.decode_step(256.0, 2000.0).total_s) == pytest.approx(exchanged, rel=1e-6)


def test_an_encoder_reads_a_prompt_as_a_whole():
    with pytest.raises(InputError, match="cached"):
        estimate("t5-v1.1-xxl", isl=512, osl=64, cached=256)
    assert estimate("t5-v1.1-xxl", isl=512, osl=64, batch=4).ttft_s.value > 0
    with pytest.raises(UnsupportedError, match=r"t5-v1.1-xxl has an encoder.*estimate it with batch"):
        estimate("t5-v1.1-xxl", isl=512, osl=64, concurrency=4)


@pytest.mark.parametrize("load", [{"concurrency": 1}, {"concurrency": 400}, {"rate_per_s": 2.0}], ids=str)
def test_parts_of_a_latency_add_up_to_it(load):
    e = estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=2000, osl=500, **load)
    assert sum(e.ttft_parts_s.values()) == pytest.approx(e.ttft_s.value)
    assert sum(e.tpot_parts_s.values()) == pytest.approx(e.tpot_s.value)
    assert min(*e.ttft_parts_s.values(), *e.tpot_parts_s.values()) >= 0.0
    assert (e.ttft_parts_s["for a seat"] > 0.5 * e.ttft_s.value) == (load.get("concurrency") == 400)


def test_what_has_no_parts_says_none():
    assert estimate(batch=8).ttft_parts_s == estimate(batch=8).tpot_parts_s == {}
    assert estimate(concurrency=8, speculation="eagle:3:0.8").tpot_parts_s == {}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"engine": None}, "engine: None is no name"), ({"engine": 3}, "engine: 3 is no name"),
        ({"speculation": 3}, "speculation: '3' is not DRAFTER"),
        ({"speculation": ["eagle:3:0.8"]}, "is not DRAFTER:DRAFTS:ACCEPTANCE"),
        ({"specs": 3}, "specs: 3 is not the path"), ({"hw": None}, "hardware: 'None'"), ({"model": 3}, "model: '3'"),
        ({"model": ""}, "unknown model ''"), ({"isl": 10**400}, r"isl: 10{59} \.\.\. is not a number"),
    ],
)  # fmt: skip
def test_values_of_other_types_are_refused_in_words(given, told):
    with pytest.raises(RooflineError, match=told):
        estimate(**given)


def test_ranks_of_a_table_may_be_floats():
    """As a data frame has them: 2.0 ranks are 2."""
    found = estimate("llama-3.1-8b", tp=np.float64(2.0))
    assert str(found.deployment) == "llama-3.1-8b bf16 on 2 x h100-sxm (TP2), vllm"


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b"])
def test_a_loaded_model_is_a_model(name):
    """What `load_model` returns goes where a name goes, with the formats of its checkpoint."""
    loaded = load_model(name)
    assert loaded.name == name and repr(loaded).startswith(f"<ParsedModel {name}: ")
    expected = estimate(name)
    for model in (loaded, loaded.model):
        found = estimate(model)
        assert found.tpot_s == expected.tpot_s and str(found.deployment) == str(expected.deployment)


def test_more_tokens_than_positions_is_no_question_of_devices():
    found = estimate("gemma-3-27b", "h100-sxm", isl=1_000_000, osl=100)
    assert found.violations == ["does not fit: max_model_len 1,000,100 is above the model's limit of 131,072"]
    assert "the model has 131,072 positions" in str(found) and "narrower" not in str(found)
