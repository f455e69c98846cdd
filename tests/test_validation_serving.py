"""`roofline validate serving` and `online`: schema, refusals, and the errors on the development rows."""

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.specs.library import hardware
from roofline.specs.refs import load_model
from roofline.validation import folds, online, serving

pd = pytest.importorskip("pandas")

AGG = {
    "row_id": "a", "model": "llama-3.1-70b", "system": "h100_sxm", "backend": "vllm", "weight_dtype": "fp8",
    "kv_cache_dtype": "fp8", "serving_mode": "agg", "isl_max_tokens": 1024, "osl_max_tokens": 1024,
    "length_ratio_min": 0.8, "concurrency": 16, "gpus": 4, "tp": 4, "measured_date": "2026-03-01",
}  # fmt: skip
POOLS = AGG | {
    "row_id": "d", "serving_mode": "disagg", "backend": "trtllm", "tp": None, "prefill_workers": 1, "prefill_tp": 4,
    "decode_workers": 2, "decode_tp": 4,
}  # fmt: skip
RATE = {
    "exp_key": "e", "stage": "all", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-SXM5-80GB", "tp": 1,
    "dp": 1, "weight_dtype": "16-bit", "engine": "vllm", "engine_version": "0.15.1", "max_num_batched_tokens": 2048,
    "max_num_seqs": 128, "rate_req_per_s": "8/20", "n_requests": 28000, "isl_mean_tokens": 547, "osl_mean_tokens": 238,
    "prefix_caching": True, "distinct_prompts": 100,
}  # fmt: skip


def test_rows_are_answered_without_measurements():
    out = serving.predict_serving(pd.DataFrame([AGG, POOLS]))
    assert list(out.columns) == ["row_id", *serving.ANSWERS, "reason"]
    assert out["row_id"].tolist() == ["a", "d"] and (out["reason"] == "").all()
    assert (out["ttft_lo_s"] < out["ttft_s"]).all() and (out["tpot_s"] < out["tpot_hi_s"]).all()
    assert serving.error_tables(pd.DataFrame([AGG]), out) == {}


def test_rows_are_refused_with_their_reason():
    bad = [
        AGG | {"row_id": "m", "model": "no-such-model"},
        AGG | {"row_id": "s", "system": "h1000"},
        AGG | {"row_id": "t", "tp": 7},
        AGG | {"row_id": "c", "concurrency": None},
        POOLS | {"row_id": "w", "prefill_workers": None},
    ]
    out = serving.predict_serving(pd.DataFrame(bad))
    assert out["tpot_s"].isna().all()
    for word, reason in zip(("no-such-model", "h1000", "7", "concurrency", "prefill_workers"), out["reason"]):
        assert word in reason
    with pytest.raises(InputError, match="osl_max_tokens"):
        serving.predict_serving(pd.DataFrame([AGG]).drop(columns="osl_max_tokens"))
    with pytest.raises(InputError, match="not a folder"):
        serving.predict_serving(pd.DataFrame([AGG]), "no/such/folder")


def test_replicas_share_the_load():
    """Two replicas at twice the concurrency are one at the old."""
    rows = [AGG, AGG | {"row_id": "b", "gpus": 8, "replicas": 2, "concurrency": 32}]
    out = serving.predict_serving(pd.DataFrame(rows))
    assert out["tpot_s"][0] == pytest.approx(out["tpot_s"][1])


def test_formats_follow_model_and_device():
    """Dense fp8 is calibrated per tensor, mixtures scaled in blocks; 4-bit experts meet what the device multiplies."""
    h100, b200 = hardware("h100-sxm"), hardware("b200-sxm")
    known = ("llama-3.1-70b", "deepseek-r1", "gpt-oss-120b", "minimax-m2.5")
    llama, r1, oss, minimax = (load_model(name).model for name in known)
    assert serving.served_precision(llama, h100, "fp8", "fp8").static_activation_scales
    assert serving.served_precision(r1, h100, "fp8", "").of("expert").name == "fp8_block"
    assert serving.served_precision(r1, b200, "nvfp4", "fp8").of("attention").name == "bf16"
    assert serving.served_precision(r1, b200, "nvfp4", "fp8").of("ffn").name == "nvfp4"
    assert serving.served_precision(minimax, b200, "nvfp4", "fp8").of("expert").name == "nvfp4"
    assert serving.served_precision(oss, h100, "mxfp4_experts", "").of("expert").name == "mxfp4"
    assert serving.served_precision(oss, b200, "mxfp4_experts", "fp8").of("expert").name == "mxfp4_mxfp8"


def test_a_run_of_two_stages_is_their_mixture():
    stages = [RATE | {"stage": s, "rate_req_per_s": r} for s, r in (("all", "8/20"), ("0", "8"), ("1", "20"))]
    for row in stages:
        row["distinct_prompts"] = 0
    out = online.predict_online(pd.DataFrame(stages))
    whole, first, second = (out.loc[i] for i in range(3))
    for name in ("ttft_mean_s", "e2e_mean_s"):
        assert whole[name] == pytest.approx((8 * first[name] + 20 * second[name]) / 28)
    assert first["ttft_p90_s"] <= whole["ttft_p90_s"] <= second["ttft_p90_s"]
    assert whole["achieved_req_per_s"] == pytest.approx(14.0, rel=1e-6)


def test_first_prompts_are_cold():
    """A hundred distinct prompts in a thousand requests: a tenth of them is not cached, which the tail shows."""
    rows = [RATE | {"rate_req_per_s": 8, "stage": "0", "n_requests": n} for n in (1000, 1_000_000)]
    out = online.predict_online(pd.DataFrame(rows))
    assert out["ttft_p99_s"][0] > 1.3 * out["ttft_p99_s"][1]


def test_tokens_that_a_server_makes():
    """Ends of text are ignored unless the row says otherwise; encoding a text again never joins half of its tokens."""
    assert online.tokens_made(195.0, 248.0) == 248.0
    assert online.tokens_made(195.0, 248.0, ends=True) == 195.0
    assert online.tokens_made(300.0, 4096.0) == 300.0 and online.tokens_made(300.0, 4096.0, ends=False) == 4096.0
    rows = [RATE | {"osl_limit_tokens": 300, "ignore_eos": flag} for flag in (True, False)]
    out = online.predict_online(pd.DataFrame(rows))
    assert out["e2e_mean_s"][0] > 1.2 * out["e2e_mean_s"][1]


def test_one_by_one_is_the_closed_form():
    """The same rows through the simulator: means within 3 %, of first tokens 8 %; overload is a queue that grows."""
    rows = pd.DataFrame([RATE, RATE | {"stage": "0", "rate_req_per_s": 8, "n_requests": 4000}])
    solved, sent = online.predict_online(rows), online.predict_online(rows, simulated=True)
    for metric, most in (("tpot_mean_s", 0.03), ("e2e_mean_s", 0.03), ("ttft_mean_s", 0.08), ("e2e_p90_s", 0.05)):
        assert sent[metric].to_numpy() == pytest.approx(solved[metric].to_numpy(), rel=most), metric
    jam = online.predict_online(pd.DataFrame([RATE | {"rate_req_per_s": 300, "n_requests": 3000}]), simulated=True)
    assert jam["ttft_mean_s"][0] > 1.0 and jam["achieved_req_per_s"][0] < 290


def test_bands_of_one_more_model():
    """Models count alike however many rows they have; a band of one model's rows is as wide as their spread."""
    rng = np.random.default_rng(0)
    ratio = np.concatenate((rng.lognormal(0.0, 0.05, 100), rng.lognormal(0.3, 0.05, 10)))
    low, high = online.band_of(ratio, np.repeat(["often", "seldom"], (100, 10)))
    assert low < 1.0 and high > np.exp(0.3)
    low, high = online.band_of(ratio[:100], np.repeat("often", 100))
    assert np.log(high / low) == pytest.approx(2 * 1.28 * 0.05 * online.NEW_MODEL, rel=0.2)


def test_overload_is_said():
    out = online.predict_online(pd.DataFrame([RATE | {"rate_req_per_s": 2000}]))
    assert "more than the server can do" in out["reason"][0]
    assert out["achieved_req_per_s"][0] < 500
    refused = online.predict_online(pd.DataFrame([RATE | {"model": "nobody/no-model"}]))
    assert "no-model" in refused["reason"][0] and np.isnan(refused["tpot_mean_s"][0])


def test_left_out_groups_are_predicted_by_the_others():
    """Servers that launch 1.4 and tokenise 2 times as slowly as profiles say: the other models show it."""
    models = ("llama-3.1-70b", "qwen3-32b", "llama-3.1-8b")
    rows = [
        AGG | {"row_id": f"{m}{c}", "model": m, "concurrency": c, "backend": b, "system": s}
        for m in models for c in (4, 32) for b, s in (("vllm", "h100_sxm"), ("trtllm", "b200_sxm"))
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    found = list(folds.cases(frame))
    frame[["tpot_s", "ttft_s"]] = folds.predicted(found, folds.Factors(launch=1.4, text=2.0), len(frame))
    fit = folds.fitted(found, frame[["tpot_s", "ttft_s"]].to_numpy(), np.ones(len(frame), bool))
    assert fit.launch * fit.hopper == pytest.approx(1.4, rel=0.01)  # only Hopper is bound by its launches here
    assert fit.text == pytest.approx(2.0, rel=0.03)
    tables = folds.left_out(frame)
    assert list(tables) == [f"errors in %, {c} left out" for c in ("model", "system", "backend")]
    by_model = tables["errors in %, model left out"].set_index("left out")
    for name in ("llama-3.1-70b", "qwen3-32b"):
        assert by_model.loc[name, "ttft mean"] < 1.0 and by_model.loc[name, "tpot mean"] < 0.2
    shipped = folds.predicted(found, folds.Factors(), len(frame)) / frame[["tpot_s", "ttft_s"]].to_numpy()
    assert np.abs(shipped - 1.0).mean(axis=0)[1] > 0.08
    assert by_model.loc["each in turn", "rows"] == len(frame)
    with pytest.raises(InputError, match="ttft_s"):
        folds.left_out(frame.drop(columns="ttft_s"))


# Bars of the issue on hidden rows, held here on the development rows with room: median and mean absolute error in %.
def test_closed_loop_rows(shared):
    truth = pd.read_csv(shared / "data/e2e/serving_dev.csv")
    truth = truth[truth["tier"] == "A"].reset_index(drop=True)
    out = serving.predict_serving(truth, shared / "data/hf_configs")
    assert (out["reason"] == "").all()
    tables = serving.error_tables(truth, out)
    tpot, ttft = (table.set_index(["mode", "group"]) for table in tables.values())
    agg = ("agg", "all")
    assert tpot.loc[agg, "median"] < 7.0 and tpot.loc[agg, "mean"] < 9.5 and tpot.loc[agg, "rank"] > 0.975
    assert ttft.loc[agg, "median"] < 14 and ttft.loc[agg, "mean"] < 19 and ttft.loc[agg, "rank"] > 0.96
    assert tpot.loc[("disagg", "all"), "median"] < 12.5 and tpot.loc[("disagg", "all"), "mean"] < 20
    for table in (tpot, ttft):
        assert 75 < table.loc[agg, "in band"] < 88


def test_open_loop_rows(shared):
    truth = pd.read_csv(shared / "data/e2e/online_serving_dev.csv")
    out = online.predict_online(truth, shared / "data/hf_configs")
    errors, bands = online.error_tables(truth, out).values()
    table = errors.set_index(["metric", "group"])
    for metric, median, mean in (("tpot_mean_s", 5.5, 6.5), ("ttft_mean_s", 6, 8.5), ("e2e_mean_s", 5.5, 6.5)):
        row = table.loc[(metric, "whole runs")]
        assert row["answered"] == row["rows"] and row["median"] < median and row["mean"] < mean
    calm = out[(truth["regime"] == "stable").to_numpy()]
    assert (calm["reason"] == "").all()
    of_all = bands[bands["group"] == "all"]
    assert of_all["from other models"].between(75, 88).all() and of_all["as shipped"].between(75, 95).all()
    for line in of_all.itertuples(index=False):
        assert line[3:5] == pytest.approx(online.ONLINE[line[0]], rel=0.02), "the shipped band is the one of these rows"


def test_open_loop_rows_one_by_one(shared):
    """The simulator on measured servers: the runs of one model, all its loads, as close as the closed form."""
    truth = pd.read_csv(shared / "data/e2e/online_serving_dev.csv")
    ours = truth["model"].str.contains("Llama-2-7b") & (truth["regime"] == "stable") & (truth["stage"] == "all")
    truth = truth[ours].reset_index(drop=True)
    out = online.predict_online(truth, simulated=True)
    for metric, most in (("tpot_mean_s", 0.07), ("ttft_mean_s", 0.12), ("e2e_mean_s", 0.07), ("e2e_p90_s", 0.1)):
        assert out[metric].to_numpy() == pytest.approx(truth[metric].to_numpy(), rel=most), metric


def test_rows_of_other_tiers_have_a_line_of_their_own():
    """What was run is not sure there: they are predicted, and no part of the error."""
    truth = pd.DataFrame({"row_id": [1, 2, 3], "model": "m", "tier": ["A", "A", "B"], "tpot_s": [1.0, 1.0, 1.0]})
    bands = {"tpot_lo_s": 0.5, "tpot_hi_s": 1.5}
    table = serving.error_tables(truth, pd.DataFrame({"row_id": [1, 2, 3], "tpot_s": [1.1, 1.1, 9.0]} | bands))
    lines = table["TPOT, absolute errors in %"].set_index("group")
    assert lines.loc["all", "rows"] == 2 and lines.loc["all", "mean"] == pytest.approx(10.0)
    assert lines.loc["tier B", "rows"] == 1 and lines.loc["tier B", "mean"] == pytest.approx(800.0)
