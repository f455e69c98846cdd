"""The planner: hypothesis tests of what must never happen, the searches against brute force, refusals."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.errors import InfeasibleError, InputError
from roofline.estimates import estimate
from roofline.handoff import launch_plan
from roofline.planner import NoPlanError, Slo, _devices, _search, plan, traffic
from roofline.planner.fleet import Fleet, mixed, replicas_needed
from roofline.planner.layouts import candidates, plans
from roofline.planner.offers import Offer
from roofline.precision import precision_named
from roofline.serving.lengths import uniform
from roofline.serving.queueing import Spread
from roofline.simulation import poisson, write_trace
from roofline.specs.engine import engine_named
from roofline.specs.library import hardware
from roofline.specs.refs import load_model

MODEL = "llama-3.1-8b"
DEVICES = ("l40s", "a100-sxm", "h100-sxm", "b200-sxm")
LOAD = traffic(rate_per_s=20.0, isl=uniform(3000, 0.2), osl=uniform(400, 0.5))


@pytest.fixture(scope="module")
def search():
    """Everything that a plan tries, on four devices and up to four of them in a replica."""
    model, engine = load_model(MODEL).model, engine_named("vllm")
    found, _ = candidates(model, [hardware(n) for n in DEVICES], [precision_named("bf16")], [engine], LOAD.longest, 4)
    paid = _devices(DEVICES, None, None, None)[1]
    return _search(found, paid, LOAD, 0, True, True)[0]


def cost(search, slo, pessimistic=False) -> float:
    """Dollars per hour of the optimum; infinite where there is none."""
    fleets = search.fleets(slo, pessimistic)
    return fleets[0].usd_per_h if fleets else math.inf


slos = st.builds(
    Slo,
    ttft_s=st.one_of(st.none(), st.floats(0.05, 5.0)),
    tpot_s=st.floats(0.006, 0.1),
    e2e_s=st.one_of(st.none(), st.floats(1.0, 60.0)),
    ttft_at=st.sampled_from([0.5, 0.9, 0.99]),
    goodput=st.one_of(st.none(), st.floats(0.5, 0.99)),
)
EXAMPLES = settings(max_examples=30)


class TestNever:
    @EXAMPLES
    @given(
        slo=slos,
        looser=st.floats(1.0, 3.0),
        which=st.sampled_from(["ttft_s", "tpot_s", "e2e_s"]),
        spares=st.integers(0, 2),
    )
    def test_a_looser_objective_costs_more(self, search, slo, looser, which, spares):
        searched = replace(search, spares=spares)
        assert cost(searched, slo.scaled({which: looser})) <= cost(searched, slo) * (1 + 1e-12)
        if slo.goodput is not None:
            assert cost(searched, replace(slo, goodput=slo.goodput / looser)) <= cost(searched, slo) * (1 + 1e-12)

    @EXAMPLES
    @given(slo=slos, rate=st.floats(0.01, 500.0), more=st.floats(1.0, 4.0), spares=st.integers(0, 3))
    def test_more_load_costs_less(self, search, slo, rate, more, spares):
        little, much = (replace(search, traffic=LOAD.at_rate(r), spares=spares) for r in (rate, rate * more))
        assert cost(little, slo) <= cost(much, slo) * (1 + 1e-12)

    @EXAMPLES
    @given(slo=slos, cheaper=st.lists(st.floats(0.1, 1.0), min_size=4, max_size=4))
    def test_a_cheaper_price_raises_cost(self, search, slo, cheaper):
        paid = {o.deployment.accelerator.name: o.usd_per_h for o in search.offers}
        lower = search.repriced({name: usd * f for (name, usd), f in zip(paid.items(), cheaper)})
        assert cost(lower, slo) <= cost(search, slo) * (1 + 1e-12)

    @EXAMPLES
    @given(slo=slos, some=st.sets(st.sampled_from(DEVICES), min_size=1))
    def test_more_hardware_worsens_the_optimum(self, search, slo, some):
        assert cost(search, slo) <= cost(search.on(some), slo) * (1 + 1e-12)

    @EXAMPLES
    @given(slo=slos, spares=st.integers(0, 3))
    def test_spares_or_slowness_save_money(self, search, slo, spares):
        assert cost(search, slo) <= cost(replace(search, spares=spares), slo)
        assert cost(search, slo) <= cost(search, slo, pessimistic=True) * (1 + 1e-12)


@EXAMPLES
@given(slo=slos, rate=st.floats(0.5, 200.0), spares=st.integers(0, 2))
def test_every_fleet_carries_the_load_with_its_spares_down(search, slo, rate, spares):
    for fleet in replace(search, traffic=LOAD.at_rate(rate), spares=spares).fleets(slo):
        if fleet.disaggregated:
            for capacity, (_, n) in zip(fleet.capacities, fleet.members):
                assert (n - spares) * capacity >= rate * (1 - 1e-6)
            continue
        each = [c for c, (_, n) in zip(fleet.capacities, fleet.members) for _ in range(n)]
        assert sum(sorted(each)[: len(each) - spares]) >= rate * (1 - 1e-6)
        assert fleet.usd_per_h == pytest.approx(sum(n * o.usd_per_h_replica for o, n in fleet.members))


@settings(max_examples=60)
@given(
    costs=st.lists(st.floats(1.0, 20.0), min_size=2, max_size=4),
    able=st.lists(st.floats(1.0, 20.0), min_size=4, max_size=4),
    load=st.floats(0.5, 60.0),
    spares=st.integers(0, 2),
)
def test_mixed_fleets_against_brute_force(search, costs, able, load, spares):
    """Of all fleets of up to two kinds, by trying them, none is cheaper."""
    some = search.offers[0]
    offers = [Offer(some.deployment, c / some.deployment.plan.gpus, some.rates, some.spreads, some.most) for c in costs]
    fleets = [
        Fleet(((o, n := replicas_needed(load, x, spares)),), n * c, x * (n - spares), spares, (x,))
        for o, c, x in zip(offers, costs, able)
    ]
    two = mixed(fleets, load, spares)
    found = min([f.usd_per_h for f in fleets] + ([two.usd_per_h] if two else []))
    best = math.inf
    for i, j in itertools.combinations(range(len(costs)), 2):
        for n, m in itertools.product(range(0, 64), range(0, 17)):
            each = sorted([able[i]] * n + [able[j]] * m)
            if sum(each[: max(len(each) - spares, 0)]) >= load:
                best = min(best, n * costs[i] + m * costs[j])
                break  # more of j only costs more
    assert found <= best * (1 + 1e-9)


def test_capacity_is_where_the_objective_breaks(search):
    o = search.offers[0]
    slo = Slo(tpot_s=float(o.latency("tpot_s", 0.9)[60]))
    x = o.capacity(slo)
    assert x == o.rates[60] or o.latency("tpot_s", 0.9)[61] <= slo.tpot_s
    assert o.capacity(Slo(tpot_s=1e-6)) == 0.0
    assert o.binding(slo) == "TPOT p90" and o.binding(Slo()) == "throughput"
    assert o.pessimistic(slo) < x


@pytest.mark.parametrize("spread", [Spread(0.1, 0.2, 0.15), Spread(0.1, 0.2, 0.15, 0.3, 0.05, 0.9)])
def test_share_within_is_the_inverse_of_a_quantile(spread):
    for q in (0.25, 0.5, 0.9, 0.95):
        assert spread.within(float(spread.at(q))) == pytest.approx(q, abs=0.0101)
    assert spread.within(0.04) == 0.0 and spread.within(9.0) == 1.0


class TestPlan:
    @pytest.fixture(scope="class")
    @staticmethod
    def answer():
        slo = Slo(ttft_s=1.0, tpot_s=0.03)
        return plan(MODEL, DEVICES, traffic=LOAD, slo=slo, spares=1, max_gpus=4)

    def test_users_get_what_was_asked(self, answer):
        assert answer.latencies["ttft_s"] <= 1.0 and answer.latencies["tpot_s"] <= 0.03
        assert answer.utilisation < 1.0

    def test_it_fits_and_can_be_cut(self, answer):
        for fleet in (answer.fleet, answer.runner_up):
            for o, _ in fleet.members:
                assert bool(o.deployment.footprint(LOAD.longest).fits)
                o.deployment.decode_step(1.0, 100.0)

    def test_the_runner_up_is_not_cheaper(self, answer):
        assert answer.runner_up.usd_per_h >= answer.usd_per_h
        assert str(answer.runner_up) != str(answer.fleet)

    def test_costs(self, answer):
        assert answer.usd_per_month == pytest.approx(answer.usd_per_h * 730.5)
        per_s = answer.usd_per_h / 3600.0
        assert answer.usd_per_mtok_output == pytest.approx(per_s / (20.0 * 300.0) * 1e6)  # mean osl 300
        assert answer.usd_per_mtok_blended == pytest.approx(per_s / (20.0 * 2100.0) * 1e6)  # mean isl 1800

    def test_split_prices_and_energy(self, answer):
        """Input and output at their prices pay for the fleet; watts of all devices over output tokens."""
        price_in, price_out = answer.usd_per_mtok_split
        assert (price_in * 20 * 1800 + price_out * 20 * 300) * 3600 / 1e6 == pytest.approx(answer.usd_per_h)
        watts = sum(n * o.deployment.plan.gpus * o.deployment.accelerator.tdp_w for o, n in answer.fleet.members)
        assert answer.joules_per_token == pytest.approx(watts / (20.0 * 300.0))

    def test_frontier_is_one(self, answer):
        points = answer.frontier
        assert len(points) > 3
        for a, b in itertools.permutations(points, 2):
            assert not (a.usd_per_h <= b.usd_per_h and a.ttft_s <= b.ttft_s and a.tpot_s < b.tpot_s)

    def test_a_device_that_becomes_cheap_enough_wins(self, answer):
        """The price at which another device would win, checked by planning with it."""
        name, usd = max(answer.wins_below_usd_per_h.items(), key=lambda kv: kv[1] / answer.usd_per_h_of[kv[0]])
        kind = {"traffic": LOAD, "slo": answer.slo, "spares": 1, "max_gpus": 4}
        below = plan(MODEL, DEVICES, prices={name: usd * 0.999}, mix=False, **kind)
        assert name in below.fleet.hardware and below.usd_per_h <= answer.usd_per_h

    def test_screen(self, answer):
        lines = str(answer).splitlines()
        assert len(lines) <= 40
        for word in ("cost", "users", "binding", "runner-up", "error", "frontier", "layouts tried"):
            assert any(word in line for line in lines), word

    def test_plain_data(self, answer):
        import json

        data = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
        assert data["usd_per_h"] == answer.usd_per_h and data["fleet"]["members"][0]["hardware"] in DEVICES

    def test_estimates_of_the_replicas(self, answer):
        for e, state in zip(answer.estimates(), answer.states):
            assert e.tpot_s.value == pytest.approx(
                float(state.tpot_s), rel=0.1
            )  # the estimate has no spread of lengths


def test_pools_when_prompts_are_long():
    """With very long prompts and a tight TPOT, prompts in the same steps break the objective: pools are the answer."""
    load = traffic(rate_per_s=4.0, isl=30_000, osl=300)
    kind = {"traffic": load, "slo": Slo(ttft_s=6.0, tpot_s=0.012), "max_gpus": 4, "mix": False}
    pools = plan(MODEL, ["h100-sxm", "l40s"], **kind)
    assert pools.fleet.disaggregated and {o.role for o, _ in pools.fleet.members} == {"prefill", "decode"}
    whole = plan(MODEL, ["h100-sxm", "l40s"], **kind, disaggregate=False)
    assert pools.usd_per_h < whole.usd_per_h
    paid = [n * o.usd_per_h_replica for o, n in pools.fleet.members]
    assert pools.usd_per_mtok_split == pytest.approx((paid[0] / (4 * 30_000 * 3.6e-3), paid[1] / (4 * 300 * 3.6e-3)))
    assert pools.latencies["tpot_s"] <= 0.012 and pools.latencies["ttft_s"] <= 6.0


class TestVendors:
    """KV moves between pools of one vendor, one engine and one format; what crosses is asked for by name."""

    @pytest.fixture(scope="class")
    @staticmethod
    def searches():
        model, engine = load_model(MODEL).model, engine_named("vllm")
        devices = ("mi300x", "h200-sxm", "l40s")
        kinds = [precision_named("bf16"), precision_named("fp8")]
        found, _ = candidates(model, [hardware(n) for n in devices], kinds, [engine], LOAD.longest, 2)
        paid = _devices(devices, None, None, None)[1]
        same, _ = _search(found, paid, LOAD, 0, False, True)
        return same, replace(same, cross_vendor=True)

    @EXAMPLES
    @given(slo=slos, rate=st.floats(0.5, 200.0))
    def test_pools_are_alike(self, searches, slo, rate):
        same, any_vendor = (replace(s, traffic=LOAD.at_rate(rate)) for s in searches)
        for fleet in same.fleets(slo):
            parts = [o.deployment for o, _ in fleet.members]
            if fleet.disaggregated:
                assert len({d.accelerator.vendor for d in parts}) == 1
                assert parts[0].precision == parts[1].precision
        assert cost(any_vendor, slo) <= cost(same, slo) * (1 + 1e-12)

    def test_asked_for_they_are_offered(self, searches):
        pools = [f for f in searches[1].fleets(Slo(ttft_s=5.0, tpot_s=0.05)) if f.disaggregated]
        assert {len({o.deployment.accelerator.vendor for o, _ in f.members}) for f in pools} == {1, 2}

    def test_it_is_said(self):
        kind = {"traffic": LOAD, "slo": Slo(ttft_s=2.0, tpot_s=0.05), "max_gpus": 1}
        assert "--cross-vendor" in plan(MODEL, ["mi300x", "h200-sxm"], **kind).notes[-1]
        assert plan(MODEL, ["h200-sxm", "l40s"], **kind).notes == ()
        crossed = plan(
            MODEL, ["mi300x", "h200-sxm"], prices={"mi300x": 0.4, "h200-sxm": 9.0}, **kind, cross_vendor=True
        )
        assert crossed.fleet.hardware == {"mi300x"} and crossed.notes == ()

    def test_a_crossed_plan_says_so_and_so_does_its_hand_off(self):
        """Prompts on L40S for a pittance, decodes on MI300X, which alone keeps the TPOT."""
        load = traffic(rate_per_s=4.0, isl=30_000, osl=300)
        kind = {"traffic": load, "slo": Slo(ttft_s=8.0, tpot_s=0.012), "max_gpus": 2, "mix": False,
                "prices": {"mi300x": 3.0, "l40s": 0.1}}  # fmt: skip
        crossed = plan(MODEL, ["mi300x", "l40s"], **kind, cross_vendor=True)
        assert crossed.fleet.hardware == {"mi300x", "l40s"}
        assert crossed.usd_per_h < plan(MODEL, ["mi300x", "l40s"], **kind).usd_per_h
        assert "unlike vendors" in crossed.notes[-1]
        assert "no engine documents a KV transfer from NVIDIA to AMD" in launch_plan(crossed, "vllm")


class TestRefusals:
    def test_nothing_fits(self):
        """user_cases U-slo_capacity-01: 811 GB of weights on one 80 GB card are refused, with what would do."""
        with pytest.raises(NoPlanError, match="nothing that is allowed holds") as caught:
            plan("llama-3.1-405b", "h100-sxm", traffic=LOAD, weights="bf16", max_gpus=1)
        assert "16 x h100-sxm" in str(caught.value)

    def test_nothing_is_fast_enough(self):
        with pytest.raises(NoPlanError, match=r"even when idle. Nearest: .* limits .* times as long") as caught:
            plan(MODEL, "l40s", traffic=LOAD, slo=Slo(tpot_s=0.001), max_gpus=2)
        looser = float(str(caught.value).rsplit("limits ", 1)[1].split(" ")[0])
        assert plan(MODEL, "l40s", traffic=LOAD.at_rate(0.05), slo=Slo(tpot_s=0.001 * looser * 1.01), max_gpus=2)

    def test_the_budget_is_too_small(self):
        with pytest.raises(NoPlanError, match="The budget carries") as caught:
            plan(MODEL, "h100-sxm", traffic=LOAD, budget_usd_per_h=3.0, max_gpus=1)
        carried = float(str(caught.value).split("The budget carries ")[1].split(" ")[0])
        assert plan(MODEL, "h100-sxm", traffic=LOAD.at_rate(carried * 0.99), budget_usd_per_h=3.0, max_gpus=1)
        with pytest.raises(NoPlanError, match="does not buy one replica"):
            plan(MODEL, "h100-sxm", traffic=LOAD, budget_usd_per_h=1.0, max_gpus=1)

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda: plan(MODEL, "gb300", traffic=LOAD), "no price on record for gb300"),
            (lambda: plan(MODEL, [], traffic=LOAD), "hw: an empty list"),
            (lambda: plan(MODEL, "gb300", traffic=LOAD), "--price gb300=2.5"),
            (lambda: plan(MODEL, "h100-sxm", traffic=LOAD, prices={"h100-sxm": -1.0}), "out of range"),
            (lambda: plan(MODEL, "h100-sxm", traffic=LOAD, max_gpus=0), "max_gpus: 0"),
            (lambda: traffic(isl=1, osl=1), "rate_per_s"),
            (lambda: traffic(rate_per_s=1.0, osl=1), "isl: how long"),
            (lambda: traffic(rate_per_s=1.0, tokens_per_day=5.0, isl=1, osl=1), "one of them"),
            (lambda: Slo(goodput=0.9), "needs one"),
            (lambda: Slo(tpot_s=-1.0), "tpot_s"),
        ],
    )
    def test_inputs(self, call, text):
        with pytest.raises(InputError, match=text):
            call()

    def test_an_engine_is_not_planned_on_devices_it_does_not_run_on(self):
        with pytest.raises(NoPlanError, match="tensorrt-llm does not run on AMD devices"):
            plan(MODEL, "mi300x", traffic=LOAD, engine="tensorrt-llm", max_gpus=1)
        r = plan(MODEL, ["mi300x", "l40s"], traffic=LOAD, engine="tensorrt-llm", max_gpus=1)
        assert r.fleet.hardware == {"l40s"}

    def test_a_plan_is_never_one_that_cannot_be_cut(self):
        """32 heads: every layout that is tried divides them, or is left out with the reason."""
        model = load_model(MODEL).model
        for p in plans(model, hardware("h100-sxm"), 64):
            try:
                estimate(MODEL, "h100-sxm", tp=p.tp, pp=p.pp, dp=p.dp, ep=p.ep)
            except InfeasibleError:
                assert p.tp > 32 or p.pp > 32


class TestTraffic:
    def test_tokens_per_day(self):
        """Seed C02, C03: 1e12 tokens a day are 11.57 Mtok/s."""
        assert traffic(tokens_per_day=1e12, isl=10_000, osl=500).tokens_per_s / 1e6 == pytest.approx(11.57, abs=0.01)

    def test_peak(self):
        assert traffic(rate_per_s=2.0, isl=10, osl=10, peak=3.0).rate_per_s == 6.0

    def test_trace(self, tmp_path):
        trace = poisson(5.0, 4000, (100, 1900), (10, 590), seed=1)
        write_trace(trace, tmp_path / "trace.csv")
        t = traffic(trace=tmp_path / "trace.csv")
        assert t.rate_per_s == pytest.approx(5.0, rel=0.05) and t.arrivals_cv2 == pytest.approx(1.0, abs=0.1)
        assert float(t.isl.mean) == pytest.approx(1000, rel=0.03) and float(t.isl.longest) == trace.isl.max()
        assert float(t.isl.cv) == pytest.approx(1800 / math.sqrt(12) / 1000, rel=0.03)  # uniform
        assert traffic(trace=trace, rate_per_s=9.0).rate_per_s == 9.0

    def test_hits_of_a_trace(self):
        trace = poisson(5.0, 100, 1000, 10, seed=1, cached=250)
        t = traffic(trace=trace)
        assert t.hit_rate == 0.25 and t.cached == 250.0

    def test_hits_save_money(self, search):
        kind = {"slo": Slo(ttft_s=1.0, tpot_s=0.03), "max_gpus": 2, "mix": False}
        warm = plan(MODEL, "h100-sxm", traffic=replace(LOAD, rate_per_s=200.0, hit_rate=0.8), **kind)
        assert warm.usd_per_h < plan(MODEL, "h100-sxm", traffic=LOAD.at_rate(200.0), **kind).usd_per_h


def test_fleet_of_a_trillion_tokens_a_day():
    """Seed C01 to C03: prompts of 10,000 tokens, 1e12 tokens a day."""
    load = traffic(tokens_per_day=1e12, isl=10_000, osl=500, hit_rate=0.5)
    r = plan("llama-3.1-70b", ["h100-sxm"], traffic=load, slo=Slo(ttft_s=5.0, tpot_s=0.1), weights="fp8", max_gpus=8)
    assert r.fleet.gpus > 500  # 1,102 requests/s; one H100 prefills some 10,000 tokens of a 70B a second
    assert np.isfinite(r.usd_per_h) and r.fleet.capacity_per_s >= load.rate_per_s * (1 - 1e-9)


def test_what_is_no_traffic_no_slo_and_no_prices_is_refused():
    load = traffic(rate_per_s=1, isl=1000, osl=100)
    for wrong, told in (
        ({"traffic": {"rate_per_s": 1}}, "traffic: give what traffic"), ({"slo": {"ttft_s": 1}}, "slo: give Slo"),
        ({"prices": "2.5"}, "prices: give USD per hour by device"), ({"hw": 3}, "hw: 3 is neither a name"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=told):
            plan("llama-3.1-8b", **({"hw": "h100-sxm", "traffic": load} | wrong))
    with pytest.raises(InputError, match="trace: 3 is neither a path"):
        traffic(trace=3)
    found = plan("llama-3.1-8b", "h100-sxm", traffic=load, spares=1.0)
    assert found.fleet.members[0][1] == 2 and "  2 x [" in str(found)
