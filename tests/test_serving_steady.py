"""Steady states: physics, limits, properties, and the event simulator as an oracle."""

import re

import numpy as np
import pytest

from roofline.deployment import deployment
from roofline.errors import InputError, UnknownNameError
from roofline.serving.capacity import room_of
from roofline.serving.lengths import as_lengths, fixed, uniform
from roofline.serving.little import batch_at, tpot_full, tpot_open
from roofline.serving.load import rules, step_kinds
from roofline.serving.recipes import with_scheduler
from roofline.serving.site import Site
from roofline.serving.steady import steady_state
from roofline.serving.steps import step_table


@pytest.fixture(scope="module")
def llama():
    return deployment("llama-3.1-70b", "h100-sxm", tp=4)


def test_a_cold_16k_prefill_is_never_faster_than_its_flops(llama):
    """70B parameters, 16k tokens, 4 H100: 2 x 70e9 x 16384 FLOPs at 4 x 989 TFLOP/s dense are 0.58 s."""
    least = 2 * 69e9 * 16384 / (4 * 989.4e12)
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        where = deployment("llama-3.1-70b", "h100-sxm", tp=4, engine=engine)
        for load in ({"concurrency": 1.0}, {"rate_per_s": 0.01}):
            assert steady_state(where, isl=16384.0, osl=100.0, **load).ttft_s > least


def test_tpot_is_never_below_weights_over_bandwidth(llama):
    """141 GB of weights over 4 x 3.35 TB/s."""
    assert steady_state(llama, isl=100.0, osl=1000.0, concurrency=1.0).tpot_s > 140e9 / (4 * 3.35e12)


def test_scalar_equals_array(llama):
    isl, c = np.array([100.0, 3000.0, 9000.0]), np.array([1.0, 16.0, 200.0])
    for load in ("concurrency", "rate_per_s"):
        values = c if load == "concurrency" else c / 50.0
        many = steady_state(llama, isl=isl, osl=400.0, **{load: values})
        for i in range(3):
            one = steady_state(llama, isl=float(isl[i]), osl=400.0, **{load: float(values[i])})
            for field in ("ttft_s", "tpot_s", "e2e_s", "batch", "tokens_per_s"):
                assert getattr(one, field) == pytest.approx(getattr(many, field)[i], rel=1e-9)


def test_little_holds(llama):
    """Requests in the system = rate x time, in both loops."""
    closed = steady_state(llama, isl=1000.0, osl=300.0, concurrency=np.array([1.0, 20.0, 5000.0]))
    assert closed.requests_per_s * closed.e2e_s == pytest.approx(closed.concurrency)
    opened = steady_state(llama, isl=1000.0, osl=300.0, rate_per_s=np.array([0.1, 1.0, 3.0]))
    assert opened.batch == pytest.approx(np.maximum(opened.requests_per_s * 300 * opened.tpot_s, 1.0), rel=0.02)


def test_open_and_closed_loop_meet(llama):
    """A closed loop serves some rate; an open loop at that rate has about the same TPOT."""
    closed = steady_state(llama, isl=1000.0, osl=500.0, concurrency=np.array([8.0, 64.0]))
    opened = steady_state(llama, isl=1000.0, osl=500.0, rate_per_s=closed.requests_per_s)
    assert opened.tpot_s == pytest.approx(closed.tpot_s, rel=0.05)


def test_more_load_is_never_faster(llama):
    c = np.arange(1.0, 400.0, 7.0)
    state = steady_state(llama, isl=800.0, osl=300.0, concurrency=c)
    assert np.all(np.diff(state.tpot_s) > -1e-3 * state.tpot_s[1:])
    rates = np.linspace(0.1, 30, 60)
    state = steady_state(llama, isl=800.0, osl=300.0, rate_per_s=rates)
    assert np.all(np.diff(state.tpot_s) > -1e-3 * state.tpot_s[1:])
    assert np.all(np.diff(state.ttft.at(0.9)) > -0.02 * state.ttft.at(0.9)[1:])


def test_overload_is_said(llama):
    state = steady_state(llama, isl=1000.0, osl=500.0, rate_per_s=np.array([1.0, 1e4]))
    assert state.saturated.tolist() == [False, True]
    assert state.requests_per_s[1] < 1e3  # what it serves, not what is asked
    crowd = steady_state(llama, isl=1000.0, osl=500.0, concurrency=1e5)
    assert crowd.saturated and crowd.ttft_s > 100.0


def test_a_cached_prefix_makes_prompts_cheaper(llama):
    plain, hit = (steady_state(llama, isl=4000.0, osl=200.0, concurrency=32.0, cached=c) for c in (0.0, 3900.0))
    assert hit.ttft_s < plain.ttft_s and hit.tpot_s < plain.tpot_s


def test_shared_prefixes_leave_room_for_more():
    """Prompts that are one of ten prefixes are held ten times, not once per request."""
    where = deployment("llama-3.1-8b", "l40s")
    own, shared = (
        steady_state(where, isl=8000.0, osl=100.0, concurrency=100.0, cached=7900.0, prefixes=p) for p in (0.0, 4.0)
    )
    assert own.kv_occupancy > shared.kv_occupancy and own.saturated and not shared.saturated


def test_prefill_first_stalls_decodes_and_lockstep_queues():
    """Fixed lengths under SGLang that started together: all prefill together, so the mean TTFT grows with the crowd."""
    sglang = deployment("qwen3-32b", "h100-sxm", tp=4, engine="sglang")
    together = steady_state(sglang, isl=4096.0, osl=fixed(256.0), concurrency=np.array([4.0, 64.0]), burst_share=0.1)
    mixed = steady_state(sglang, isl=4096.0, osl=uniform(320.0, 0.6), concurrency=np.array([4.0, 64.0]))
    assert together.ttft_s[1] > 8 * together.ttft_s[0]
    assert together.ttft_s[1] > mixed.ttft_s[1]


def test_polling_and_holding_delay_first_tokens():
    where = deployment("llama-3.1-70b", "b200-sxm", tp=4, engine="sglang")
    load = {"isl": uniform(1024.0, 0.8), "osl": uniform(1024.0, 0.8), "concurrency": 16.0}
    plain = steady_state(where, **load)
    polled = steady_state(where, **load, poll_interval=np.array([10.0, 30.0]))
    assert np.all(np.diff([plain.ttft_s, *polled.ttft_s]) > 0)
    held = steady_state(where.with_(engine=with_scheduler(where.engine, {"policy": "mixed"})), **load, hold_steps=20.0)
    assert held.ttft_s > plain.ttft_s


def test_interference_collapses_a_stream():
    """A 100k prompt arrives in chunks of 1024 beside one stream of 55 tok/s: most of its tokens come at chunk pace.

    Origin: user case U-prefix_chunk-02: the stream falls from 55 to about 5 tok/s while the prefill lasts.
    """
    where = deployment("llama-3.1-70b", "h100-sxm", tp=2, weights="fp8")
    table = step_table(where)
    alone = table.decode(1.0, 4000.0)
    late = table.beside(1.0, 4000.0, 1024.0, 90_000.0).with_prompts_s(1.0)
    assert late > 4 * alone


def test_half_cached_prompts_raise_input_throughput():
    """U-prefix_chunk-01: 8B fp8 on L40S, 49 % of prompt tokens cached: 17,829 -> 32,149 prompt tokens/s, within 10 %.

    The lengths of that prompt-heavy load are not published; 2,000 in and 10 out reproduce the rate without a cache.
    """
    where = deployment("llama-3.1-8b", "l40s", weights="fp8")
    plain, hit = (steady_state(where, isl=2000.0, osl=10.0, concurrency=64.0, cached=c) for c in (0.0, 980.0))
    assert 2000.0 * plain.requests_per_s == pytest.approx(17829.4, rel=0.15)
    assert 2000.0 * hit.requests_per_s == pytest.approx(32149, rel=0.10)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_short_answers_come_no_faster_than_their_prompts_can_be_taken(engine):
    """Loops of 512 + 1 to 64 tokens: no more prompts a second than whole batches of them without any decode."""
    where = deployment("llama-3.1-8b", "h100-sxm", engine=engine)
    osl, users = np.meshgrid([1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 64.0], [1.0, 16.0, 64.0, 256.0, 1024.0])
    state = steady_state(where, isl=512.0, osl=osl, concurrency=users)
    least = min(float(where.prefill_step(n, 512.0).total_s) / n for n in (1.0, 4.0, 16.0, 32.0))
    assert np.all(state.requests_per_s < 1.02 / least)
    assert np.all(np.diff(state.requests_per_s, axis=1) < 0.02 * state.requests_per_s[:, 1:])


def test_bursty_arrivals_wait_longer(llama):
    calm, bursty = (steady_state(llama, isl=2000.0, osl=100.0, rate_per_s=4.0, arrivals_cv2=c) for c in (1.0, 8.0))
    assert bursty.ttft_s > calm.ttft_s and bursty.ttft.at(0.99) > calm.ttft.at(0.99)


def test_bad_input_is_refused(llama):
    with pytest.raises(InputError):
        steady_state(llama, isl=100.0, osl=100.0)
    with pytest.raises(InputError):
        steady_state(llama, isl=100.0, osl=100.0, concurrency=1.0, rate_per_s=1.0)
    with pytest.raises(InputError):
        steady_state(llama, isl=-1.0, osl=100.0, concurrency=1.0)
    with pytest.raises(UnknownNameError):
        steady_state(llama, isl=1.0, osl=100.0, concurrency=1.0, budgets=3.0)


def test_the_batch_of_a_rate_solves_littles_law():
    """Random loads up to 95 % of saturation: b = rate O tpot(b) to 1e-5 at all points but those where tpot jumps."""
    where = deployment("llama-3.1-8b", "l40s")
    rng = np.random.default_rng(7)
    isl, osl = 2.0 ** rng.uniform(5, 15, 2000), 2.0 ** rng.uniform(3, 12, 2000)
    fastest = 1.0 / steady_state(where, isl=isl, osl=osl, rate_per_s=1.0).utilisation
    state = steady_state(where, isl=isl, osl=osl, rate_per_s=fastest * rng.choice([0.02, 0.3, 0.8, 0.9, 0.95], 2000))
    site = Site(
        step_table(where), rules(where.engine.scheduler, isl, 1, {}), as_lengths(isl), as_lengths(osl), 0.0,
        room_of(where, as_lengths(isl), as_lengths(osl)), (step_table(where).graph_batch - 1.0) / 2.0,
    )  # fmt: skip
    rate, kinds = state.utilisation * fastest, step_kinds(site.table, site.load(1.0), site.rules)
    batch = batch_at(site, kinds, rate, tpot_full(site, kinds, site.cap))
    error = np.abs(rate * osl * tpot_open(site, kinds, batch, rate) / batch - 1.0)
    assert np.quantile(error, 0.99) < 1e-5 and error.max() < 0.07
    assert np.all(state.batch >= batch) and np.all(state.batch <= state.batch / state.kv_occupancy * (1 + 1e-9))
    several = batch > 1.0
    assert state.batch[several] == pytest.approx((rate * osl * state.tpot_s)[several], rel=1e-6)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"isl": "abc"}, "isl: 'abc' is not a number"),
        ({"isl": 0}, "isl: 0 is out of range; allowed: 1 or more"),
        ({"osl": 0.0}, "osl: 0 is out of range"),
        ({"osl": [10.0, float("nan")]}, "osl: nan is out of range"),
        ({"isl": None}, "isl: None is not a number"),
        ({"isl": [[1.0], [2.0, 3.0]]}, "is not a number or an array of numbers"),
        ({"concurrency": "x"}, "concurrency: 'x' is not a number"),
        ({"concurrency": -1.0}, "concurrency: -1 is out of range"),
        ({"max_seqs": "a"}, "max_seqs: 'a' is not a number"),
    ],
)
def test_inputs_are_refused_by_name(given, text):
    where = deployment("llama-3.1-8b", "h100-sxm")
    with pytest.raises(InputError, match=re.escape(text)):
        steady_state(where, **({"isl": 100.0, "osl": 10.0, "concurrency": 4.0} | given))


@pytest.mark.parametrize("engine", ["tensorrt-llm", "llama.cpp", "vllm"])
def test_clients_beyond_the_seats_only_wait(engine):
    """However many more clients there are: as many run, a token takes as long, and first tokens come ever later."""
    where = deployment("qwen3-0.6b", "l40s", dp=2, engine=engine)
    clients = np.array([3000.0, 4096.0, 4500.0, 5461.0, 8000.0, 1e5, 1e7])
    state = steady_state(where, isl=128.0, osl=20000.0, concurrency=clients)
    assert np.ptp(state.batch) < 1e-3 * state.batch.mean() and np.ptp(state.tpot_s) < 0.01 * state.tpot_s.mean()
    assert np.all(np.diff(state.ttft_s) > 0)


@pytest.mark.parametrize("engine", ["transformers", "ideal", "sglang", "vllm", "tensorrt-llm"])
def test_percentiles_of_tokens_stay_on_both_sides_of_their_mean(engine):
    """64,000 tokens in and two out, up to overload: no percentile is nothing, and the 90th not less than the mean."""
    where = deployment("qwen3-0.6b", "h100-sxm", engine=engine)
    ask = {"isl": 64000.0, "osl": 2.0}
    most = 1.0 / float(steady_state(where, **ask, rate_per_s=1e-3).utilisation) * 1e-3
    state = steady_state(where, **ask, rate_per_s=most * np.array([0.01, 0.3, 0.7, 0.95, 1.5, 100.0]))
    assert np.all(np.asarray(state.tpot.at(0.5)) > 0.3 * state.tpot_s)
    assert np.all(np.asarray(state.tpot.at(0.9)) >= 0.999 * state.tpot_s)
