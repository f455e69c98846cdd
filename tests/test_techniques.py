"""Levers: each does what it is said to do; gains, tags, conflicts and elasticities."""

from __future__ import annotations

import pytest

from roofline.deployment import deployment
from roofline.errors import InputError, UnknownNameError
from roofline.estimates import estimate
from roofline.techniques import GAINS, Assumed, Cut, levers
from roofline.techniques.catalogue import CATALOGUE, CONFLICTS, FAMILIES, changed_attention, launches, tiered
from roofline.techniques.elasticity import RESOURCES, elasticities, with_more
from roofline.techniques.outcome import NotPossibleError, Scene, outcome


@pytest.fixture(scope="module")
def dense():
    return levers("llama-3.1-70b", "h100-sxm", tp=4, isl=4000, osl=500, concurrency=32)


@pytest.fixture(scope="module")
def moe():
    return levers("deepseek-r1", "h200-sxm", tp=8, isl=4000, osl=500, concurrency=64)


def named(found, name):
    return named_in(found.found, name)


def named_in(found, name):
    return next(x for x in found if x.name == name)


def test_every_family_is_there(dense, moe):
    """The techniques that the planner's issue names, all of them."""
    wanted = {
        "weight format", "KV format", "larger batch", "layout", "chunked prefill", "prefix cache", "tiered KV",
        "disaggregation", "cache-aware pools", "speculation", "launches", "hardware", "model",
    }  # fmt: skip
    assert wanted <= {x.family for x in dense.found}
    assert {"EP8" in x.name for x in moe.found if x.family == "layout"} == {True, False}
    assert {x.cuts for x in dense.found if x.family == "KV format"} == {(Cut.KV,)}
    assert all(set(x.cuts) <= set(Cut) for x in dense.found)
    assert len(CATALOGUE) == 12


@pytest.mark.parametrize("by", GAINS)
def test_ranking(dense, by):
    gains = [x.gains[by] for x in dense.ranked(by)]
    assert gains == sorted(gains, reverse=True)
    families = [x.family for x in dense.best_of_families(by)]
    assert len(families) == len(set(families))


def test_gains_are_those_of_estimates(dense):
    """fp8 weights: the same as asking for them."""
    fp8 = outcome(deployment("llama-3.1-70b", "h100-sxm", tp=4, weights="fp8"), dense.scene, 2.95)
    lever = named(dense, "weights fp8")
    assert lever.result == fp8
    assert lever.gains["tpot"] == pytest.approx(dense.base.tpot_s / fp8.tpot_s)
    assert 1.0 < lever.gains["tpot"] < 2.0  # only weights are halved


def test_directions(dense):
    assert named(dense, "KV fp8").gains["peak"] > 1.05  # twice the requests
    assert named(dense, "twice the concurrency").gains["throughput"] > 1.0
    assert named(dense, "twice the concurrency").gains["tpot"] < 1.0
    assert named(dense, "half the concurrency").gains["tpot"] > 1.0
    assert named(dense, "prefix cache").gains["ttft"] > 1.3  # half of the prompt
    assert named(dense, "b200-sxm").gains["tpot"] > 1.3
    assert named(dense, "l40s").gains["tpot"] < 0.5
    assert named(dense, "one megakernel per pass").gains["tpot"] >= 1.0
    assert Cut.COMPUTE in named(dense, "weights fp8").cuts
    assert named(dense, "weights int4_awq").cuts == (Cut.HBM,)  # multiplied in 16 bits
    assert named(dense, "weights nvfp4").cuts == (Cut.HBM,)  # Hopper has no fp4


def test_a_host_tier_is_read_over_every_stage_s_own_link():
    """Twice the stages, half the layers behind each host link, half the time to fetch; the widest stage decides."""
    scene = Scene(4000.0, 500.0, 8.0)
    more = Scene(4000.0, 500.0, 8.0, cached=2000.0)

    def fetched_s(pp):
        d = deployment("llama-3.1-70b", "h100-sxm", tp=2, pp=pp)
        return tiered(d, scene, more, 2.95, 5e9).ttft_s - outcome(d, more, 2.95).ttft_s

    assert fetched_s(4) == pytest.approx(fetched_s(2) / 2.0, rel=1e-6)
    per_layer = 2000.0 * 2 * 4 * 128 * 2.0 / 5e9  # tp 2 holds half of the 8 KV heads
    assert fetched_s(4) == pytest.approx(20 * per_layer, rel=1e-6)


def test_data_parallel_attention_frees_the_latent_cache(moe):
    """Under TP every rank holds the whole latent; with attention data parallelism each holds its own sequences."""
    lever = named(moe, "DP8 EP8")
    assert Cut.KV in lever.cuts and lever.gains["peak"] > 1.5


def test_model_variants_cut_the_cache(dense):
    """The window and fewer KV heads shorten the reading of long contexts, where that is what a step does."""
    d, scene = deployment("llama-3.1-70b", "h100-sxm", tp=4), Scene(60_000.0, 500.0, 4.0)
    base = outcome(d, scene, 2.95)
    found = {x.name: x for x in levers(d, isl=60_000, osl=500, concurrency=4, families=["model"]).found}
    assert found["half the KV heads"].gains["tpot"] > 1.05 and found["half the KV heads"].gains["peak"] > 1.05
    assert found["window of 4096 on 3 of 4 layers"].gains["tpot"] > 1.05
    half = changed_attention(d.model, lambda i, a: a.model_copy(update={"kv_heads": a.kv_heads // 2}))
    assert half.kv_bytes_per_token() == d.model.kv_bytes_per_token() / 2
    assert base.tpot_s == levers(d, isl=60_000, osl=500, concurrency=4, families=["model"]).base.tpot_s


def test_speculation_follows_acceptance():
    scene = {"tp": 4, "isl": 2000, "osl": 300, "concurrency": 2, "families": ["speculation"]}
    gains = [levers("llama-3.1-70b", "h100-sxm", assumed=Assumed(acceptance=a), **scene).found[0] for a in (0.4, 0.8)]
    assert 1.0 < gains[0].gains["tpot"] < gains[1].gains["tpot"] < 5.0
    never = levers("llama-3.1-70b", "h100-sxm", assumed=Assumed(acceptance=0.01), **scene).found[0]
    assert not never.gains and "verification costs more" in never.why_not


def test_an_odd_number_of_heads_cannot_be_halved():
    found = levers("smollm2-360m", "h100-sxm", families=["model"]).found
    assert "5 KV heads cannot be halved" in named_in(found, "half the KV heads").why_not


def test_what_is_not_possible_is_told(dense):
    small = named(dense, "v100-sxm-16gb")
    assert not small.gains and "does not fit" in small.why_not
    assert small in dense.impossible


def test_conflicts(dense):
    pairs = dense.conflicts("tpot")
    assert any("speculative" in a + b and "weights" in a + b for a, b, _ in pairs)
    names = {x.name for x in dense.found}
    assert all(a in names and b in names and why for a, b, why in pairs)
    families = {x.family for x in dense.found}
    assert all({a, b} <= families for a, b, _ in CONFLICTS)


@pytest.mark.parametrize("batch", [1.0, 64.0])
def test_everything_faster_is_as_much_faster(batch):
    """Bandwidth, FLOP/s, links and launches together by 10 %: the step is 10 % faster, to the last term."""
    d = deployment("llama-3.1-70b", "h100-sxm", tp=4)
    all_more = d
    for resource in ("bandwidth", "FLOP/s", "link bandwidth", "launch speed"):
        all_more = with_more(all_more, resource)
    ratio = float(d.decode_step(batch, 2000.0).total_s / all_more.decode_step(batch, 2000.0).total_s)
    assert ratio == pytest.approx(1.1, rel=0.01)


def test_elasticities(dense):
    found = {e.resource: e for e in dense.elasticities}
    assert set(found) == set(RESOURCES)
    together = sum(found[r].tpot for r in ("bandwidth", "FLOP/s", "link bandwidth", "launch speed"))
    assert together == pytest.approx(0.1, abs=0.025)
    assert found["FLOP/s"].ttft > found["bandwidth"].ttft  # prompts are bound by compute
    assert found["HBM capacity"].peak > 0.02 and abs(found["HBM capacity"].tpot) < 1e-3
    alone = elasticities(deployment("llama-3.1-70b", "h100-sxm", tp=4), Scene(1000.0, 200.0, 1.0))
    assert alone[0].resource == "bandwidth"  # one sequence reads all weights


def test_texts(dense):
    text = str(dense)
    for word in ("HBM round-trips", "+10 % of", "bandwidth", "do not add up", "assumes"):
        assert word in text
    frame = dense.to_pandas()
    assert {"family", "name", "cuts", "tpot", "usd", "why_not"} <= set(frame.columns) and len(frame) == len(dense.found)
    import json

    assert json.loads(json.dumps(dense.to_dict(), allow_nan=False))["levers"]


def test_refusals(dense):
    with pytest.raises(InputError, match="by: 'speed'"):
        dense.ranked("speed")
    with pytest.raises(NotPossibleError, match="does not fit"):
        levers("llama-3.1-70b", "l40s")
    with pytest.raises(InputError, match="concurrency"):
        levers(concurrency=0)


def test_graphs_are_a_lever_beyond_the_last_one_and_where_they_end_at_attention():
    def names(engine, concurrency):
        d = deployment("deepseek-v2-lite", "h100-sxm", engine=engine)
        found = list(launches(d, Scene(256.0, 512.0, concurrency), 1.0, Assumed()))
        base = outcome(d, Scene(256.0, 512.0, concurrency), 1.0)
        return {w.name: w.evaluate().gains_over(base)["tpot"] for w in found if "graphs" in w.name}

    assert names("tensorrt-llm", 128.0) == names("vllm", 256.0) == {}
    (gain,) = names("tensorrt-llm", 200.0).values()
    assert gain > 1.02 and "128" in next(iter(names("tensorrt-llm", 200.0)))
    assert names("vllm==0.10.2", 1.0)["CUDA graphs of whole steps"] > 1.1


def test_families_are_named():
    assert {x.family for x in levers(families="speculation").found} == {"speculation"}
    assert {x.family for model in ("llama-3.1-8b", "deepseek-v2-lite") for x in levers(model).found} == set(FAMILIES)
    with pytest.raises(UnknownNameError, match="family of techniques 'speculatio'; did you mean 'speculation'"):
        levers(families=["speculatio"])


def test_prices_of_the_users_own_specs_count(tmp_path):
    """Levers and estimates take the same price: that of the folder of specs, where it has one."""
    (tmp_path / "hardware_specs").mkdir()
    row = "{price: 1.25 USD/h, tier: specialist, terms: on-demand, date: '2026-11', source: mine}"
    text = f"sources: {{mine: contract}}\nprices:\n  rtx-4090: [{row}]\n  h200-sxm: [{row}]\n"
    (tmp_path / "hardware_specs" / "prices.yaml").write_text(text)
    load = {"isl": 500, "osl": 100, "concurrency": 4, "specs": tmp_path}
    found = levers("llama-3.1-8b", "rtx-4090", weights="fp8", families=["hardware"], **load)
    expected = estimate("llama-3.1-8b", "rtx-4090", weights="fp8", **load)
    assert found.base.usd_per_mtok == pytest.approx(expected.usd_per_mtok_output.value)
    other = next(x for x in found.possible if x.name == "h200-sxm")
    assert "1.25 USD/h" in other.assumes


def test_a_layout_that_seats_few_of_the_requests_is_no_remedy():
    """Two of four devices hold the weights and hardly any KV: short gaps for the few that run are not a gain."""
    found = levers("llama-3.1-70b", "h100-sxm", tp=4, isl=2000, osl=500, concurrency=64, families=["layout"])
    tp2 = next(x for x in found.found if x.name == "TP2")
    assert not tp2.gains and "room for the KV of" in tp2.why_not
    assert any(x.gains for x in found.found)
